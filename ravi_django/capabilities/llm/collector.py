"""Collects a streamed answer: yields its deltas, and one ModelResponse at the end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ravi_django.kernel.chat import Usage
from ravi_django.kernel.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock, UnknownBlock
from ravi_django.kernel.json_values import check_cost, check_storable, storable
from ravi_django.kernel.llm import ModelResponse
from ravi_django.kernel.messages import ReasoningDelta, TextDelta, ToolCallDelta
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY, is_too_deep


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0  # among the calls of the answer


@dataclass(slots=True)
class _Thought:
    text: str = ""
    signature: str | None = None


Delta = TextDelta | ReasoningDelta | ToolCallDelta


class ResponseCollector:
    """Collects the chunks of one answer, from litellm or the OpenAI client; both have the same fields."""

    def __init__(self) -> None:
        self.provider_usage: Any = None  # as reported by the provider; None before
        self.finish_reason = ""
        self.model = ""
        self._text: list[str] = []
        self._thoughts: list[_Thought] = []
        self._redacted: list[ContentBlock] = []
        self._calls: list[_Call] = []
        self._call_at: dict[int, _Call] = {}  # by the stream's index: the call of the next pieces

    def add(self, chunk: Any) -> Iterator[Delta]:
        self.model = getattr(chunk, "model", None) or self.model
        self.provider_usage = getattr(chunk, "usage", None) or self.provider_usage
        for choice in chunk.choices[:1]:
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta is not None:
                yield from self._add_delta(choice.delta)

    @property
    def usage(self) -> Usage:
        usage = self.provider_usage
        if usage is None:
            return Usage()
        return Usage(
            input_tokens=usage.prompt_tokens or 0,
            output_tokens=usage.completion_tokens or 0,
            cached_tokens=_cached(usage),
            reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
        )

    @property
    def cache_writes(self) -> int:
        """Input tokens that went into the provider's cache."""
        usage = self.provider_usage
        written = _detail(usage, "prompt_tokens_details", "cache_creation_tokens")
        return written or _count(usage, "cache_creation_input_tokens")

    def response(self, *, cost: float | None, taken_ids: set[str]) -> ModelResponse:
        """The answer. `taken_ids` are the call ids of earlier turns. A call without an id gets `call_<index>`; a taken
        id gets a suffix `_2`, `_3`, …"""
        content: list[ContentBlock] = [
            ThinkingBlock(text=thought.text, signature=thought.signature) for thought in self._thoughts
        ]
        content += self._redacted
        if text := "".join(self._text):
            content.append(TextBlock(text=text))
        content += _tool_blocks(self._calls, taken_ids)
        return ModelResponse.of(
            content, usage=self.usage, cost=cost, model=self.model, finish_reason=self.finish_reason or "stop"
        )

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def is_empty(self) -> bool:
        """Whether there is no text, call or thought."""
        return not (any(self._text) or self._calls or self._thoughts or self._redacted)

    @property
    def output_text(self) -> str:
        """All output of the model, to count its tokens."""
        thoughts = (thought.text for thought in self._thoughts)
        return " ".join([*thoughts, "".join(self._text), *(f"{call.name} {call.arguments}" for call in self._calls)])

    def _add_delta(self, delta: Any) -> Iterator[Delta]:
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        if isinstance(reasoning, str) and reasoning:
            self._thought().text += reasoning
            yield ReasoningDelta(text=reasoning)
        for block in getattr(delta, "thinking_blocks", None) or ():
            self._add_thinking(block)
        if delta.content:
            self._text.append(delta.content)
            yield TextDelta(text=delta.content)
        for piece in getattr(delta, "tool_calls", None) or ():
            yield self._add_call(piece)

    def _add_thinking(self, block: dict[str, Any]) -> None:
        # The text is in reasoning_content too. Only these blocks have the signature and redacted thinking.
        if block.get("type") == "redacted_thinking":
            self._redacted.append(UnknownBlock.model_validate(block))
        elif signature := block.get("signature"):
            thought = self._thought()
            thought.signature = signature

    def _thought(self) -> _Thought:
        # A signature ends a thought.
        if not self._thoughts or self._thoughts[-1].signature is not None:
            self._thoughts.append(_Thought())
        return self._thoughts[-1]

    def _add_call(self, piece: Any) -> ToolCallDelta:
        call = self._call_at.get(piece.index)
        # Some servers send index 0 for every parallel call, with different ids.
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = self._call_at[piece.index] = _Call(index=len(self._calls))
            self._calls.append(call)
        call.id = call.id or piece.id or ""
        if piece.function is not None:
            call.name = call.name or piece.function.name or ""
            call.arguments += piece.function.arguments or ""
        fragment = piece.function.arguments if piece.function is not None else None
        return ToolCallDelta(index=call.index, call_id=call.id, name=call.name, arguments=fragment or "")


def parse_arguments(text: str) -> dict[str, Any]:
    """A tool call's arguments. Text that is not a JSON object, is nested too deep, has too many elements or a number
    that no row can hold is returned under INVALID_ARGUMENTS_KEY. Characters that no row can hold are replaced."""
    if not text.strip():
        return {}  # some models call a tool without parameters like this
    try:
        check_cost(text)
        arguments = json.loads(text, parse_constant=_refuse)
        check_storable(arguments, texts=False)
    except (ValueError, RecursionError):
        return {INVALID_ARGUMENTS_KEY: storable(text)}
    if arguments is None:
        return {}
    if not isinstance(arguments, dict) or is_too_deep(arguments):
        return {INVALID_ARGUMENTS_KEY: text}
    return dict(storable(arguments))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _tool_blocks(calls: list[_Call], taken_ids: set[str]) -> Iterator[ToolUseBlock]:
    taken = set(taken_ids)
    for index, call in enumerate(calls):
        call_id = call.id or f"call_{index}"
        if call_id in taken:
            call_id = next(name for count in itertools.count(2) if (name := f"{call_id}_{count}") not in taken)
        taken.add(call_id)
        yield ToolUseBlock(tool_name=call.name, arguments=parse_arguments(call.arguments), call_id=call_id)


def _cached(usage: Any) -> int:
    """Input tokens from the provider's cache; each provider has its own name for them."""
    return (
        _detail(usage, "prompt_tokens_details", "cached_tokens")
        or _count(usage, "cache_read_input_tokens")
        or _count(usage, "prompt_cache_hit_tokens")
    )


def _detail(usage: Any, group: str, field: str) -> int:
    return _count(getattr(usage, group, None), field)


def _count(usage: Any, field: str) -> int:
    found = getattr(usage, field, None)
    return found if isinstance(found, int) else 0
