"""The signals that the owner of a run may send to it over REST: an agent's `public_signals`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.kernel import InvalidInputError

RESERVED = ("human_reply:", "hitl:", "child:", "reply:")  # prefixes of names that the runtime gives a meaning


def checked_names(names: Any) -> frozenset[str]:
    """The names of an agent's `public_signals`. Raises InvalidInputError."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"public_signals is a set of names, not {names!r}", field="public_signals")
    found = list(names)
    for name in found:
        if not isinstance(name, str) or not 0 < len(name) <= 200 or "\0" in name:
            raise InvalidInputError(f"public_signals has {name!r}; use 1 to 200 characters", field="public_signals")
        if name.startswith(RESERVED):
            raise InvalidInputError(
                f"public_signals: {name!r} begins with a reserved prefix: {', '.join(RESERVED)}", field="public_signals"
            )
    return frozenset(found)


def names_of(agent: Any, given: Iterable[str] | None) -> frozenset[str]:
    """Those of the agent's class, and those that its constructor was given."""
    return checked_names(type(agent).public_signals) | checked_names(given or ())
