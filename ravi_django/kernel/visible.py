"""Text for people: nothing hidden in it, and money in words."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

_KINDS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # of Unicode's general categories
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # of other categories, and invisible
_SUSPECT = re.compile(r"[^\n\t\x20-\x7e]")


def visible(text: str) -> str:
    r"""`text` with control and format characters as JSON writes them, `\u202e`: those that reverse, join, hide or break
    text. New lines and tabs stay. Strings inside JSON keep their meaning."""
    return _SUSPECT.sub(_as_json, text)


def hides(text: str) -> bool:
    """Whether `visible` would change it."""
    return any(_is_hidden(match[0]) for match in _SUSPECT.finditer(text))


def money(cost: Decimal | float | None, *, unknown: bool = False) -> str:
    """US dollars; a lower bound when some price is unknown."""
    if cost is None or (unknown and not cost):
        return "unknown"
    if not cost:
        return "$0"
    text = f"{cost:,.2f}" if cost >= 1 else f"{cost:.6f}".rstrip("0").rstrip(".")
    return f"{'≥ ' if unknown else ''}${text}" if text != "0" else "under $0.000001"


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _KINDS or char in _BLANK or 0xE0100 <= ord(char) <= 0xE01EF


def _as_json(match: re.Match[str]) -> str:
    if not _is_hidden(match[0]):
        return match[0]
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
