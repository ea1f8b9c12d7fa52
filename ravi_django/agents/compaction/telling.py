"""A conversation as plain text, for a model to read about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_core import to_json

from ravi_django.kernel import ChatMessage, ToolResultBlock, ToolUseBlock

MOST_CHARS = 4_000  # of a message
LEAST_CHARS = 200


def as_text(messages: Sequence[ChatMessage], max_chars: int) -> str:
    """A paragraph a message. Long messages are cut, in the end the oldest go, until there are `max_chars`
    characters."""
    most = MOST_CHARS
    parts = [_told(message) for message in messages]
    while sum(min(len(part), most) for part in parts) > max_chars and most > LEAST_CHARS:
        most //= 2
    text = "\n\n".join(part if len(part) <= most else f"{part[:most]}…" for part in parts)
    return text if len(text) <= max_chars else f"…{text[-max_chars:]}"


def _told(message: ChatMessage) -> str:
    return "\n".join(_lines(message))


def _lines(message: ChatMessage) -> Iterable[str]:
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    if results:
        for block in results:
            yield f"tool {'error' if block.is_error else 'result'}: {block.text}"
        return
    if text := message.text:
        yield f"{message.role.value}: {text}"
    for call in message.content:
        if isinstance(call, ToolUseBlock):
            yield f"{message.role.value} calls {call.tool_name}: {to_json(call.arguments).decode()}"
