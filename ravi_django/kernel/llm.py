"""The port to language models: options in, a stream of deltas and one response out."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.content import ContentBlock
from ravi_django.kernel.errors import InvalidInputError, ModelError, TransientError
from ravi_django.kernel.json_values import digest_of
from ravi_django.kernel.messages import (
    ReasoningDelta,
    StreamAlive,
    StreamRestart,
    TextDelta,
    ToolCallDelta,
)
from ravi_django.kernel.secrets import refuse_secrets
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
    temperature: float | None = None  # from 0, which varies least, to 1 or 2
    top_p: float | None = None  # from 0 to 1: the share of likely tokens to choose from
    max_tokens: int | None = None  # of output
    stop: list[str] | None = None  # texts at which the answer ends
    reasoning_effort: str | None = None  # such as "low", "medium" or "high", by the provider
    cache_life: Literal["1h"] | None = None  # of the provider's cache, where it can be chosen; None: its default
    response_format: dict[str, Any] | None = None  # the format of the answer, as OpenAI's API has it
    result_by: Literal["schema", "tool"] | None = None  # how a typed result is asked for; set by the loop
    extra: dict[str, Any] = Field(default_factory=dict)  # passed to the provider as is; no keys or passwords

    @classmethod
    def of(cls, options: GenerationOptions | dict[str, Any] | None) -> GenerationOptions | None:
        """From a dict too. Raises TypeError, InvalidInputError for an unknown field, and pydantic's ValidationError."""
        if options is None or isinstance(options, cls):
            return options
        if isinstance(options, dict):
            for name in options.keys() - cls.model_fields.keys():
                near = did_you_mean(name, cls.model_fields) or f"; pass it as extra={{{name!r}: …}}"
                raise InvalidInputError(f"base_options has no field {name!r}{near}", field="base_options")
            return cls(**options)
        raise TypeError(f"base_options must be GenerationOptions or a dict of them, not {options!r}")

    def model_post_init(self, context: Any) -> None:
        """Raises SecretRefusedError for a key among the extras: options are digested, shown and stored."""
        if self.extra:
            refuse_secrets(self.extra, "extra")

    @cached_property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools as the model sees them. Computed once."""
        return [spec.model_dump() for spec in specs_of(self.tools)]

    @cached_property
    def tools_digest(self) -> str:
        return digest_of(self.tool_schemas) if self.tools else ""

    @cached_property
    def digest(self) -> str:
        """Over all that the answer depends on, but for the tools. Computed once."""
        return digest_of(self.model_dump(exclude={"tools", "cache_life", "result_by"}, exclude_none=True))


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    CALLS = "tool_calls"
    LENGTH = "length"  # at the limit of output tokens
    FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE = "pause"  # of Claude, amid work of its server: the same blocks go back, and it continues
    ERROR = "error"

    @classmethod
    def of(cls, name: str) -> FinishReason:
        """From the name that a provider uses. An unknown one is STOP."""
        name = name.lower().replace("-", "_")
        if name in cls._value2member_map_:
            return cls(name)
        return next((reason for pattern, reason in _REASONS if re.search(pattern, name)), cls.STOP)


_REASONS = (  # the first whose words are in the name
    ("^pause", FinishReason.PAUSE),
    ("tool_?(?:use|call)s?$|function_call$", FinishReason.CALLS),
    ("filter|safety|sensitive|recitation|blocklist|prohibited|spii|guardrail|moderat", FinishReason.FILTER),
    ("length|max_.*tokens|token_limit|context_window|incomplete", FinishReason.LENGTH),
    ("error|abort|cancel|fail|time_?out|insufficient", FinishReason.ERROR),
)


class ModelResponse(BaseModel):
    """One assistant turn and its cost in US dollars; None when the price is unknown."""

    model_config = ConfigDict(frozen=True)

    message: ChatMessage  # the answer, with its tool calls
    usage: Usage = Field(default_factory=Usage)  # tokens of the call
    cost: float | None = None  # US dollars
    model: str = ""  # the name that the provider reported
    finish_reason: str = FinishReason.STOP  # a FinishReason
    cached: bool = False  # from a cache of this site: no model was called, at no cost

    @classmethod
    def of(cls, content: list[ContentBlock], **fields: Any) -> ModelResponse:
        """A response of the role assistant. `fields`: those of the class, such as `usage`."""
        return cls(message=ChatMessage(role=Role.ASSISTANT, content=content), **fields)

    @property
    def content(self) -> list[ContentBlock]:
        """The blocks of the message."""
        return self.message.content

    @property
    def text(self) -> str:
        """The readable text of the message, without thoughts and calls."""
        return self.message.text

    @property
    def is_empty(self) -> bool:
        """Whether it has no words and no calls, and the provider says no reason. Thoughts alone are empty."""
        return self.finish_reason == FinishReason.STOP and not (self.text.strip() or self.message.tool_calls)


ModelEvent = TextDelta | ReasoningDelta | ToolCallDelta | StreamAlive | StreamRestart | ModelResponse


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed model call is made again. A retry is a row with a time: nothing sleeps for it.

    Errors are named by their `type` ("RateLimitError") or HTTP status (429). Without names the adapter decides: a
    TransientError is retried, a ModelError is not.
    """

    max_attempts: int = 5  # calls in all, the first one included
    base_s: float = 1.0  # seconds before the first retry; doubles with each
    max_s: float = 60.0  # seconds, at most, unless the provider asks for more
    jitter: float = 0.5  # the random part of a delay, from 0 to 1
    max_retry_after_s: float = 3600.0  # of a provider's Retry-After, seconds at most; 0 ignores it
    retry_on: frozenset[str | int] = frozenset()  # retried, whatever the adapter says
    give_up_on: frozenset[str | int] = frozenset()  # not retried, whatever the adapter says

    def __post_init__(self) -> None:
        """Takes any collection of names. Raises InvalidInputError that names the field."""
        for name in ("retry_on", "give_up_on"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        if self.max_attempts < 1:
            raise InvalidInputError(f"max_attempts is 1 or more, not {self.max_attempts}", field="max_attempts")
        for name in ("base_s", "max_s", "max_retry_after_s"):
            if getattr(self, name) < 0:
                raise InvalidInputError(f"{name} is in seconds, 0 or more, not {getattr(self, name)}", field=name)
        if not 0 <= self.jitter <= 1:
            raise InvalidInputError(f"jitter is from 0 to 1, not {self.jitter}", field="jitter")
        if both := self.retry_on & self.give_up_on:
            raise InvalidInputError(f"{sorted(map(str, both))} cannot be in both lists", field="give_up_on")

    def retries(self, error: TransientError | ModelError) -> bool:
        """Whether this kind of error is worth another call, whatever the number of calls."""
        known = {error.type, error.status}
        if known & self.give_up_on:
            return False
        return bool(known & self.retry_on) or isinstance(error, TransientError)

    def delay_s(self, failures: int, retry_after: float | None = None) -> float:
        """Seconds to wait after so many earlier failures in a row; at least `retry_after`, up to its limit."""
        longest: float = min(self.base_s * 2 ** min(failures, 60), self.max_s)
        spread: float = longest * random.uniform(1 - self.jitter, 1.0)  # noqa: S311 - spreads retries, guards nothing
        return max(spread, min(retry_after or 0.0, self.max_retry_after_s))


class ChatModel(Protocol):
    """A model client. One object serves concurrent calls.

    Optional attributes: `retry` (a RetryPolicy, instead of the site's), and the coroutines `context_window() -> int |
    None` (tokens), `count_tokens(messages) -> int`, `supports_schema() -> bool` (whether `response_format` may hold a
    JSON schema) and `supports_schema_beside_tools() -> bool`. None of them uses the network. The str `endpoint` tells
    two servers apart that have a model of one name, the str `account` two accounts with rate limits of their own. Under
    a budget in dollars a model has `prices` (dollars per token) or says `reports_cost = True`: each of its responses
    has a cost.
    """

    name: str  # the logical name: part of a recorded call's identity

    def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield deltas as they come, then exactly one ModelResponse.

        Raises TransientError for an error that is worth a retry, else ModelError.
        """
