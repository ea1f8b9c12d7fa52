"""A tool's result as content blocks that every row, provider and client can hold.

A value that is not JSON is an error of the tool, but an effect that has happened must not look undone because of its
result: see `happened`. Of a result that is too big the model sees the beginning and a marker, and the whole goes to a
Blob. The row's digests name the blob, so the prune keeps it with the row, and a fork has it too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from ravi_django.agents.react.calls import asks_for
from ravi_django.calls.llm.errors import redact
from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry, NotJson, encode, listed, make_text_blob, plain
from ravi_django.kernel.content import (
    Block,
    CodeBlock,
    ContentBlock,
    DataBlock,
    ErrorBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UIResourceBlock,
    blocks_adapter,
    blocks_json,
    text_of,
)
from ravi_django.kernel.flow import FinishAgentResult
from ravi_django.kernel.json_values import parsed, storable
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, Tool, is_too_deep
from ravi_django.runs.files.contents import fitted_block

_SMALL = 200  # parts of a value
_PLAIN = (str, int, float, bool, type(None))

log = logging.getLogger("ravi.tools")


def error(text: str) -> ToolExecutionResult:
    """An error for the model and the run's owner, without keys and passwords."""
    return ToolExecutionResult(content=[TextBlock(text=storable(redact(text)))], is_error=True)


def is_small(value: Any) -> bool:
    """Whether the conversion takes no time: plain JSON, and little of it. Other values are converted on threads."""
    room = 16_000  # characters
    left, seen = [value], 0
    while left:
        part = left.pop()
        seen += 1
        if type(part) in (list, dict) and len(part) <= _SMALL:
            left += part if type(part) is list else [*part, *part.values()]
        elif type(part) is str:
            room -= len(part)
        elif type(part) is TextBlock and type(text := getattr(part, "text", None)) is str:
            room -= len(text)
        elif type(part) is int:
            room -= part.bit_length() // 3
        elif type(part) not in _PLAIN:
            return False
        if seen > _SMALL or room < 0:
            return False
    return True


def result_of(value: Any) -> ToolExecutionResult:
    """A return value as a result. Text stays text; JSON values, models and querysets of values become JSON text. Raises
    NotJson."""
    try:
        return _result_of(value)
    except Exception as raised:
        raise NotJson(value, raised) from raised


def happened(name: str, value: Any) -> ToolExecutionResult:
    """The result of an effect that has happened, whatever was returned. `value` may be the NotJson that says so."""
    try:
        if isinstance(value, NotJson):
            raise value
        return result_of(value)
    except NotJson as raised:
        log.error("%s has happened, but %s", name, raised, extra={"action": "tool.not_json"})
        return ToolExecutionResult(content=[TextBlock(text=f"done; {raised.fault}")])


def _result_of(value: Any) -> ToolExecutionResult:
    if isinstance(value, ToolExecutionResult):
        converted = _content(list(value.content))
        finish = value.finish if isinstance(value.finish, FinishAgentResult) else None
        is_error = value.is_error or converted.is_error
        more = {"is_error": is_error, "board": value.board, "finish": finish, "hidden": value.hidden}
        return converted.model_copy(update=more)
    if isinstance(value, FinishAgentResult):
        block = TextBlock(text=storable(asks_for(value.target)))
        return ToolExecutionResult(content=[block], finish=value)
    if isinstance(value, Block):
        return _content([value])
    if isinstance(value, list | tuple) and any(isinstance(item, Block) for item in value):
        return _content(list(value))
    return ToolExecutionResult(content=[TextBlock(text=_text(value))])


def _content(items: list[Any]) -> ToolExecutionResult:
    blocks = [block for item in items for block in _blocks(item)]
    failed = any(isinstance(item, ErrorBlock) or getattr(item, "is_error", False) for item in items)
    return ToolExecutionResult(content=blocks, is_error=failed)


def _blocks(item: Any) -> list[ContentBlock]:
    """Blocks that a message may have inside a tool's result: a model's own turns become data and text."""
    match item:
        case TextBlock() | ThinkingBlock():
            return [TextBlock(text=storable(str(item.text)))]
        case ToolResultBlock():
            return [block for inner in item.content for block in _blocks(inner)]
        case ToolUseBlock():
            return [_checked(DataBlock(data=item.model_dump(warnings=False, exclude={"hidden", "origin"})))]
        case MediaBlock():  # an image leaves room for texts beside it
            return [fitted_block(_checked(item), conf.MAX_RESULT_BYTES * 3 // 4)]
        case Block():
            return [_checked(item)]
    return [TextBlock(text=_text(item))]


def _checked(block: Block) -> ContentBlock:
    """The block as it comes back from a row. Values in it become JSON."""
    body = parsed(_json(block.model_dump(warnings=False), bytes_mode="base64"))
    if is_too_deep(body):
        raise ValueError(f"it is nested more than {MAX_ARGUMENTS_DEPTH} deep")
    return blocks_adapter.validate_python([body])[0]


def _json(value: Any, **options: Any) -> bytes:
    return encode(to_jsonable_python(value, fallback=plain, **options))  # the copy reads each iterator inside once


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return str(storable(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value))
    if isinstance(value, Iterator):
        value = listed(value)
    return _json(value).decode()


def _bytes_text(body: bytes) -> str:
    try:
        return str(storable(body.decode()))
    except UnicodeDecodeError:
        return f"[{len(body)} bytes that are no text]"


WHOLE = "whole"  # in a row's result {"blob", "size"}, and among its digests
READER = "read_result"
BLOB_BYTES = 64 * 1024 * 1024  # stored of a result that is too large to show; the rest is dropped


def limit_of(tool: Tool | None) -> int:
    """The bytes of a result that the model is shown."""
    site = int(conf.MAX_RESULT_BYTES)
    return site if tool is None or tool.max_result_bytes is None else min(site, tool.max_result_bytes)


def fit(entry: Entry, result: ToolExecutionResult, limit: int, *, id: str = "") -> ToolExecutionResult:
    """The part of the result that the model is shown; if that is not all, the entry gets the whole as a blob.
    `id`: by which the agent's tool reads on, if it has that tool. Slow for many megabytes: not for the event loop."""
    sizes = [_size(block) for block in result.content]
    if sum(sizes) <= limit:
        return result
    texts = [_block_text(block) for block in result.content]
    textual = all(text is not None for text in texts)
    body, is_all = _whole(result, textual)
    blob = make_text_blob(body)
    entry.blobs = [blob]
    entry.digests = {**(entry.digests or {}), WHOLE: blob.id}
    fitting, offset = _fitting(result.content, sizes, limit)
    marker = _marker(len(body), offset if textual else None, is_all, id)
    if fitting and isinstance(fitting[-1], TextBlock):
        fitting[-1] = TextBlock(text=f"{fitting[-1].text}\n{marker}")
    else:
        fitting.append(TextBlock(text=marker))
    return result.model_copy(update={"content": fitting})


def whole_as_json(entry: Entry) -> dict[str, Any] | None:
    """The reference to the whole in the row's result."""
    return {"blob": entry.blobs[0].id, "size": entry.blobs[0].size} if entry.blobs else None


def _whole(result: ToolExecutionResult, textual: bool) -> tuple[bytes, bool]:
    """The whole as text, up to the limit of a blob, and whether it is all; blocks without text as JSON."""
    most = BLOB_BYTES
    if textual and len(result.content) == 1:
        text = _block_text(result.content[0]) or ""
    elif textual:
        text = text_of(result.content)
    else:
        text = to_json(blocks_json(result.content)).decode()
    body = text[: most + 1].encode(errors="replace")
    return (body, True) if len(body) <= most else (body[:most].decode(errors="ignore").encode(), False)


def _fitting(blocks: list[ContentBlock], sizes: list[int], limit: int) -> tuple[list[ContentBlock], int]:
    """The first blocks that fit, and the bytes of their text."""
    fitting: list[ContentBlock] = []
    room, offset = limit, 0
    for block, size in zip(blocks, sizes, strict=True):
        text = _block_text(block)
        if size <= room:
            fitting.append(block)
            room -= size
            offset += len((text or "").encode(errors="replace")) + (1 if text else 0)  # and the line end
            continue
        if text is None and room > 0:  # a picture cannot be cut
            note = f"[{block.type}, {size} bytes: too big to be shown]"
            fitting.append(TextBlock(text=note))
            room -= len(note)
            continue
        part = (text or "")[: max(0, room)].encode(errors="replace")[: max(0, room)].decode(errors="ignore")
        offset += len(part.encode())
        fitting.append(TextBlock(text=part))
        break
    return fitting, offset


def _marker(size: int, offset: int | None, is_all: bool, id: str) -> str:
    if not is_all:
        note = f"[cut here: the whole has more than {size} bytes, of which the first {size} were kept"
    elif offset is None:
        note = f"[cut here: the whole has {size} bytes"
    else:
        note = f"[cut here: {size - offset} of {size} bytes left out"
    if id:
        note += f'; read on with {READER}(id="{id}", offset={offset or 0})'
    return f"{note}]"


def _block_text(block: ContentBlock) -> str | None:
    """The block's text; None for a block that cannot be cut."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, CodeBlock | DataBlock | ErrorBlock):
        return text_of([block])
    return block.text if isinstance(block, UIResourceBlock) and block.data is None else None


def _size(block: ContentBlock) -> int:
    if isinstance(block, TextBlock):
        return len(block.text) if block.text.isascii() else len(block.text.encode(errors="replace"))
    data = getattr(block, "data", None)
    if isinstance(data, str) and block.type != "data":
        return len(data)
    return len(to_json(block, fallback=str))
