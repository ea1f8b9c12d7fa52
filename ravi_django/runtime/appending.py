"""An append that can be repeated, and the one statement that it mostly comes down to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import IntegrityError

from ravi_django.runtime import store
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import Lease
from ravi_django.runtime.wire import Statement

Write = Callable[..., int]  # (lease, entries, turns) -> seq of the first row: an append, or one with more beside it


def append_repeatable(lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write = store.append) -> int:
    """Append; when the answer to an earlier try was lost on the way, finding our own row is success."""
    try:
        return store.settled(lease, entries, partial(write, lease, entries, turns))
    except IntegrityError:
        seq = store.already_appended(entries[0].id)
        if seq is None:
            raise
        return seq


def _as_statement(
    lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write = store.append
) -> Statement | None:
    if write is not _append or store.concerns_budgets(lease, entries):
        return None
    return store.append_statement(lease, entries, turns)


_append = store.append
append_repeatable.as_statement = _as_statement  # type: ignore[attr-defined]
