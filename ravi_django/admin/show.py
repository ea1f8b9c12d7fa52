"""How things look in the admin: as on any page, and its statuses and links. What comes from outside is escaped."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ravi_django.kernel.visible import visible
from ravi_django.models.names import word
from ravi_django.pages.show import (
    CLIP,
    NONE,
    as_text,
    between,
    blocks,
    duration,
    duration_s,
    moment,
    money,
    pretty,
    size,
    snippet,
    tokens,
)

__all__ = [
    "CLIP",
    "NONE",
    "as_text",
    "between",
    "blocks",
    "duration",
    "duration_s",
    "link_to",
    "moment",
    "money",
    "pretty",
    "short_id",
    "size",
    "snippet",
    "status",
    "tokens",
    "visible",
    "word",
]


def status(value: str) -> SafeString:
    return format_html('<span class="ravi-status ravi-status-{}">{}</span>', value, word(value))


def link_to(kind: str, key: Any, text: Any, *, css: str = "") -> SafeString:
    """A link to an object's page; `kind` is the model's name."""
    return format_html('<a href="{}" class="{}">{}</a>', reverse(f"admin:ravi_{kind}_change", args=[key]), css, text)


def short_id(key: Any) -> SafeString:
    """The random end of a UUIDv7, which is what tells two of one minute apart; the whole is in the tooltip."""
    return format_html('<code class="ravi-id" title="{}">…{}</code>', key, str(key)[-8:])
