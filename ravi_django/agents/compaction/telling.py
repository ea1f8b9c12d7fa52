"""A conversation as plain text, for a model to read about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_core import to_json

from ravi_django.kernel import ChatMessage, ToolResultBlock, ToolUseBlock

MOST_CHARS = 4_000  # of a message
LEAST_CHARS = 200


def as_text(messages: Sequence[ChatMessage], max_bytes: int) -> str:
    """A paragraph a message. Long messages are cut, in the end the oldest go, until there are `max_bytes` bytes of
    UTF-8."""
    most = MOST_CHARS
    parts = [_told(message) for message in messages]
    while sum(len(part[:most].encode("utf-8", "replace")) for part in parts) > max_bytes and most > LEAST_CHARS:
        most //= 2
    return last_bytes("\n\n".join(part if len(part) <= most else f"{part[:most]}…" for part in parts), max_bytes)


def last_bytes(text: str, most: int) -> str:
    """The end of a text, in at most `most` bytes of UTF-8, with a mark where it was cut."""
    body = text.encode("utf-8", "replace")
    if len(body) <= most:
        return text
    room = max(0, most - len("…".encode()))
    return "…" + body[len(body) - room :].decode("utf-8", "ignore")


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
