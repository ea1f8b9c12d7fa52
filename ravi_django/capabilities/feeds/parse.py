"""Parse untrusted feeds: RSS, Atom and JSON Feed become items with plain text, in bounded time."""

from __future__ import annotations

import io
import re
import time
from calendar import timegm
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urljoin

from ravi_django.capabilities.feeds.adapter import SourceError
from ravi_django.capabilities.feeds.item import TEXT_LENGTH, Item
from ravi_django.capabilities.feeds.json_feed import json_items
from ravi_django.capabilities.feeds.xml_scan import checked
from ravi_django.capabilities.net.html_text import readable
from ravi_django.capabilities.net.outbound import codec

NEWEST = 200  # items of one feed
BOUND_S = 10.0  # for the texts of all items
MARKUP_LENGTH = 5 * TEXT_LENGTH  # characters of markup that are read for one text
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_BARE = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))  # UTF-16 without a byte order mark
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_DECLARED = re.compile(rb"\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)")
_MARKUP = re.compile(r"[<&]")
_HTML = re.compile(r"\s*(?:<!doctype\s+html|<html[\s>])", re.IGNORECASE)


def parse(body: bytes, kind: str = "", url: str = "", newest: int = NEWEST) -> list[Item]:
    """The newest items of a feed, oldest first. The format is detected from the content. `kind` is the Content-Type,
    `url` the base of relative links.

    A hostile feed of some megabytes takes seconds of CPU: call this on a thread. Raises SourceError.
    """
    text = decoded(body, kind)
    if text.lstrip().startswith("{"):
        entries = json_items(text)
    elif _HTML.match(text):
        raise SourceError("this is a web page, not a feed; use the address of its feed")
    elif text.lstrip().startswith("<"):
        entries = _xml_items(checked(text))
    else:
        raise SourceError("this is not a feed: neither RSS, Atom nor JSON Feed")
    return _items(entries, url, newest)


def decoded(body: bytes, kind: str = "") -> str:
    """The feed's text. Valid UTF-8 is read as UTF-8, even when another encoding is declared."""
    for mark, name in (*_BOMS, *_BARE):
        if body.startswith(mark):
            return body.decode(name, errors="replace").lstrip("\ufeff")
    if b"\x1b" not in body:  # the escape of encodings like ISO-2022-JP
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    given = _CHARSET.search(kind)
    declared = _DECLARED.match(body)
    name = given[1] if given else declared[1].decode("ascii", errors="replace") if declared else "utf-8"
    return body.decode(codec(name), errors="replace")


def _items(entries: list[dict[str, Any]], base: str, newest: int) -> list[Item]:
    give_up = time.monotonic() + BOUND_S
    made: dict[str, Item] = {}
    for entry in _newest(entries, newest):
        item = _item(entry, base)
        if item.title or item.text or item.url:
            made[item.identity] = item
        if time.monotonic() > give_up:
            raise SourceError(f"parsing the feed's texts took more than {BOUND_S:g} s")
    return list(made.values())


def _newest(entries: list[Any], count: int) -> Iterable[Any]:
    """The newest entries, oldest first. Without a date in every entry, the feed's own order counts: newest first."""
    if all(entry["published"] for entry in entries):
        entries = sorted(entries, key=lambda entry: str(entry["published"]), reverse=True)
    return list(reversed(entries[:count]))


def _item(entry: dict[str, Any], base: str) -> Item:
    url = _absolute(entry["url"], base)
    text = _plain(entry["text"], url or base) if entry["is_markup"] else entry["text"][:TEXT_LENGTH]
    return Item(
        id=entry["id"],
        title=_plain(entry["title"][:2000]),
        url=url,
        text=text,
        published=entry["published"],
        author=_plain(entry["author"][:1000]),
        extra={"tags": tags} if (tags := [_plain(tag[:200]) for tag in entry["tags"][:20]]) else {},
    )


def _plain(text: str, base: str = "") -> str:
    return readable(text[:MARKUP_LENGTH], base) if _MARKUP.search(text) else text


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
        found = reader(io.BytesIO(body), response_headers={"content-type": "application/xml; charset=utf-8"}, **options)
    except Exception as error:  # bugs of feedparser
        raise SourceError(f"the feed cannot be read: {type(error).__name__}: {error}"[:500]) from error
    if not found.get("version") and not found.entries:
        raise SourceError("this is XML, but not a feed: neither RSS nor Atom")
    return [_of_feedparser(entry) for entry in found.entries]


def _reader() -> Callable[..., Any]:
    try:
        import feedparser
    except ImportError:
        raise SourceError(
            'RSS and Atom need the package feedparser: pip install "ravi-django[feeds]" (JSON Feed does not need it)'
        ) from None
    parser: Callable[..., Any] = feedparser.parse
    return parser


def _of_feedparser(entry: Any) -> dict[str, Any]:
    contents = [content for content in entry.get("content") or () if _is_text(content)]
    bodies = [str(content.get("value") or "") for content in contents] + [str(entry.get("summary") or "")]
    return {
        "id": str(entry.get("id") or ""),
        "title": str(entry.get("title") or ""),
        "url": str(entry.get("link") or ""),
        "text": max(bodies, key=len),
        "is_markup": True,
        "published": _time(
            entry.get("published_parsed") or dict.get(entry, "updated_parsed")
        ),  # feedparser's `get` warns
        "author": str(entry.get("author") or ""),
        "tags": [str(tag.get("term") or "") for tag in (entry.get("tags") or ())[:20] if tag.get("term")],
    }


def _is_text(content: Any) -> bool:
    return str(content.get("type") or "text/html").lower() in ("text/plain", "text/html", "application/xhtml+xml")


def _time(parsed: Any) -> str:
    try:
        return datetime.fromtimestamp(timegm(parsed), UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
