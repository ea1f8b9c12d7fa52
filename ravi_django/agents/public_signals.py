"""The signals that the owner of a run may send to it over REST: an agent's `public_signals`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.checks import check_text

RESERVED = ("human_reply:", "hitl:", "child:", "reply:")  # prefixes that the runtime uses


def checked_names(names: Any) -> frozenset[str]:
    """Validate an agent's `public_signals`. Raises InvalidInputError."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"public_signals must be a set of names, not {names!r}", field="public_signals")
    found = list(names)
    for name in found:
        if check_text("public_signals", name, 200).startswith(RESERVED):
            raise InvalidInputError(
                f"public_signals: {name!r} has a reserved prefix: {', '.join(RESERVED)}", field="public_signals"
            )
    return frozenset(found)


def names_of(agent: Any, names: Iterable[str] | None) -> frozenset[str]:
    """The names of the agent's class and those passed to its constructor."""
    return checked_names(type(agent).public_signals) | checked_names(names or ())
