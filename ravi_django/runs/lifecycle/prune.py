"""Retention: delete old rows in bounded batches, while workers work. `prune_rows` has the queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django import wing
from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, InvalidInputError
from ravi_django.live.rollups import counting
from ravi_django.live.streams.buffer import get_buffer
from ravi_django.models import Run
from ravi_django.runs import workers
from ravi_django.runs.budgets import accounts
from ravi_django.runs.files import files
from ravi_django.runs.lifecycle import erasing, erasure_rows, prune_rows

DAY_S = 24 * 3600.0
KINDS = ("journal", "streams", "ticks", "publications", "source_items", "outbox")
NAMED = ("sessions", "runs", "requests", "audit")  # what people have written: deleted only where it is named
BLOBS = 500  # deleted in one statement
JOURNAL: Mapping[str, prune_rows.Rows] = {  # in this order: rows that a journal needs go after it
    "journal": prune_rows.journal_rows,
    "signals": prune_rows.consumed_signals,
    "asks": prune_rows.settled_asks,
    "inbox": prune_rows.messages,
}
PAST: Mapping[str, prune_rows.Past] = {
    "journal": prune_rows.old_generations,
    "signals": prune_rows.past_signals,
    "inbox": prune_rows.past_messages,
}


def retention(setting: Any = None) -> dict[str, float]:
    """Seconds to keep each kind, by RAVI["RETENTION"]: days by kind, or one number of days for KINDS. A kind that is
    not named is kept. Raises InvalidInputError for anything else."""
    value = conf.RETENTION if setting is None else setting
    by_kind = value if isinstance(value, dict) else dict.fromkeys(KINDS, value)
    if unknown := sorted(set(by_kind) - {*KINDS, *NAMED}):
        raise InvalidInputError(f"RETENTION knows {', '.join((*KINDS, *NAMED))}, not {unknown[0]!r}", field="RETENTION")
    for kind, days in by_kind.items():
        if days is not None and (isinstance(days, bool) or not isinstance(days, int | float) or days < 0):
            raise InvalidInputError(f"RETENTION is in days: {kind} cannot be {days!r}", field="RETENTION")
    return {kind: days * DAY_S for kind, days in by_kind.items() if days is not None}


def prune(keep_s: dict[str, float], *, dry_run: bool = False) -> dict[str, int]:
    """Delete rows that are older than `keep_s` seconds, by kind; returns how many rows of each table, or with `dry_run`
    how many it would delete.

    journal: rows of ended trees, their consumed signals, settled asks and messages except each run's first; the same of
    past generations. streams: the events of ended trees. ticks: rows of schedules' ticks. publications: delivered ones.
    source_items: items that their sources no longer have. outbox: events that wait, on a site without an event bus.
    sessions: conversations without a change since, with their runs. runs: ended trees, whole. requests: closed ones of
    runs that completed or were cancelled. audit: audit records.

    Always: bodies that no row names, expired tickets, unused files, and budget accounts of deleted trees and of days a
    month past. A dry run cannot count bodies that only rows name which it leaves in place.
    """
    while not dry_run and counting.sweep():  # the rows that are deleted below have been counted
        pass
    removed = {"journal": 0, "signals": 0, "asks": 0, "inbox": 0, "frames": 0, "archives": 0}
    for kind in NAMED:  # first: they take rows of the other kinds along
        if kind in keep_s:
            removed[kind] = _OTHERS[kind](keep_s[kind], dry_run)
    if "journal" in keep_s:
        _prune_trees(removed, JOURNAL, keep_s["journal"], dry_run)
        _prune_generations(removed, keep_s["journal"], dry_run)
    if "streams" in keep_s:
        streams = {"frames": prune_rows.frames, "archives": prune_rows.archives}
        _prune_trees(removed, streams, keep_s["streams"], dry_run)
    for kind, prune_wing in wing.each("prune", left_out=True):
        if kind in keep_s:
            removed[kind] = prune_wing(keep_s[kind], dry_run)
    removed["blobs"] = _prune_blobs(dry_run)
    removed["accounts"] = delete_old(accounts.old_accounts(), dry_run)
    removed["files"] = files.unused().count() if dry_run else _until_none(files.delete_unused)
    removed["tickets"] = delete_old(prune_rows.expired_tickets(), dry_run)
    return removed


def delete_old(rows: QuerySet[Any], dry_run: bool, *, cascades: bool = False) -> int:
    """Delete all of these rows, or count them."""
    return rows.count() if dry_run else _until_none(partial(prune_rows.delete_some, cascades=cascades), rows)


def _prune_trees(
    removed: dict[str, int], rows: Mapping[str, prune_rows.Rows], older_than_s: float, dry_run: bool
) -> None:
    for roots in prune_rows.ended_trees(older_than_s):
        for name, kind in rows.items():
            if dry_run:
                removed[name] += kind(roots).count()
            else:
                removed[name] += _until_none(prune_rows.prune_trees, roots, kind, older_than_s)


def _prune_generations(removed: dict[str, int], older_than_s: float, dry_run: bool) -> None:
    for ids in prune_rows.batches(Run.objects.filter(generation__gt=0)):
        left = prune_rows.not_ended(ids, older_than_s) if dry_run else ids  # the others are counted with their trees
        for name, past in PAST.items():
            removed[name] += delete_old(past(left, older_than_s), dry_run)


def _prune_sessions(older_than_s: float, dry_run: bool) -> int:
    rows, removed = prune_rows.old_sessions(older_than_s), 0
    if dry_run:
        return rows.count()
    for session_id in chain.from_iterable(prune_rows.batches(rows)):
        removed += workers.each(_delete_session, session_id) or 0
    erasing.work()
    return removed


def _delete_session(session_id: UUID) -> int:
    with suppress(ConflictError):  # it has a new run, or a child run that has not ended
        erasing.delete_session(session_id)
        return 1
    return 0


def _prune_runs(older_than_s: float, dry_run: bool) -> int:
    removed = 0
    for roots in prune_rows.ended_trees(older_than_s):
        if dry_run:
            removed += len(roots)
            continue
        for erased in workers.apart(partial(erasure_rows.erase_runs, older_than_s=older_than_s), roots):
            removed += len(erased)
            get_buffer().forget([str(root) for root in erased])
    return removed


_OTHERS: dict[str, Callable[[float, bool], int]] = {
    "sessions": _prune_sessions,
    "runs": _prune_runs,
    "requests": lambda age, dry_run: delete_old(prune_rows.old_requests(age), dry_run, cascades=True),
    "audit": lambda age, dry_run: delete_old(prune_rows.old_audits(age), dry_run),
}


def _prune_blobs(dry_run: bool) -> int:
    ids = list(prune_rows.unreferenced_blobs())
    if dry_run:
        return len(ids)
    return sum(prune_rows.prune_blobs(ids[start : start + BLOBS]) for start in range(0, len(ids), BLOBS))


def _until_none(delete: Callable[..., int], *args: Any) -> int:
    total = 0
    while deleted := delete(*args):
        total += deleted
    return total
