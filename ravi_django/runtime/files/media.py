"""The images, recordings, videos and documents of a model call: chosen within its bounds, then loaded."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections

from ravi_django.kernel import ChatMessage, ContentBlock, ModelError, TextBlock, ToolResultBlock, TransientError
from ravi_django.kernel.content import Media, MediaBlock
from ravi_django.models import RaviFile, Run
from ravi_django.runtime.files.files import MB, max_bytes, rows_of

log = logging.getLogger("ravi.files")

CALL_MEDIA = 100  # that one model call sends
CALL_BYTES = 50 * MB  # of them: files, inline data, and what litellm downloads
ADDRESS_BYTES = 5 * MB  # that litellm downloads from one address, at most: see capabilities/llm/loading.py

# Measured with litellm: of its media a call holds the base64 text, the data URL and the copies of the client.
_COPIES_OF_MEDIA, _COPIES_OF_TEXT = 5, 3


def call_bytes() -> int:
    """The bytes of media that a call sends, at most."""
    return max(CALL_BYTES, max_bytes())


def largest_call() -> int:
    """The bytes of this process that a call with the most media holds."""
    return _COPIES_OF_MEDIA * call_bytes()


@dataclass(frozen=True, slots=True)
class CallMedia:
    """The messages of a call, with the newest media that fit, and the older ones as text."""

    messages: Sequence[ChatMessage]  # their files have no content yet
    files: dict[str, RaviFile]  # by the name in the messages
    size: int = 0  # bytes of all media

    def held(self, text: int) -> int:
        """The bytes of this process that the call holds, with so many of text."""
        return _COPIES_OF_MEDIA * self.size + _COPIES_OF_TEXT * text


def choose(messages: Sequence[ChatMessage], run: Run, address_bytes: int) -> CallMedia:
    """Choose the media of a call. Each address counts `address_bytes`. Called on a thread of the tools. Raises
    ModelError for a file that was deleted or that the run's owner may not use, TransientError if the database fails."""
    names = {name for message in messages if message.has_media for name in message.files}
    chosen = _Chosen(_reading(run, lambda: rows_of(names, run.owner)) if names else {}, address_bytes)
    return CallMedia(_changed(messages, chosen.block), chosen.files, call_bytes() - chosen.left)


def load(call: CallMedia, run: Run) -> list[ChatMessage]:
    """The messages with the content of their files, equal files once. Called on a thread of the tools: a storage may
    be slow. Raises ModelError for a file that was deleted, TransientError if the storage fails."""
    contents: dict[str, str] = {}  # base64 by SHA-256

    def block(block: Media) -> ContentBlock:
        if not block.file:
            return block
        row = call.files[block.file]
        if row.sha256 not in contents:
            contents[row.sha256] = _content(block.file, row)
        return block.model_copy(update={"data": contents[row.sha256]})

    messages: list[ChatMessage] = _reading(run, lambda: _changed(call.messages, block))
    return messages


def _reading(run: Run, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ModelError:
        raise
    except Exception as error:
        log.exception("files of run %s cannot be read", run.id, extra={"action": "files.unreadable"})
        raise TransientError("the storage of files failed", type=type(error).__name__) from None
    finally:
        connections.close_all()  # the thread lives long


class _Chosen:
    """Counts the media, the newest first. Media beyond the bounds become text with their name or address."""

    def __init__(self, files: dict[str, RaviFile], address_bytes: int) -> None:
        self.files, self.left = files, call_bytes()
        self._number, self._address_bytes = CALL_MEDIA, address_bytes

    def block(self, block: Media) -> ContentBlock:
        row = self.files.get(block.file or "")
        if block.file and row is None:
            raise _gone(block.file)
        inline = block.data or (block.url if block.url and block.url.startswith("data:") else "") or ""
        size = row.size if row else len(inline) * 3 // 4 if inline or not block.url else self._address_bytes
        if fits := self._number > 0 and size <= self.left:
            self._number -= 1
            self.left -= size
        if row is not None:
            name = block.file if fits else None
            return block.model_copy(update={"file": name, "url": None, "data": None, "name": row.name})
        return block if fits or not (block.url or block.data) else _as_text(block)


def _as_text(block: Media) -> TextBlock:
    address = "" if (block.url or "").startswith("data:") else block.url
    described = getattr(block, "transcript", None) or getattr(block, "alt", None) or block.name or address or "inline"
    reason = f"a model call has at most {CALL_MEDIA} of them and {call_bytes() // MB} MB"
    return TextBlock(text=f"[{block.type}: {described}; not sent: {reason}]")


def _changed(messages: Sequence[ChatMessage], change: Callable[[Media], ContentBlock]) -> list[ChatMessage]:
    """The messages with changed media, also in tool results; the newest is changed first."""
    return [
        message.model_copy(update={"content": _blocks(message.content, change)}) if message.has_media else message
        for message in reversed(messages)
    ][::-1]


def _blocks(blocks: Sequence[ContentBlock], change: Callable[[Media], ContentBlock]) -> list[ContentBlock]:
    changed: list[ContentBlock] = []
    for block in reversed(blocks):
        if isinstance(block, ToolResultBlock):
            block = block.model_copy(update={"content": _blocks(block.content, change)})
        changed.append(change(block) if isinstance(block, MediaBlock) else block)
    return changed[::-1]


def _content(name: str, row: RaviFile) -> str:
    try:
        with row.content.open("rb") as file:
            return base64.b64encode(file.read()).decode()
    except FileNotFoundError:
        raise _gone(name) from None


def _gone(name: str) -> ModelError:
    words = f"file {name} was deleted, or belongs to another user: upload it again, in a new conversation"
    return ModelError(words, type="FileNotFoundError")
