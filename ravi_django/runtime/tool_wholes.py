"""Results that are too big to be shown: the model sees the beginning with a marker, the whole goes to a Blob.

The row's digests name the blob, so the prune leaves it as long as the row lives, and a fork's copy of the row has it.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import (
    CodeBlock,
    ContentBlock,
    DataBlock,
    ErrorBlock,
    TextBlock,
    Tool,
    ToolExecutionResult,
    UIResourceBlock,
)
from ravi_django.kernel.content import blocks_json, text_of
from ravi_django.runtime.entries import Entry, make_text_blob

WHOLE = "whole"  # in a row's result {"blob", "size"}, and among its digests
READER = "read_result"
_NEVER = 20_000  # characters of text that never are too many, whatever they weigh


def limit_of(tool: Tool | None) -> int:
    """Bytes of a result that the model is shown."""
    site = int(conf.MAX_RESULT_BYTES)
    return site if tool is None or tool.max_result_bytes is None else min(site, tool.max_result_bytes)


def is_surely_small(result: ToolExecutionResult, limit: int) -> bool:
    """Without encoding anything: four bytes a character are the most."""
    texts = [block.text for block in result.content if type(block) is TextBlock]
    return len(texts) == len(result.content) and sum(map(len, texts)) * 4 <= min(limit, _NEVER * 4)


def fit(entry: Entry, result: ToolExecutionResult, limit: int, *, readable: bool) -> ToolExecutionResult:
    """The result as the model is shown it; where that is not all, the entry gets the whole as a blob. `readable` says
    that the agent has the tool to read on. May take a while for many megabytes: not for the event loop."""
    sizes = [_size(block) for block in result.content]
    if sum(sizes) <= limit:
        return result
    texts = [_words(block) for block in result.content]
    textual = all(text is not None for text in texts)
    body, is_all = _whole(result, textual)
    blob = make_text_blob(body)
    entry.blobs = [blob]
    entry.digests = {WHOLE: blob.id}
    shown, offset = _shown(result.content, sizes, limit)
    marker = _marker(len(body), offset if textual else None, is_all, str(entry.id) if readable else "")
    if shown and isinstance(shown[-1], TextBlock):
        shown[-1] = TextBlock(text=f"{shown[-1].text}\n{marker}")
    else:
        shown.append(TextBlock(text=marker))
    return result.model_copy(update={"content": shown})


def described(entry: Entry) -> dict[str, Any] | None:
    """What the row's result says of the whole."""
    return {"blob": entry.blobs[0].id, "size": entry.blobs[0].size} if entry.blobs else None


def _whole(result: ToolExecutionResult, textual: bool) -> tuple[bytes, bool]:
    """All of it as text, as far as a blob may go: what is no text, as JSON."""
    most = int(conf.MAX_BLOB_BYTES)
    if textual and len(result.content) == 1:
        text = _words(result.content[0]) or ""
    elif textual:
        text = text_of(result.content)
    else:
        text = to_json(blocks_json(result.content)).decode()
    body = text[: most + 1].encode(errors="replace")
    return (body, True) if len(body) <= most else (body[:most].decode(errors="ignore").encode(), False)


def _shown(blocks: list[ContentBlock], sizes: list[int], limit: int) -> tuple[list[ContentBlock], int]:
    """The first blocks, as far as there is room, and how many bytes of text those are."""
    shown: list[ContentBlock] = []
    room, offset = limit, 0
    for block, size in zip(blocks, sizes, strict=True):
        text = _words(block)
        if size <= room:
            shown.append(block)
            room -= size
            offset += len((text or "").encode(errors="replace")) + (1 if text else 0)  # and the line's end
            continue
        if text is None and room > 0:  # half of a picture is none
            told = f"[{block.type}, {size} bytes: too big to be shown]"
            shown.append(TextBlock(text=told))
            room -= len(told)
            continue
        part = (text or "")[: max(0, room)].encode(errors="replace")[: max(0, room)].decode(errors="ignore")
        offset += len(part.encode())
        shown.append(TextBlock(text=part))
        break
    return shown, offset


def _marker(size: int, offset: int | None, is_all: bool, entry_id: str) -> str:
    if not is_all:
        told = f"[cut here: the whole has more than {size} bytes, of which the first {size} were kept"
    elif offset is None:
        told = f"[cut here: the whole has {size} bytes"
    else:
        told = f"[cut here: {size - offset} of {size} bytes left out"
    if entry_id:
        told += f'; read on with {READER}(id="{entry_id}", offset={offset or 0})'
    return f"{told}]"


def _words(block: ContentBlock) -> str | None:
    """The block's text; None for what cannot be cut."""
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
