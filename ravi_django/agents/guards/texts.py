"""A message with every text in it changed: blocks, and the JSON that they carry, walked to the leaves."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from ravi_django.kernel import (
    AudioBlock,
    CodeBlock,
    ContentBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UIResourceBlock,
    UnknownBlock,
    VideoBlock,
)

Change = Callable[[str], Any]  # of a text; the same object back changes nothing

_FIELDS: dict[type[Any], tuple[str, ...]] = {
    TextBlock: ("text",),
    CodeBlock: ("code",),
    DataBlock: ("data",),
    ErrorBlock: ("message", "details"),
    ImageBlock: ("alt",),
    AudioBlock: ("transcript",),
    VideoBlock: (),
    DocumentBlock: ("name",),
    ToolUseBlock: ("arguments",),
    UIResourceBlock: ("uri", "text"),
}
_MIN_NUMBER = 10**8  # a number of fewer digits is nobody's


def change_blocks(blocks: Sequence[ContentBlock], change: Change, *, answer: bool = False) -> list[ContentBlock]:
    """The blocks with every text changed; one that nothing changes in is given back as it is.

    `answer`: they are a model's, so its thinking stays as it came. Signed thinking always does: the provider checks it.
    """
    return [_block(block, change, answer) for block in blocks]


def _block(block: Any, change: Change, answer: bool) -> Any:
    if isinstance(block, ThinkingBlock):
        return block if answer or block.signature else _with(block, text=_text(block.text, change))
    if isinstance(block, ToolResultBlock):
        content = change_blocks(block.content, change, answer=answer)
        return _with(block, content=content) if _differs(content, block.content) else block
    if isinstance(block, UnknownBlock):
        if block.type == "redacted_thinking":
            return block
        extra = dict(block.model_extra or {})
        changed = change_json(extra, change)
        return block if changed is extra else UnknownBlock.model_validate({"type": block.type, **changed})
    changes = {name: change_json(getattr(block, name), change) for name in _FIELDS.get(type(block), ())}
    if isinstance(block, DocumentBlock):
        changes["data"] = _document(block, change)
    return _with(block, **changes)


def _with(block: BaseModel, **changes: Any) -> BaseModel:
    changes = {name: value for name, value in changes.items() if value is not getattr(block, name)}
    return block.model_copy(update=changes) if changes else block


def _differs(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(a is not b for a, b in zip(one, other, strict=True))


def _document(block: DocumentBlock, change: Change) -> str | None:
    """A document of plain text is sent as its text; any other is bytes, and stays what it is."""
    kind = block.mime_type or ""
    if block.data is None or not (kind.startswith("text/") or kind == "application/json"):
        return block.data
    try:
        text = base64.b64decode(block.data).decode()
    except (binascii.Error, ValueError):
        return block.data
    changed = _text(text, change)
    return block.data if changed is text else base64.b64encode(changed.encode()).decode()


def change_json(value: Any, change: Change) -> Any:
    """The JSON value with its texts, its keys and its long numbers changed; itself when nothing is."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _MIN_NUMBER:
        shown = str(value)
        changed = change(shown)
        return value if changed is shown else changed
    if isinstance(value, dict):
        pairs = [(_text(key, change), change_json(item, change)) for key, item in value.items()]
        same = all(key is old and item is value[old] for (key, item), old in zip(pairs, value, strict=True))
        return value if same else dict(pairs)
    if isinstance(value, list):
        items = [change_json(item, change) for item in value]
        return items if _differs(items, value) else value
    return value


def _text(text: str, change: Change) -> str:
    changed = change(text)
    return changed if isinstance(changed, str) else str(changed)
