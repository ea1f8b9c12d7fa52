"""Source adapters: a site's code that polls services without a feed (X, Slack, mailboxes). Also the result and the
error of every poll."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic_core import to_json

from ravi_django.kernel.errors import InputTooLargeError, InvalidInputError
from ravi_django.kernel.json_values import digest_of

ID_LENGTH = 500
TITLE_LENGTH = 500
URL_LENGTH = 2000
TEXT_LENGTH = 20_000
EXTRA_BYTES = 64 * 1024
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_WEB = re.compile(r"https?://[^\s\x00-\x20\x7f<>\"]+\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Item:
    """One new thing that an agent gets from a source. Texts are plain, without markup or control characters, and cut at
    their limits.

    Raises ValueError when `extra` is not a JSON object or has more than 64 KiB.
    """

    id: str = ""  # the source's own id, the same after edits
    title: str = ""  # one line, at most 500 characters
    url: str = ""  # http or https; any other is dropped
    text: str = ""  # at most 20,000 characters
    published: str = ""  # ISO 8601, UTC; empty: unknown
    author: str = ""  # one line
    extra: dict[str, Any] = field(default_factory=dict)  # JSON; more data of the source

    def __post_init__(self) -> None:
        url = self.url.strip()
        whole = _clean(self.id or ("" if len(url) <= URL_LENGTH else url))  # a cut URL would not work
        self._put("id", whole if len(whole) <= ID_LENGTH else f"sha256:{_sha256(whole)}")
        self._put("title", _line(self.title, TITLE_LENGTH))
        self._put("url", url if len(url) <= URL_LENGTH and _WEB.match(url) else "")
        self._put("text", _clean(self.text).strip()[:TEXT_LENGTH])
        self._put("published", _line(self.published, 40))
        self._put("author", _line(self.author, 200))
        self._put("extra", _json_object(self.extra))

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the id; without one, of the URL; without both, of title and text."""
        if self.id:
            return _sha256(f"id\0{self.id}")
        return _sha256(f"url\0{self.url}" if self.url else f"words\0{self.title}\0{self.text}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the texts: a new digest is an edit. URLs and dates are left out, since they change without one."""
        return digest_of([self.title, self.text, self.author, self.extra])

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _clean(text: str) -> str:
    """Remove control characters except newline and tab, and lone surrogates."""
    return _CONTROL.sub(" ", text)


def _line(text: str, length: int) -> str:
    return " ".join(_clean(text).split())[:length].rstrip()


def _json_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"extra must be a dict of JSON values, not {value!r:.100}")
    try:
        size = len(to_json(value))
    except ValueError as error:
        raise ValueError(f"extra is not JSON: {error}") from None
    if size > EXTRA_BYTES:
        raise ValueError(f"extra has {size} bytes as JSON, the limit is {EXTRA_BYTES}")
    return value


DEFAULTS: dict[str, tuple[str, ...]] = {  # without an option: the first of these fields that exists
    "id": ("id", "guid"),
    "title": ("title",),
    "text": ("text",),
    "url": ("url",),
}
PATHS = (*DEFAULTS, "items")
MOST_OF_BODY = 500  # items of one body


def items_in(body: Any, options: Mapping[str, Any]) -> list[Item]:
    """One Item for a JSON object, or for each object of an array. The options `id`, `title`, `text` and `url` are
    dotted paths into the object (`event.id`, `tags.0`). `items` is the path of the array inside the body. `keep` is a
    list of paths whose values become `extra`; without it the whole object does.

    The id of an object without one is a digest of its content: the same object again is not a new item.

    Raises InvalidInputError and InputTooLargeError, which name the field.
    """
    where = options.get("items")
    entries, path = (at_path(body, where), where) if where else (body, "")
    if isinstance(entries, Mapping):
        entries = [entries]
    elif not isinstance(entries, list):
        name = f"the body's {path}" if path else "the body"
        raise InvalidInputError(f"{name} must be a JSON object or an array of objects", field=path or "body")
    if len(entries) > MOST_OF_BODY:
        raise InvalidInputError(f"{len(entries)} items at once, the limit is {MOST_OF_BODY}", field=path or "body")
    prefix = f"{path}." if path else ""
    many = isinstance(body, list) or bool(path)
    return [_item(entry, options, f"{prefix}{index}." if many else "") for index, entry in enumerate(entries)]


def at_path(value: Any, path: str) -> Any:
    """The value at a path like `a.b.0`; None when it does not exist."""
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 6 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def option_errors(options: Mapping[str, Any]) -> Iterator[str]:
    """An error message for each invalid option."""
    for name in PATHS:
        if name in options and not _is_path(options[name]):
            yield f"{name} must be a path like event.id, not {options[name]!r}"
    keep = options.get("keep")
    if keep is not None and not (isinstance(keep, list) and all(map(_is_path, keep))):
        yield f'keep must be a list of paths like ["event.kind"], not {keep!r}'


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200 and all(value.split("."))


def _item(entry: Any, options: Mapping[str, Any], prefix: str) -> Item:
    if not isinstance(entry, Mapping):
        raise InvalidInputError(
            f"must be a JSON object, not {type(entry).__name__}", field=prefix.rstrip(".") or "body"
        )
    texts = {name: _value_text(entry, name, options, prefix) for name in DEFAULTS}
    if not texts["id"]:
        if "id" in options:
            path = options["id"]
            raise InvalidInputError(f"the item has no value at {path}, the path of its id", field=f"{prefix}{path}")
        texts["id"] = f"body:{digest_of(entry)}"
    keep = options.get("keep")
    extra = {path: at_path(entry, path) for path in keep} if isinstance(keep, list) else {"body": entry}
    if (size := len(to_json(extra))) > EXTRA_BYTES:
        fix = "list the fields to keep in the source's option keep"
        raise InputTooLargeError(
            f"an item has {size} bytes, the limit is {EXTRA_BYTES}; {fix}", field=prefix.rstrip(".") or "body"
        )
    return Item(**texts, extra=extra)


def _value_text(entry: Any, name: str, options: Mapping[str, Any], prefix: str) -> str:
    for path in [options[name]] if name in options else DEFAULTS[name]:
        value = at_path(entry, path)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidInputError("must be a text or a number", field=f"{prefix}{path}")
        return str(value)
    return ""


MOST = 1_000  # items of one poll
STATE_BYTES = 16 * 1024


@runtime_checkable
class SourceAdapter(Protocol):
    """Reads a service. Code registers it under a name, and the `location` of a source is that name: a form cannot name
    code to run."""

    async def poll(self, state: dict[str, Any], options: dict[str, Any]) -> Polled:
        """Returns `Polled(items, state=…, next_in_s=…)` with the items that are new since `state`. `state` is what the
        last poll returned, {} at first. `options` are the source's.

        The items are stored before the state. After a crash the poll is repeated with the old state, and items that it
        returns again are recognized by their id. An error is shown on the source, and the poll is retried later: after
        `retry_after` seconds for a SourceError that has it.
        """
        ...


A = TypeVar("A", bound=SourceAdapter)

_adapters: dict[str, SourceAdapter] = {}


def register_source_adapter(name: str, adapter: A) -> A:
    """Register an adapter for sources of the kind `adapter`. A later one of the same name replaces it. Call this where
    agents are registered, so that web processes and workers have the same adapters. Returns the adapter.

    Raises ValueError for an invalid name, and TypeError when the object has no `poll`.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > 100:
        raise ValueError(f"the name of a source adapter must have 1 to 100 characters, not {name!r}")
    if isinstance(adapter, type) or not callable(getattr(adapter, "poll", None)):
        raise TypeError(f"{adapter!r} is not a source adapter: it needs async def poll(self, state, options)")
    _adapters[name] = adapter
    return adapter


def find_source_adapter(name: str) -> SourceAdapter:
    """Raises LookupError, which lists the registered names."""
    try:
        return _adapters[name]
    except KeyError:
        known = ", ".join(sorted(_adapters)) or "none"
        raise LookupError(f"no source adapter is registered as {name!r}; registered: {known}") from None


def check_polled(polled: Any) -> Polled:
    """Check what an adapter returned. Raises TypeError or ValueError."""
    if not isinstance(polled, Polled):
        raise TypeError(f"poll must return Polled(items, state), not {polled!r:.100}")
    if not all(isinstance(item, Item) for item in polled.items):
        raise TypeError("Polled.items must be a list of Item")
    if len(polled.items) > MOST:
        raise ValueError(f"{len(polled.items)} items in one poll, the limit is {MOST}")
    if not isinstance(polled.state, dict | None):
        raise TypeError(f"Polled.state must be a dict, not {polled.state!r:.100}")
    if polled.state is not None and (size := len(to_json(polled.state))) > STATE_BYTES:
        raise ValueError(f"Polled.state has {size} bytes as JSON, the limit is {STATE_BYTES}")
    if polled.next_in_s is not None and not 0 < polled.next_in_s < float("inf"):
        raise ValueError(f"Polled.next_in_s must be seconds above 0, not {polled.next_in_s!r}")
    return polled


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a poll."""

    items: Sequence[Item] = ()  # oldest first; items that were delivered before are recognized by their identity
    etag: str | None = None  # sent with the next poll; None: unchanged
    modified: str | None = None  # the header Last-Modified, sent with the next poll; None: unchanged
    wait_s: float = 0.0  # the server's shortest time to the next poll, in seconds; used when it exceeds `every_s`
    location: str = ""  # the source has moved here permanently
    note: str = ""  # shown as the source's error although nothing failed
    state: dict[str, Any] | None = None  # of an adapter: JSON, at most 16 KiB, for the next poll; None: unchanged
    next_in_s: float | None = None  # seconds to the next poll; None: the source's `every_s`


class SourceError(Exception):
    """A failed poll. The message is shown on the source. The server asks to wait `retry_after` seconds; `gone` disables
    the source."""

    def __init__(self, message: str, *, retry_after: float | None = None, gone: bool = False) -> None:
        self.retry_after = retry_after
        self.gone = gone
        super().__init__(message)


class PollDelayed(SourceError):
    """The poll could not start in time, because earlier ones took too long. Not a failure: it is retried."""
