"""Chat messages and token usage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.kernel.content import ContentBlock, TextBlock, ToolUseBlock, blocks_json, media_of, text_of
from ravi_django.kernel.json_values import canonical_json


class Role(StrEnum):
    """The author of a chat message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class Usage(BaseModel):
    """Tokens of one or more model calls. Cached tokens are part of the input, reasoning tokens of the output."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int = 0  # with those from the cache
    cached_tokens: int = 0  # read from the provider's cache
    output_tokens: int = 0  # with those of the reasoning
    reasoning_tokens: int = 0  # of the model's thoughts
    estimated: bool = False  # a part was counted here, not reported by the provider

    @property
    def total(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, row: Any) -> Usage:
        """The usage in the columns of a row; NULL counts as 0."""
        return cls(**{name: getattr(row, name) or 0 for name in TOKENS}, estimated=row.usage_estimated)

    def __add__(self, other: Usage) -> Usage:
        sums = {name: getattr(self, name) + getattr(other, name) for name in TOKENS}
        return Usage(**sums, estimated=self.estimated or other.estimated)


class ChatMessage(BaseModel):
    """One turn of a conversation. Immutable: its JSON and digest are computed once."""

    model_config = ConfigDict(frozen=True)

    role: Role  # the author
    content: list[ContentBlock] = Field(default_factory=list)  # the parts, in their order
    name: str | None = None  # of the author, for providers that take it
    metadata: dict[str, Any] = Field(default_factory=dict)  # JSON; providers do not get it

    @classmethod
    def of(cls, role: Role | str, text: str) -> ChatMessage:
        """A message of one text block."""
        return cls(role=Role(role), content=[TextBlock(text=text)])

    @property
    def text(self) -> str:
        """The readable text of all blocks."""
        return text_of(self.content)

    @property
    def tool_calls(self) -> list[ToolUseBlock]:
        """The calls that the model asks for, in their order."""
        return [block for block in self.content if isinstance(block, ToolUseBlock)]

    def to_json(self) -> dict[str, Any]:
        """JSON with defaults left out; reads back equal. Computed once."""
        return self._json

    @cached_property
    def _json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"role": self.role.value, "content": blocks_json(self.content)}
        if self.name is not None:
            body["name"] = self.name
        if self.metadata:
            body["metadata"] = self.model_dump(mode="json", include={"metadata"})["metadata"]
        return body

    @cached_property
    def _digest_and_size(self) -> tuple[bytes, int]:
        body = canonical_json({name: value for name, value in self._json.items() if name != "metadata"})
        return hashlib.sha256(body).digest(), len(body)

    @property
    def digest(self) -> bytes:
        """SHA-256 over role, content and name, 32 bytes, whatever the order of keys in a database."""
        return self._digest_and_size[0]

    @cached_property
    def size(self) -> int:
        """Bytes of role, content and name as JSON."""
        return self._digest_and_size[1]

    @cached_property
    def has_media(self) -> bool:
        return any(True for _ in media_of(self.content))

    @property
    def files(self) -> tuple[str, ...]:
        """Ids of the uploaded files that it names, also in tool results."""
        return tuple(media.file for media in media_of(self.content) if media.file)

    @cached_property
    def _wire(self) -> dict[str, Any]:
        """The message in the formats of providers, by name; filled by the adapters."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, without the values that were computed for the original."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("_json", "_digest_and_size", "size", "has_media", "_wire"):
            copied.__dict__.pop(name, None)
        return copied

    def __eq__(self, other: object) -> bool:
        """Equal by content, whatever is cached."""
        if not isinstance(other, ChatMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ChatMessage.model_fields)

    __hash__ = None  # type: ignore[assignment]
