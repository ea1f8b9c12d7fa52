"""Checks of single values. Each returns the value, or raises InvalidInputError that names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from itertools import islice
from typing import Any

from ravi_django.kernel.errors import InvalidInputError


def check_text(field: str, value: Any, most: int, *, least: int = 1) -> str:
    """A string of `least` to `most` characters. NUL is refused: PostgreSQL cannot store it."""
    if not isinstance(value, str) or not least <= len(value) <= most or "\0" in value:
        message = f"{field} must be a string of {least} to {most} characters without NUL, not {value!r:.100}"
        raise InvalidInputError(message, field=field)
    return value


def check_whole(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"{least}" if most is None else f"{least} to {most}"
        raise InvalidInputError(f"{field} is a whole number from {bounds}, not {value!r:.100}", field=field)
    return value


def seconds_of(value: Any) -> Any:
    """The seconds of a timedelta, whole ones as an int; another value as it is."""
    if not isinstance(value, timedelta):
        return value
    seconds = value.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def check_seconds(field: str, value: Any, below: float = math.inf) -> float:
    """A span of time, as a number of seconds or a timedelta."""
    seconds = seconds_of(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < below:
        end = "" if below == math.inf else f" and below {below:g}"
        raise InvalidInputError(f"{field} is a number of seconds above 0{end}, not {value!r:.100}", field=field)
    return float(seconds)


def check_span(field: str, value: Any) -> float:
    """As `check_seconds`, but 0 and times that have passed are allowed."""
    seconds = seconds_of(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InvalidInputError(f"{field} is a number of seconds or a timedelta, not {value!r:.100}", field=field)
    return float(seconds)


LISTED = 20  # names in an error


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of an error about an unknown name: `. Did you mean 'calculator'?`, or nothing without a near one."""
    near = get_close_matches(str(name)[:100], islice(known, 1000), 1, cutoff)
    return f". Did you mean {str(near[0])!r}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """For an error: `clock, shop and 12 more`."""
    sorted_names = sorted(names)
    more = len(sorted_names) - LISTED
    return (", ".join(sorted_names[:LISTED]) or "none") + (f" and {more} more" if more > 0 else "")
