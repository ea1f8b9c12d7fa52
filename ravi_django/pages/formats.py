"""How values look on a page: durations, tokens, texts, JSON, statuses and links of the admin.

Texts have no hidden characters. The template escapes them.
"""

from __future__ import annotations

import difflib
import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import BLOB_KEY
from ravi_django.kernel.visible import money as money_of, visible as visible
from ravi_django.models.names import word as word

NONE = "—"
LINE = 140  # characters of a text in one line
CLIP = 4_000  # characters of a value in a list; its own page shows all
COMPARED = 1_000_000  # characters of a text, and pairs of lines: the time of a comparison grows with their number
DIFFERENCE_LINES = 400


def duration(span: timedelta | None) -> str:
    """12 ms, 3.4 s, 5 min 10 s, 2 h 5 min, 3 d 4 h."""
    if span is None:
        return NONE
    seconds = max(0.0, span.total_seconds())
    if 0 < seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    units = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
    size, unit, lesser, lesser_unit = next(one for one in units if round(seconds) >= one[0])
    rest = round(seconds) % size // lesser
    return f"{round(seconds) // size} {unit}" + (f" {rest} {lesser_unit}" if rest else "")


def duration_s(seconds: float | None) -> str:
    return duration(None if seconds is None else timedelta(seconds=seconds))


def moment(at: datetime | None) -> str:
    return clock.written(at) if at else NONE


def between(start: datetime | None, end: datetime | None) -> str:
    return duration(end - start) if start and end else NONE


def tokens(input_tokens: int | None, output_tokens: int | None, cached: int | None = None) -> str:
    text = NONE if not input_tokens and not output_tokens else f"{input_tokens or 0:,} → {output_tokens or 0:,}"
    return f"{text} ({cached_share(cached, input_tokens)})" if input_tokens and cached else text


def cached_share(cached: int, input_tokens: int) -> str:
    """The part of the input tokens that the provider has read from its cache."""
    return gettext("%(cached)s cached") % {"cached": f"{100 * cached // input_tokens} %"}


def money(cost: Decimal | float | None, *, unknown: bool = False) -> str:
    return word(money_of(cost, unknown=unknown))


def size(count: int) -> str:
    return gettext("%(count)s bytes") % {"count": f"{count:,}"} if count < 10_000 else f"{count / 1024:,.0f} KiB"


def pretty(value: Any, limit: int | None = CLIP) -> dict[str, Any] | None:
    """JSON for people: `text`, and `cut`, the number of characters left out."""
    if value is None:
        return None
    if isinstance(value, dict) and BLOB_KEY in value:
        sentence = gettext("%(size)s, stored separately")
        return {"text": sentence % {"size": size(value.get("size", 0))}, "cut": True}
    text = visible(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    if limit is None or len(text) <= limit:
        return {"text": text, "cut": 0}
    return {"text": text[:limit], "cut": len(text) - limit}


def as_text(value: Any) -> str:
    json_text = pretty(value or None)
    return json_text["text"] if json_text else ""


def difference(before: Any, after: Any) -> list[tuple[str, str]]:
    """The lines of two texts or JSON values that differ, as (mark, line). A mark is +, -, @ or a space."""
    old, new = _lines(before), _lines(after)
    if len(old) * len(new) > COMPARED:
        text = gettext("%(before)s lines before, %(after)s lines after: too many to compare")
        return [("@", text % {"before": len(old), "after": len(new)})]
    lines = list(difflib.unified_diff(old, new, lineterm=""))[3:]  # the first has positions
    marked = [("@", "…") if line.startswith("@@") else (line[0], line[1:]) for line in lines]
    cut = len(marked) - DIFFERENCE_LINES
    more = [("@", gettext("and %(count)s more lines") % {"count": cut})] if cut > 0 else []
    return marked[:DIFFERENCE_LINES] + more


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return visible(text[:COMPARED]).splitlines() or [""]


def snippet(text: str, limit: int = LINE) -> str:
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def blocks(content: Any, limit: int | None = CLIP) -> list[dict[str, Any]]:
    """Content blocks with `kind`, `label` and `shown`; a block of an unknown kind is shown as JSON."""
    if not isinstance(content, list):
        return [{"kind": "other", "label": "", "shown": pretty(content, limit)}]
    return [_block(block, limit) for block in content]


def _block(block: Any, limit: int | None) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in ("text", "thinking"):
        label = gettext("thinking") if kind == "thinking" else ""
        return {"kind": kind, "label": label, "shown": pretty(block.get("text"), limit)}
    if kind == "tool_use":
        label = visible(gettext("calls %(tool)s") % {"tool": block.get("tool_name")})
        return {"kind": kind, "label": label, "shown": pretty(block.get("arguments"), limit)}
    if kind == "tool_result":
        parts = block.get("content") or []
        texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
        content = "\n".join(map(str, texts)) if len(texts) == len(parts) else parts
        label = gettext("the call failed") if block.get("is_error") else word("result")
        return {"kind": kind, "label": label, "shown": pretty(content, limit), "error": bool(block.get("is_error"))}
    return {"kind": "other", "label": visible(str(kind or "")), "shown": pretty(block, limit)}


def status(value: str) -> SafeString:
    return format_html('<span class="ravi-status ravi-status-{}">{}</span>', value, word(value))


def link_to(kind: str, key: Any, text: Any) -> SafeString:
    """A link to an object's page in the admin; `kind` is the model's name."""
    return format_html('<a href="{}">{}</a>', reverse(f"admin:ravi_{kind}_change", args=[key]), text)


def short_id(key: Any) -> SafeString:
    """The random end of a UUIDv7, which differs between ids of one minute; the tooltip has the whole id."""
    return format_html('<code class="ravi-id" title="{}">…{}</code>', key, str(key)[-8:])
