"""Retrying a failed or blocked run, for every surface.

A second try, asked for by a person: a failed or blocked run goes on from its journal.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q

from ravi_django.db import transaction
from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import TERMINAL, Ask, HumanRequest, JournalEntry, Phase, Run, Status, uuid7
from ravi_django.runtime.db import clock
from ravi_django.runtime.db.clock import present
from ravi_django.runtime.journal import outbox
from ravi_django.runtime.journal.entries import Entry, journal_row
from ravi_django.runtime.lifecycle.deletion import check_owned
from ravi_django.runtime.lifecycle.endings import ended_reason
from ravi_django.runtime.lifecycle.prune_rows import is_pruned
from ravi_django.runtime.people import requests
from ravi_django.runtime.people.links import forget_links
from ravi_django.runtime.people.records import record_all, tell
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.sessions import active_root, lock_session
from ravi_django.runtime.runs.waking import RELEASED, lock, ready
from ravi_django.runtime.streams import republish
from ravi_django.runtime.streams.shown import request_shown
from ravi_django.signals import request_opened

log = logging.getLogger("ravi.retry")


def retry(run_id: UUID | str, *, send: Any = None) -> Run:
    """Let a failed or blocked run go on from its journal: what failed it is made anew, what is recorded is not.

    Inside the caller's transaction; a worker is told after the commit. `deadline_s` of a budget counts from the run's
    first start on, unless that has passed: then from now. Returns the run, pending or queued. Raises
    IllegalTransitionError, with words, where the run's state forbids it.
    """
    run = write_retry(run_id)
    transaction.on_commit(lambda: _publish(run), robust=True)  # first, so that it comes before what the worker says
    if run.status == Status.PENDING:
        hints.on_commit(run.id, send)
    return run


def _publish(run: Run) -> None:
    try:
        republish.publish_retried(run)
    except Exception as error:  # the next lease's frames show it as well
        log.warning("run %s: its retry is not published: %s", run.id, error, extra={"action": "publish.failed"})


EFFECTS = ("llm.call", "tool.call", "ask", "child.spawned", "run.handoff")
NOTES = (
    "log",
    "log_once",
    "now",
    "history.read",
    "history.count",
    "chat.output",
)  # they ride on other rows' commits, and cost nothing to make again


def write_retry(run_id: UUID | str) -> Run:
    """Make a failed or blocked run claimable again: pending, or queued behind its session's active run of the agent.

    What failed it is superseded and made anew; everything else that is recorded stays, and requests to people that
    the failure closed are open again. The seconds of a `deadline_s` budget count from the run's first start on, from
    the retry when they had run out by then. Returns the run.

    Raises IllegalTransitionError for a run in another status, a failed child (its parent has read the outcome), a
    deadline that has passed, a run whose owner was deleted, one whose journal was pruned, and while a worker still
    cancels a child of it.
    """
    with transaction.atomic():
        parent_id = Run.objects.values_list("parent_id", flat=True).get(id=run_id)
        if parent_id is not None:
            lock([parent_id, UUID(str(run_id))])
        run: Run = Run.objects.select_for_update(no_key=True).get(id=run_id)
        now = present()
        _check(run, now)
        if run.parent_id is None:
            lock_session(run)
        others = run.parent_id is None and active_root(run).exclude(id=run.id).exists()
        epoch = run.lease_epoch + 1
        entry = Entry(
            "run.retried", f"@retried.{epoch}", result={"supersedes": sorted({*_superseded(run), *_lost_children(run)})}
        )
        Run.objects.filter(id=run.id).update(
            **ready() | ({"status": Status.QUEUED} if others else {}),
            started_at=clock.now() if _spent(run, now) else F("started_at"),
            lease_epoch=epoch,
            next_seq=F("next_seq") + 1,
            **_AFRESH,
            **RELEASED,
        )
        if opened := [request_shown(request) for request in _reopen_requests(run)]:
            entry.result["opened"] = opened
        journal_row(
            entry,
            run_id=run.id,
            seq=run.next_seq,
            generation=run.generation,
            epoch=epoch,
            now=clock.now(),
            start=clock.now(),
        ).save(force_insert=True)
        outbox.write(outbox.of_entries(run, [entry]))
        run.refresh_from_db()
    return run


# The archive stays: it is what came before in the stream that now goes on.
_AFRESH: dict[str, Any] = {
    "attempts": 0,
    "crashes": 0,
    "hints": 0,
    "hint_after": None,
    "waiting_on": None,
    "error": None,
    "finished_at": None,
    "published_at": None,
    "cancel_requested_at": None,
    "cancel_reason": "",
}


def _check(run: Run, now: datetime) -> None:
    if run.status not in (Status.FAILED, Status.BLOCKED):
        raise IllegalTransitionError(f"run {run.id} is {run.status}; only a failed or a blocked run can be retried")
    check_owned(run)
    if run.parent_id is not None:
        if run.status == Status.FAILED:
            raise IllegalTransitionError(
                f"run {run.id} is a child whose parent has read that it failed; retry the root run {run.tree_id}"
            )
        if Run.objects.filter(id=run.parent_id, status__in=TERMINAL).exists():
            raise IllegalTransitionError(f"the parent of run {run.id} has ended; retry the root run {run.tree_id}")
    if run.deadline is not None and run.deadline <= now:
        raise IllegalTransitionError(
            f"the deadline of run {run.id} passed at {run.deadline:%Y-%m-%d %H:%M:%S} UTC; fork it, or submit its "
            "input again with a later one"
        )
    if is_pruned(run):
        raise IllegalTransitionError(f"the journal of run {run.id} was pruned; submit its input again")


def _spent(run: Run, now: datetime) -> bool:
    seconds = (run.budget or {}).get("deadline_s")
    return bool(seconds and run.started_at and run.started_at + timedelta(seconds=seconds) <= now)


def _reopen_requests(run: Run) -> list[HumanRequest]:
    """Those that the failure closed, and whose effects are still open: the run will wait for their answers again.
    Returns them."""
    done = JournalEntry.objects.filter(
        run_id=run.id, generation=run.generation, path=OuterRef("path"), phase=Phase.RESULT
    )
    now, mine = present(), HumanRequest.objects.filter(run_id=run.id, generation=run.generation).order_by("id")
    closed = list(
        mine.filter(~Exists(done), status=HumanRequest.Status.CANCELLED, answer__isnull=True).select_for_update(
            no_key=True
        )
    )
    later = mine.filter(path=OuterRef("path"), attempt=OuterRef("attempt"), id__gt=OuterRef("id")).order_by()
    decided = mine.filter(~Exists(done), ~Exists(later), answer__outcome="fail")
    again = [_asked_again(request) for request in decided]  # the answer stays as it was given
    for request in (*closed, *again):
        requests.begin_anew(request, now)
    for request in closed:
        request.version += 1
    if closed:
        HumanRequest.objects.bulk_update(closed, _ANEW)
        forget_links([request.id for request in closed])
    HumanRequest.objects.bulk_create(again)
    opened = [*closed, *again]
    record_all(opened, "opened", run)
    for request in opened:
        tell(request_opened, request)
    return opened


_ANEW = (
    *("status", "answered_at", "version", "created_at", "expires_at"),
    *("notified", "level", "to", "escalates_at", "asked_at"),
)


def _asked_again(request: HumanRequest) -> HumanRequest:
    """The same question, as a row of its own."""
    request.pk, request.version, request.woke = uuid7(), 1, True
    request.answer = request.answered_by = None
    request._state.adding = True
    return request


def _lost_children(run: Run) -> list[int]:
    """Children that were cancelled because the run had failed: they are spawned anew, and asked anew. Returns the rows
    to set aside. One that a worker still cancels may be about to act, or to complete: two of it would act twice."""
    ending = Run.objects.filter(parent_id=run.id, cancel_reason=ended_reason(run.id))
    if busy := ending.exclude(status__in=TERMINAL).values_list("id", flat=True).first():
        raise IllegalTransitionError(f"run {busy}, a child of {run.id}, is still being cancelled; retry in a moment")
    children = list(ending.filter(status=Status.CANCELLED).values_list("id", flat=True))
    if children:
        ended = _waited_for_in_vain(run)
        children = [child for child in children if str(child) not in ended]
    if not children:
        return []
    Ask.objects.filter(asker_id=run.id, generation=run.generation, target_id__in=children).delete()
    ids = {str(child) for child in children}
    rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation).filter(_ABOUT_CHILDREN)
    return [
        seq
        for seq, request, result in rows.values_list("seq", "request", "result")
        if {(result or {}).get("run"), (request or {}).get("run")} & ids
    ]


_ABOUT_CHILDREN = Q(kind__in=["child.spawned", "ask"]) | Q(kind="tool.call", phase=Phase.PAUSED)


def _waited_for_in_vain(run: Run) -> set[str]:
    """Children that a paused tool call waited for whose tool must not run again: its result is that they ended so."""
    paused = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, phase=Phase.PAUSED)
    results = paused.values_list("result", flat=True)
    return {result["run"] for result in results if result and result.get("pause") == "child" and not result["again"]}


def _superseded(run: Run) -> list[int]:
    """The rows to set aside: the effects whose error is the run's own, and the notes made because of them.

    An effect that the same code went on to make after the error is a consequence of it. Then nothing is set aside:
    once the error is gone, the code may ask for another effect there.
    """
    failed: list[tuple[int, str]] = []
    later: list[tuple[int, str, str]] = []
    rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, phase=Phase.RESULT)
    rows = rows.exclude(path__startswith="@").order_by("-seq")
    for seq, path, kind, error in rows.values_list("seq", "path", "kind", "error").iterator(chunk_size=200):
        if kind in EFFECTS and _same(error, run.error):
            if any(kind not in NOTES and _goes_on(at, path) for _, at, kind in later):
                break
            failed.append((seq, path))
            continue
        if failed and kind not in NOTES:
            break
        later.append((seq, path, kind))
    notes = [seq for seq, at, kind in later if kind in NOTES and any(seq > s and _goes_on(at, p) for s, p in failed)]
    return sorted([*(seq for seq, _ in failed), *notes])


def _same(error: dict[str, Any] | None, failure: dict[str, Any] | None) -> bool:
    if error and error.get("happened"):  # an at-most-once effect that a guardrail failed the run after
        return False
    return all(error.get(key) == failure.get(key) for key in ("type", "message")) if error and failure else False


def _goes_on(path: str, failed: str) -> bool:
    """Whether a later call at `path` may be made by the code that saw the call at `failed` fail: in the same scope, or
    in one around it."""
    scope = path[: max(path.rfind("."), path.rfind("/")) + 1]
    return failed.startswith(scope)
