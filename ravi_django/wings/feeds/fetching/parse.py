"""Parse untrusted feeds: RSS, Atom and JSON Feed 1.x become items with plain text, in bounded time."""

from __future__ import annotations

import io
import json
import re
import time
from calendar import timegm
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urljoin

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ravi_django.calls.net.html_text import decoded, readable
from ravi_django.kernel.errors import InputTooLargeError
from ravi_django.kernel.json_values import check_cost, storable
from ravi_django.wings.feeds.fetching.adapter import TEXT_LENGTH, Item, SourceError
from ravi_django.wings.feeds.fetching.xml_scan import checked

_MOST = 20_000  # items that are read of a JSON Feed, see https://www.jsonfeed.org/version/1.1/
HTML = re.compile(r"[<&]")  # a text of the type HTML without these is plain


def _as_text(value: Any) -> Any:
    """The specification asks readers to accept numbers as ids. null becomes an empty text."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_as_text)]


class _Author(BaseModel):
    name: Text = ""


class _JsonItem(BaseModel):
    id: Text = ""
    url: Text = ""
    external_url: Text = ""
    title: Text = ""
    content_html: Text = ""
    content_text: Text = ""
    summary: Text = ""
    date_published: Text = ""
    date_modified: Text = ""
    authors: list[_Author] | None = None
    author: _Author | None = None  # in version 1
    tags: list[Any] | None = Field(default=None)

    def to_entry(self) -> dict[str, Any]:
        people = [*(self.authors or ()), *([self.author] if self.author else ())]
        return {
            "id": self.id,
            "title": self.title,
            "url": self.url or self.external_url,
            "text": self.content_text or self.content_html or self.summary,
            "html": {"text": HTML} if self.content_html and not self.content_text else {},
            "published": _json_time(self.date_published) or _json_time(self.date_modified),
            "author": ", ".join(author.name for author in people[:5]),
            "tags": [tag for tag in (self.tags or ())[:20] if isinstance(tag, str)],
        }


def json_items(text: str) -> list[dict[str, Any]]:
    """The entries of a JSON Feed; invalid ones are skipped. Raises SourceError."""
    try:
        check_cost(text, "the feed")
        # Unlike from_json, json reads half surrogate pairs and control characters.
        feed = storable(json.loads(text, strict=False))
    except (InputTooLargeError, ValueError, RecursionError) as error:
        raise SourceError(f"the feed is not valid JSON: {error}"[:500]) from None
    version = feed.get("version")
    if not isinstance(version, str) or not version.startswith("https://jsonfeed.org/version/1"):
        raise SourceError("this is JSON, but not a feed: its version is not https://jsonfeed.org/version/1.1")
    items = feed.get("items")
    if not isinstance(items, list):
        raise SourceError("the feed has no list of items")
    return [entry for item in items[:_MOST] if (entry := _entry(item)) is not None]


def _entry(item: Any) -> dict[str, Any] | None:
    try:
        return _JsonItem.model_validate(item).to_entry()
    except ValidationError:
        return None


def _json_time(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return ""


NEWEST = 200  # items of one feed
BOUND_S = 10.0  # for the texts of all items
PLAIN = "text/plain"
MARKUP_LENGTH = 5 * TEXT_LENGTH  # characters of markup that are read for one text
_BARE = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))  # UTF-16 without a byte order mark
HTML_HINTS = re.compile(r"</\w+\s*>|&#?\w+;|<(?:br|img)\b", re.IGNORECASE)
_PAGE = re.compile(r"\s*(?:<!doctype\s+html|<html[\s>])", re.IGNORECASE)


def parse(body: bytes, kind: str = "", url: str = "", newest: int = NEWEST) -> list[Item]:
    """The newest items of a feed, oldest first. The format is detected from the content. `kind` is the Content-Type,
    `url` the base of relative links.

    A hostile feed of some megabytes takes seconds of CPU: call this on a thread. Raises SourceError.
    """
    text = _decoded(body, kind)
    if text.lstrip().startswith("{"):
        entries = json_items(text)
    elif _PAGE.match(text):
        raise SourceError("this is a web page, not a feed; use the address of its feed")
    elif text.lstrip().startswith("<"):
        entries = _xml_items(checked(text))
    else:
        raise SourceError("this is not a feed: neither RSS, Atom nor JSON Feed")
    return _items(entries, url, newest)


def _decoded(body: bytes, kind: str) -> str:
    """Valid UTF-8 is read as UTF-8, even when another encoding is declared."""
    for mark, name in _BARE:
        if body.startswith(mark):
            return body.decode(name, errors="replace")
    if b"\x1b" not in body:  # the escape of encodings like ISO-2022-JP
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    return decoded(body, kind)


def _items(entries: list[dict[str, Any]], base: str, newest: int) -> list[Item]:
    give_up = time.monotonic() + BOUND_S
    items: list[Item] = []
    for entry in _newest(entries, newest):
        item = _item(entry, base)
        if item.title or item.text or item.url:
            items.append(item)
        if time.monotonic() > give_up:
            raise SourceError(f"parsing the feed's texts took more than {BOUND_S:g} s")
    return _distinct(items)


def _distinct(items: list[Item]) -> list[Item]:
    """Entries without an id that share a link get an id of link, date and title. Entries with the same id are one item,
    the newest (RFC 4287, 4.1.1); older ones remain here only if they have another link or title."""
    entries = [(item, f"{item.url} {item.published} {item.title}") for item in items]
    links = Counter(url for url, _ in {(item.url, name) for item, name in entries if item.url and not item.id})
    named = [replace(item, id=name) if links[item.url] > 1 and not item.id else item for item, name in entries]
    return list({(item.identity, item.url, item.title): item for item in named}.values())


def _newest(entries: list[Any], count: int) -> Iterable[Any]:
    """The newest entries, oldest first. Without a date in every entry, the feed's own order counts: newest first."""
    if all(entry["published"] for entry in entries):
        entries = sorted(entries, key=lambda entry: str(entry["published"]), reverse=True)
    return list(reversed(entries[:count]))


def _item(entry: dict[str, Any], base: str) -> Item:
    url = _absolute(entry["url"], base)
    html = entry["html"]
    tags = [_plain(tag[:200], html.get("tags")) for tag in entry["tags"][:20]]
    return Item(
        id=entry["id"],
        title=_plain(entry["title"][:2000], html.get("title")),
        url=url,
        text=_plain(entry["text"][:MARKUP_LENGTH], html.get("text"), url or base),
        published=entry["published"],
        author=_plain(entry["author"][:1000], html.get("author")),
        extra={"tags": tags} if tags else {},
    )


def _plain(text: str, html: re.Pattern[str] | None, base: str = "") -> str:
    """`html` is the pattern of texts that are HTML; None: the text is plain."""
    return readable(text, base) if html and html.search(text) else text


def _absolute(link: str, base: str) -> str:
    try:
        return urljoin(base, link.strip()) if link.strip() else ""
    except ValueError:
        return ""


# ------------------------------------------------------------------------------------------------- RSS and Atom


def _xml_items(body: bytes) -> list[dict[str, Any]]:
    reader = _reader()
    # Sanitizing and resolving links are slow, and not needed: the markup is removed later.
    options = {"sanitize_html": False, "resolve_relative_uris": False}
    try:
        feed = reader(io.BytesIO(body), response_headers={"content-type": "application/xml; charset=utf-8"}, **options)
    except Exception as error:  # bugs of feedparser
        raise SourceError(f"the feed cannot be read: {type(error).__name__}: {error}"[:500]) from error
    if not feed.get("version") and not feed.entries:
        raise SourceError("this is XML, but not a feed: neither RSS nor Atom")
    is_atom = str(feed.get("version")).startswith("atom")
    return [_of_feedparser(entry, is_atom) for entry in feed.entries]


def _reader() -> Callable[..., Any]:
    try:
        import feedparser
    except ImportError:
        raise SourceError(
            'RSS and Atom need the package feedparser: pip install "ravi-django[feeds]" (JSON Feed does not need it)'
        ) from None
    parser: Callable[..., Any] = feedparser.parse
    return parser


def _of_feedparser(entry: Any, is_atom: bool) -> dict[str, Any]:
    bodies = [content for content in entry.get("content") or () if _is_text(content)]
    body = max([*bodies, entry.get("summary_detail") or {}], key=lambda detail: len(detail.get("value") or ""))
    kinds = {"title": (entry.get("title_detail") or {}).get("type"), "text": body.get("type")}
    plain = None if is_atom else HTML_HINTS  # the texts of RSS have no type, and many are HTML
    return {
        "id": str(entry.get("id") or ""),
        "title": str(entry.get("title") or ""),
        "url": str(entry.get("link") or ""),
        "text": str(body.get("value") or ""),
        "html": {"author": plain, "tags": plain}
        | {name: plain if kind in (None, PLAIN) else HTML for name, kind in kinds.items()},
        "published": _time(
            entry.get("published_parsed") or dict.get(entry, "updated_parsed")
        ),  # feedparser's `get` warns
        "author": str(entry.get("author") or ""),
        "tags": [str(tag.get("term") or "") for tag in (entry.get("tags") or ())[:20] if tag.get("term")],
    }


def _is_text(content: Any) -> bool:
    return str(content.get("type") or "text/html").lower() in (PLAIN, "text/html", "application/xhtml+xml")


def _time(parsed: Any) -> str:
    try:
        return datetime.fromtimestamp(timegm(parsed), UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
