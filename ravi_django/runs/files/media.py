"""The images, recordings, videos and documents of a model call: chosen within its bounds, then loaded."""

from __future__ import annotations

import base64
import logging
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections

from ravi_django.kernel import ChatMessage, ContentBlock, ModelError, Role, TextBlock, ToolResultBlock, TransientError
from ravi_django.kernel.content import Media, MediaBlock, media_of
from ravi_django.models import RaviFile, Run
from ravi_django.runs.files.files import MB, max_bytes, rows_of

log = logging.getLogger("ravi.files")

CALL_MEDIA = 100  # that one model call sends
CALL_BYTES = 15 * MB  # of them: files and inline data; 20 MB as base64, the least that a provider accepts
CALL_PAGES = 100  # of its PDFs
CALL_ADDRESSES = 10  # that litellm downloads
ADDRESS_BYTES = 5 * MB  # that it downloads from one address, at most: see calls/llm/loading.py

# Measured with litellm: of its media a call holds the base64 text, the data URL and the copies of the client.
_COPIES_OF_MEDIA, _COPIES_OF_TEXT = 5, 3


def largest_call() -> int:
    """The bytes of this process that a call with the most media holds."""
    return _COPIES_OF_MEDIA * max(CALL_BYTES, CALL_ADDRESSES * ADDRESS_BYTES, max_bytes())


@dataclass(frozen=True, slots=True)
class CallMedia:
    """The messages of a call, with the newest media that fit, and the other ones as text."""

    messages: Sequence[ChatMessage]  # their files have no content yet
    files: dict[str, RaviFile]  # by the name in the messages
    size: int = 0  # bytes of all media
    refused: Mapping[str, bool] = field(default_factory=dict)  # media left out for the model, and whether it is sure

    def held(self, text: int) -> int:
        """The bytes of this process that the call holds, with so many of text."""
        return _COPIES_OF_MEDIA * self.size + _COPIES_OF_TEXT * text


def choose(messages: Sequence[ChatMessage], run: Run, model: str, address_bytes: int) -> CallMedia:
    """Choose the media of a call of `model`. Each address counts `address_bytes`. Called on a thread of the tools.
    Raises ModelError for a file that was deleted or that the run's owner may not use, TransientError if the database
    fails."""
    names = {name for message in messages if message.has_media for name in message.files}
    files = _reading(run, lambda: rows_of(names, run.owner)) if names else {}
    costs: list[_Cost | None] = []  # of each medium; None: the model has refused it
    for number, message in enumerate(messages):
        for block in media_of(message.content) if message.has_media else ():
            row = files.get(block.file or "")
            if block.file and row is None:
                raise _gone(block.file)
            is_refused = (model, _key(block)) in _refused or (row is not None and model in row.refused_by)
            costs.append(None if is_refused else _cost(number, block, row, address_bytes))
    first = _first([cost for cost in costs if cost is not None])
    reason = f"a model call has at most {CALL_MEDIA} of them, {CALL_BYTES * 4 // 3 // MB} MB and {CALL_PAGES} pages"
    left, size = iter(costs), 0

    def chosen(block: Media) -> ContentBlock:
        nonlocal first, size
        cost, row = next(left), files.get(block.file or "")
        if cost is None:
            return _as_text(block, REFUSED, row)
        first -= 1
        if first >= 0:
            return _as_text(block, reason, row) if row or block.url or block.data else block
        size += cost.held
        return block.model_copy(update={"url": None, "data": None, "name": row.name}) if row else block

    return CallMedia(_changed(messages, chosen), files, size)


def without_refused(call: CallMedia, error: ModelError) -> CallMedia | None:
    """The call without the media for which its model may have refused it; None if it was something else. These are the
    media since the model's last answer, which it has not accepted yet; then all, if the error is about media."""
    if error.status not in (400, 413) or "ContextWindow" in error.type:
        return None
    text = str(error).lower()
    kinds = {kind for kind, pattern in _KINDS.items() if re.search(pattern, text)}
    answers = [at for at, message in enumerate(call.messages) if message.role is Role.ASSISTANT]
    since = answers[-1] + 1 if answers else 0
    if media := _sent(call.messages[since:], kinds):
        return _without(call, dict.fromkeys(media, True))
    is_named = kinds or error.status == 413 or _SIZE.search(text)
    media = _sent(call.messages, kinds) if is_named else set()
    return _without(call, dict.fromkeys(media, False)) if media else None


def _sent(messages: Sequence[ChatMessage], kinds: Collection[str]) -> set[str]:
    media = (block for message in messages for block in media_of(message.content))
    return {_key(block) for block in media if not kinds or block.type in kinds} - {""}


def _without(call: CallMedia, refused: Mapping[str, bool]) -> CallMedia:
    messages = _named(call.messages, call.files, refused)
    return replace(call, messages=messages, refused={**call.refused, **refused})


def _named(
    messages: Sequence[ChatMessage], files: Mapping[str, RaviFile], refused: Collection[str]
) -> list[ChatMessage]:
    def changed(block: Media) -> ContentBlock:
        return _as_text(block, REFUSED, files.get(block.file or "")) if _key(block) in refused else block

    return _changed(messages, changed)


def view_for(files: Mapping[str, RaviFile], model: str, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The messages without the media that a fallback has refused in an earlier call."""
    refused = {key for key, row in files.items() if model in row.refused_by}
    refused |= {key for name, key in _refused if name == model}
    return _named(messages, files, refused) if refused else messages


def remember(call: CallMedia, model: str) -> None:
    """`model` has accepted the call without some media: it does not get them again. Called on a thread of the tools."""
    try:
        for key, is_sure in call.refused.items():
            log.warning("model %s refused %s", model, key[:60], extra={"action": "files.refused"})
            if is_sure and (row := call.files.get(key)) is not None:
                row.refused_by = [*row.refused_by, model]
                row.save(update_fields=["refused_by"])
                continue
            if len(_refused) >= 1_000:
                _refused.clear()
            _refused.add((model, key))
    except Exception:
        log.exception("what model %s refused is not stored", model, extra={"action": "files.unmarked"})
    finally:
        connections.close_all()


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


REFUSED = "the model refused it"
_KINDS = {"image": "image", "document": "document|pdf", "audio": "audio", "video": "video"}
_SIZE = re.compile("too (?:large|big)|exceed|size")
_refused: set[tuple[str, str]] = set()  # by this process: models, and media that they do not get again


def _key(block: Media) -> str:
    """The medium's identity; empty if it is sent as text anyway."""
    return block.file or block.url or (str(hash(block.data)) if block.data else "")


@dataclass(frozen=True, slots=True)
class _Cost:
    message: int  # its position
    used: tuple[int, int, int]  # media, bytes and pages
    held: int  # bytes of this process


def _cost(message: int, block: Media, row: RaviFile | None, address_bytes: int) -> _Cost:
    inline = block.data or (block.url if block.url and block.url.startswith("data:") else "") or ""
    if row is None and not inline and block.url:  # its size is unknown
        return _Cost(message, (1, CALL_BYTES // CALL_ADDRESSES if address_bytes else 0, 0), address_bytes)
    size = row.size if row else len(inline) * 3 // 4
    return _Cost(message, (1, size, (row.pages or 0) if row else 0), size)


def _first(costs: Sequence[_Cost]) -> int:
    """The index of the first medium that is sent; the newest always is. When they are over a limit, those of older
    messages are dropped until half of it is used: the beginning of the conversation stays in the provider's cache."""
    first, used = 0, (0, 0, 0)

    def is_over(part: int) -> bool:
        return any(n > most // part for n, most in zip(used, (CALL_MEDIA, CALL_BYTES, CALL_PAGES), strict=True))

    for index, cost in enumerate(costs):
        used = tuple(map(operator.add, used, cost.used))
        was_over = is_over(1)
        while was_over and first < index and is_over(1 if costs[first].message == cost.message else 2):
            used = tuple(map(operator.sub, used, costs[first].used))
            first += 1
    return first


def _as_text(block: Media, reason: str, row: RaviFile | None) -> TextBlock:
    address = "" if (block.url or "").startswith("data:") else block.url
    name = (row.name if row else block.name) or address or "inline"
    label = getattr(block, "transcript", None) or getattr(block, "alt", None) or name
    return TextBlock(text=f"[{block.type}: {label}; not sent: {reason}]")


def _changed(messages: Sequence[ChatMessage], change: Callable[[Media], ContentBlock]) -> list[ChatMessage]:
    """The messages with changed media, also in tool results, in the order of `media_of`."""
    return [
        message.model_copy(update={"content": _blocks(message.content, change)}) if message.has_media else message
        for message in messages
    ]


def _blocks(blocks: Sequence[ContentBlock], change: Callable[[Media], ContentBlock]) -> list[ContentBlock]:
    changed: list[ContentBlock] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            block = block.model_copy(update={"content": _blocks(block.content, change)})
        changed.append(change(block) if isinstance(block, MediaBlock) else block)
    return changed


def _content(name: str, row: RaviFile) -> str:
    try:
        with row.content.open("rb") as file:
            return base64.b64encode(file.read()).decode()
    except FileNotFoundError:
        raise _gone(name) from None


def _gone(name: str) -> ModelError:
    message = f"file {name} was deleted, or belongs to another user: upload it again, in a new conversation"
    return ModelError(message, type="FileNotFoundError")
