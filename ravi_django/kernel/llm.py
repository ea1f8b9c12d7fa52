"""The port to language models: options in, a stream of deltas and one response out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from ravi_django.kernel.canonical import digest_of
from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import ContentBlock
from ravi_django.kernel.stream import ReasoningDelta, TextDelta
from ravi_django.kernel.supervision import RunMeta
from ravi_django.kernel.tools import ToolSpec, specs_of


def _read_tools(value: Any) -> Any:
    return [ToolSpec.model_validate(item) if isinstance(item, dict) else item for item in value or ()]


ToolList = Annotated[
    list[Any],
    BeforeValidator(_read_tools),
    PlainSerializer(lambda tools: [spec.model_dump() for spec in specs_of(tools)]),
]


class GenerationOptions(BaseModel):
    """How to generate. Unset means the provider's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: ToolList = Field(default_factory=list)  # tools or tool specs that the model may call
    tool_choice: str | None = None  # "auto", "none", "required" or a tool's name
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None  # of output
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    extra: dict[str, Any] = Field(default_factory=dict)  # passed to the provider as is

    @cached_property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools as the model sees them. Computed once."""
        return [spec.model_dump() for spec in specs_of(self.tools)]

    @cached_property
    def tools_digest(self) -> str:
        return digest_of(self.tool_schemas) if self.tools else ""

    @cached_property
    def digest(self) -> str:
        """Over everything but the tools. Computed once."""
        return digest_of(self.model_dump(exclude={"tools"}, exclude_none=True))


class ModelResponse(BaseModel):
    """One assistant turn with what it cost; `cost` is in US dollars, None when the price is unknown."""

    model_config = ConfigDict(frozen=True)

    message: ChatMessage
    usage: Usage = Field(default_factory=Usage)
    cost: float | None = None
    model: str = ""  # the name that the provider answered under
    finish_reason: str = "stop"

    @classmethod
    def of(cls, content: list[ContentBlock], **fields: Any) -> ModelResponse:
        return cls(message=ChatMessage(role=Role.ASSISTANT, content=content), **fields)

    @property
    def content(self) -> list[ContentBlock]:
        return self.message.content

    @property
    def text(self) -> str:
        return self.message.text


ModelEvent = TextDelta | ReasoningDelta | ModelResponse


class ChatModel(Protocol):
    """A model client. One object serves concurrent calls."""

    name: str  # the logical name: part of a recorded call's identity

    def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield deltas as they come, then exactly one ModelResponse.

        Raises TransientError for what is worth a retry, ModelError for what is not.
        """
        ...
