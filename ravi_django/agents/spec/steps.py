"""Rebuild the messages of a conversation from stored step rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import to_json

from ravi_django.agents.memory.transcript import close_dangling
from ravi_django.kernel import ChatMessage, InvalidInputError, Role
from ravi_django.kernel.content import Block, ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock, blocks_adapter
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY

_ROLES = {
    "system": Role.SYSTEM,
    "system_message": Role.SYSTEM,
    "user": Role.USER,
    "user_message": Role.USER,
    "assistant": Role.ASSISTANT,
    "assistant_message": Role.ASSISTANT,
}
_CALLS = ("tool_call", "tool_calls")
_RESULTS = ("tool_result", "tool_results")
KINDS = (*_ROLES, *_CALLS, *_RESULTS)


@dataclass(slots=True)
class _Call:
    block: ToolUseBlock
    listed: bool = False  # by its assistant message; its own row may follow
    result: ToolResultBlock | None = None


@dataclass(slots=True)
class _Turn:
    """One message; an assistant's turn with its calls."""

    role: Role
    content: list[ContentBlock]
    calls: list[_Call] = field(default_factory=list)
    closed: bool = False  # has a result: the next call belongs to another turn


def rebuild_messages_from_steps(
    steps: Iterable[Any], *, unknown: Literal["raise", "skip"] = "raise"
) -> list[ChatMessage]:
    """The conversation of step rows, oldest first, in a form that every provider accepts.

    A row is a mapping or an object with `kind` (or `type`): `user_message`, `assistant_message`, `system_message`,
    `tool_call(s)` or `tool_result(s)`. Its values are in the row or in its `payload` (or `data`):

    - messages have `content` (or `text`): a string, content blocks, or any JSON; an assistant's may list `tool_calls`
    - calls have `tool_name` (or `name`), `arguments` (or `args`; an object or its JSON text), `call_id` (or `id`)
    - results have `call_id` (or `tool_call_id`), `content` (or `result`, `output`), `is_error`

    Consecutive calls, and those that a message lists, belong to one assistant turn. Their results follow in the order
    of the calls, wherever their rows are. A call without a result gets an "interrupted" one. A result without a call is
    dropped: providers refuse it.

    Raises InvalidInputError naming the row (`steps.3`) if it cannot be read, or has an unknown kind and `unknown` is
    not "skip".
    """
    turns: list[_Turn] = []
    for index, step in enumerate(steps):
        kind = _get(step, "kind", "type")
        if kind in _ROLES:
            turns.append(_message_turn(_ROLES[kind], step, index))
        elif kind in _CALLS:
            for one in _parts(step, "tool_calls", "calls"):
                _add_call(turns, _call(one, index))
        elif kind in _RESULTS:
            for one in _parts(step, "tool_results", "results"):
                _add_result(turns, one, index)
        elif unknown == "raise":
            raise _fault(index, f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}. Leave it out, or skip them")
    return close_dangling([message for turn in turns for message in _messages(turn)])


def _message_turn(role: Role, step: Any, index: int) -> _Turn:
    turn = _Turn(role, _content(_get(step, "content", "text"), index))
    if role is Role.ASSISTANT:
        listed = [block for block in turn.content if isinstance(block, ToolUseBlock)]
        turn.content = [block for block in turn.content if not isinstance(block, ToolUseBlock)]
        listed += [_call(one, index) for one in _get(step, "tool_calls") or ()]
        turn.calls = [_Call(block, listed=True) for block in listed]
    return turn


def _add_call(turns: list[_Turn], block: ToolUseBlock) -> None:
    last = turns[-1] if turns else None
    if last is not None and last.role is Role.ASSISTANT:
        for call in last.calls:
            if call.listed and call.block.call_id == block.call_id:
                call.listed = False
                return
        if not last.closed:
            last.calls.append(_Call(block))
            return
    turns.append(_Turn(Role.ASSISTANT, [], [_Call(block)]))


def _add_result(turns: list[_Turn], step: Any, index: int) -> None:
    """Add the result to the latest call with that id; without an id, to the oldest call of the turn without a
    result."""
    call_id = _get(step, "call_id", "tool_call_id")
    for turn in reversed(turns):
        for call in turn.calls:
            if call.result is None and call_id in (None, "", call.block.call_id):
                content = _content(_get(step, "content", "result", "output", "text"), index)
                failed = bool(_get(step, "is_error"))
                call.result = ToolResultBlock(call_id=call.block.call_id, content=content, is_error=failed)
                turn.closed = True
                return


def _messages(turn: _Turn) -> list[ChatMessage]:
    if not turn.content and not turn.calls:
        return []  # providers refuse an empty message
    message = ChatMessage(role=turn.role, content=[*turn.content, *(call.block for call in turn.calls)])
    results: list[ContentBlock] = [call.result for call in turn.calls if call.result is not None]
    return [message, ChatMessage(role=Role.TOOL, content=results)] if results else [message]


def _call(step: Any, index: int) -> ToolUseBlock:
    if isinstance(step, ToolUseBlock):
        return step
    function = _get(step, "function") or step  # as OpenAI's API nests it
    name = _get(function, "tool_name", "name")
    if not isinstance(name, str) or not name:
        raise _fault(index, "a tool call has no tool_name")
    call_id = str(_get(step, "call_id", "tool_call_id", "id") or f"call_{index}")
    return ToolUseBlock(tool_name=name, arguments=_arguments(_get(function, "arguments", "args")), call_id=call_id)


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            read = json.loads(value or "{}")
        except ValueError:
            read = None
        value = read if isinstance(read, dict) else {INVALID_ARGUMENTS_KEY: value}  # the text of the model
    return dict(value) if isinstance(value, Mapping) else {}


def _content(value: Any, index: int) -> list[ContentBlock]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [TextBlock(text=value)]
    if isinstance(value, Block):
        return [value]  # type: ignore[list-item]
    if isinstance(value, list) and all(isinstance(item, Block) or _is_block(item) for item in value):
        try:
            return blocks_adapter.validate_python(value)
        except ValidationError as error:
            raise _fault(index, f"content is not a list of blocks: {error.errors()[0]['msg']}") from None
    return [TextBlock(text=to_json(value, fallback=str).decode())]


def _is_block(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("type"), str)


def _parts(step: Any, *names: str) -> list[Any]:
    """The calls or results that a row lists, or the row itself."""
    parts = _get(step, *names)
    return list(parts) if isinstance(parts, list | tuple) else [step]


def _get(step: Any, *names: str) -> Any:
    """The first of these values in the row or its payload."""
    for holder in (step, *(_plain(step, inner) for inner in ("payload", "data"))):
        for name in names:
            if (value := _plain(holder, name)) is not None:
                return value
    return None


def _plain(step: Any, name: str) -> Any:
    return step.get(name) if isinstance(step, Mapping) else getattr(step, name, None)


def _fault(index: int, detail: str) -> InvalidInputError:
    return InvalidInputError(f"steps.{index}: {detail}", field=f"steps.{index}")
