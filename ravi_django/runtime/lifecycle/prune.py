"""Retention: what is old goes, in bounded batches, while workers work. `prune_rows` says what, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, InvalidInputError
from ravi_django.runtime.budgets import accounts
from ravi_django.runtime.events import outbox_rows
from ravi_django.runtime.journal import outbox
from ravi_django.runtime.lifecycle import erasing, erasure_rows, prune_rows
from ravi_django.runtime.schedules import rows as schedule_rows
from ravi_django.runtime.social import publications
from ravi_django.runtime.sources import items as source_items
from ravi_django.runtime.streams.buffer import get_buffer

DAY_S = 24 * 3600.0
KINDS = ("journal", "streams", "ticks", "publications", "source_items", "outbox")
NAMED = ("sessions", "runs", "requests", "audit")  # what people have said: goes only where it is named
BLOBS = 500  # deleted in one statement
JOURNAL: Mapping[str, prune_rows.Rows] = {  # in this order: what a journal needs goes behind it
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
    """Seconds to keep each kind, by RAVI["RETENTION"]: days, or days by kind; what is not named is kept. A number
    is for KINDS alone.

    Raises InvalidInputError for anything else.
    """
    given = conf.RETENTION if setting is None else setting
    by_kind = given if isinstance(given, dict) else dict.fromkeys(KINDS, given)
    if unknown := sorted(set(by_kind) - {*KINDS, *NAMED}):
        raise InvalidInputError(f"RETENTION knows {', '.join((*KINDS, *NAMED))}, not {unknown[0]!r}", field="RETENTION")
    for kind, days in by_kind.items():
        if days is not None and (isinstance(days, bool) or not isinstance(days, int | float) or days < 0):
            raise InvalidInputError(f"RETENTION is in days: {kind} cannot be {days!r}", field="RETENTION")
    return {kind: days * DAY_S for kind, days in by_kind.items() if days is not None}


def prune(keep_s: dict[str, float], *, dry_run: bool = False) -> dict[str, int]:
    """Remove what is older than `keep_s` seconds, by kind; returns how many rows of each table went, or would go.

    journal: the rows of ended trees, their consumed signals, settled asks and messages but for each run's first, and
    the same of generations that are over.
    streams: the events of ended trees. ticks: what is known of the ticks of schedules.
    publications: what was emitted and is delivered. source_items: what sources know of items that are there no more.
    outbox: the events that wait for an event bus, where the site has none.
    sessions: conversations in which nothing has happened since, with their runs. runs: ended trees, whole. requests:
    closed ones of runs that completed or were cancelled. audit: audit records.
    In any case bodies that nothing names any more, tickets that have expired, and the budget accounts of deleted trees
    and of days a month past; a dry run cannot count the bodies that only the rows it leaves in place still name.
    """
    removed = {"journal": 0, "signals": 0, "asks": 0, "inbox": 0, "frames": 0, "archives": 0}
    for kind in NAMED:  # what goes whole goes first
        if kind in keep_s:
            removed[kind] = _PEOPLES[kind](keep_s[kind], dry_run)
    if "journal" in keep_s:
        _prune_trees(removed, JOURNAL, keep_s["journal"], dry_run)
        _prune_generations(removed, keep_s["journal"], dry_run)
    if "streams" in keep_s:
        _prune_trees(removed, {"frames": prune_rows.frames}, keep_s["streams"], dry_run)
        removed["archives"] = _forget_archives(keep_s["streams"], dry_run)
    if "ticks" in keep_s:
        old, age = schedule_rows.old_ticks, keep_s["ticks"]
        removed["ticks"] = old(age).count() if dry_run else _until_none(schedule_rows.prune_ticks, age)
    if "publications" in keep_s:
        past, age = publications.old_publications, keep_s["publications"]
        removed["publications"] = past(age).count() if dry_run else _until_none(publications.prune_publications, age)
    if "source_items" in keep_s:
        items = source_items.count_old_items if dry_run else source_items.prune_items
        removed["source_items"] = items(keep_s["source_items"])
    if "outbox" in keep_s:
        removed["outbox"] = _prune_outbox(keep_s["outbox"], dry_run)
    removed["blobs"] = _prune_blobs(dry_run)
    removed["accounts"] = accounts.old_accounts().count() if dry_run else accounts.prune_accounts()
    removed["tickets"] = prune_rows.expired_tickets().count() if dry_run else prune_rows.prune_tickets()
    return removed


def _prune_trees(
    removed: dict[str, int], rows: Mapping[str, prune_rows.Rows], older_than_s: float, dry_run: bool
) -> None:
    for roots in prune_rows.ended_trees(older_than_s):
        for name, kind in rows.items():
            if dry_run:
                removed[name] += kind(roots).count()
            else:
                removed[name] += _until_none(prune_rows.prune_trees, roots, kind, older_than_s)


def _forget_archives(older_than_s: float, dry_run: bool) -> int:
    batches = prune_rows.ended_trees(older_than_s)
    if dry_run:
        return sum(prune_rows.archives(roots).count() for roots in batches)
    return sum(prune_rows.forget_archives(roots, older_than_s) for roots in batches)


def _prune_generations(removed: dict[str, int], older_than_s: float, dry_run: bool) -> None:
    for ids in prune_rows.long_lived():
        left = prune_rows.not_ended(ids, older_than_s) if dry_run else ids  # the others' are counted with their trees
        for name, past in PAST.items():
            if dry_run:
                removed[name] += past(left, older_than_s).count()
            else:
                removed[name] += _until_none(prune_rows.prune_past, ids, past, older_than_s)


def _prune_sessions(older_than_s: float, dry_run: bool) -> int:
    if dry_run:
        return prune_rows.old_sessions(older_than_s).count()
    removed = 0
    for session_id in chain.from_iterable(prune_rows.batches_of_sessions(older_than_s)):
        with suppress(ConflictError):  # somebody speaks again, or a child run has not ended
            erasing.delete_session(session_id)
            removed += 1
    erasing.work()
    return removed


def _prune_runs(older_than_s: float, dry_run: bool) -> int:
    removed = 0
    for roots in prune_rows.ended_trees(older_than_s):
        erased = roots if dry_run else erasure_rows.erase_runs(roots, older_than_s)
        removed += len(erased)
        if not dry_run:
            get_buffer().forget([str(root) for root in erased])
    return removed


def _prune_requests(older_than_s: float, dry_run: bool) -> int:
    rows = prune_rows.old_requests(older_than_s)
    return rows.count() if dry_run else _until_none(prune_rows.delete_some, rows)


def _prune_audit(older_than_s: float, dry_run: bool) -> int:
    rows = prune_rows.old_audits(older_than_s)
    return rows.count() if dry_run else _until_none(prune_rows.delete_some, rows)


_PEOPLES = {"sessions": _prune_sessions, "runs": _prune_runs, "requests": _prune_requests, "audit": _prune_audit}


def _prune_outbox(older_than_s: float, dry_run: bool) -> int:
    if outbox.is_on():  # what waits is for a server that is away
        return 0
    if dry_run:
        return outbox_rows.old_events(older_than_s).count()
    return _until_none(outbox_rows.prune_events, older_than_s)


def _prune_blobs(dry_run: bool) -> int:
    ids = prune_rows.unreferenced_blobs()
    if dry_run:
        return len(ids)
    return sum(prune_rows.prune_blobs(batch) for batch in _batches(ids))


def _batches(ids: set[str]) -> Iterator[Sequence[str]]:
    left = iter(ids)
    while batch := list(islice(left, BLOBS)):
        yield batch


def _until_none(delete: Callable[..., int], *args: Any) -> int:
    total = 0
    while deleted := delete(*args):
        total += deleted
    return total
