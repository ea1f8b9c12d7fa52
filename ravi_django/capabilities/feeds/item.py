"""An item of a source: limited in size, and without characters that a database or a prompt cannot hold."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from pydantic_core import to_json

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
