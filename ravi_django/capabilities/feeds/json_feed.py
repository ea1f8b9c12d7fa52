"""JSON Feed 1.x: https://www.jsonfeed.org/version/1.1/"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ravi_django.capabilities.feeds.adapter import SourceError
from ravi_django.kernel.errors import InputTooLargeError
from ravi_django.kernel.json_values import check_cost, storable

_MOST = 20_000  # items that are read
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
            "published": _time(self.date_published) or _time(self.date_modified),
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


def _time(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return ""
