"""Retry a failed or blocked run: at a person's request it continues from its journal. For every surface."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q

from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.clock import present
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.append import write_row
from ravi_django.engine.journal.entries import Entry
from ravi_django.kernel import IllegalTransitionError
from ravi_django.live.streams import republish
from ravi_django.live.streams.frames import request_as_json
from ravi_django.models import TERMINAL, Ask, HumanRequest, JournalEntry, Phase, Run, Status, uuid7
from ravi_django.people import requests
from ravi_django.people.records import notify, record_all
from ravi_django.runs import hints
from ravi_django.runs.catalog import specs
from ravi_django.runs.lifecycle.endings import ended_reason
from ravi_django.runs.lifecycle.erasing import check_owned
from ravi_django.runs.lifecycle.prune_rows import is_pruned
from ravi_django.runs.sessions import active_root, lock_session
from ravi_django.runs.wake import RELEASED, lock, ready
from ravi_django.signals import request_opened


def retry(run_id: UUID | str, *, send: Any = None) -> Run:
    """Let a failed or blocked run continue from its journal: the failed call is made again, recorded ones are not.

    Inside the caller's transaction; a worker is notified after the commit. `deadline_s` of a budget counts from the
    run's first start, or from now if it has passed. Returns the run, pending or queued. Raises IllegalTransitionError
    where the run's state forbids it.
    """
    run = write_retry(run_id)
    republish.on_commit(run, republish.publish_retried)  # before the frames of the next lease
    if run.status == Status.PENDING:
        hints.on_commit(run.id, send)
    return run


EFFECTS = ("llm.call", "tool.call", "ask", "child.spawned", "run.handoff")
# Rows that are written with another row's commit, and cost nothing to make again.
NOTES = ("log", "log_once", "now", "history.read", "history.count", "chat.output")


def write_retry(run_id: UUID | str) -> Run:
    """Make a failed or blocked run claimable again: pending, or queued behind its session's active run of the agent.

    The effects that failed it are superseded and made again; all other recorded ones stay. Requests to people that the
    failure closed are open again. Returns the run.

    Raises IllegalTransitionError for a run in another status, a failed child (its parent has read the outcome), a
    deadline that has passed, a deleted owner, a pruned journal, and while a worker still cancels a child of the run.
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
        superseded = sorted({*_superseded(run), *_lost_children(run)})
        entry = Entry("run.retried", f"@retried.{epoch}", result={"supersedes": superseded})
        Run.objects.filter(id=run.id).update(
            **ready() | ({"status": Status.QUEUED} if others else {}),
            started_at=clock.now() if _spent(run, now) else F("started_at"),
            lease_epoch=epoch,
            next_seq=F("next_seq") + 1,
            **_AFRESH,
            **RELEASED,
        )
        if opened := [request_as_json(request) for request in _reopen_requests(run)]:
            entry.result["opened"] = opened
        write_row(run, entry, epoch)
        outbox.write(outbox.of_entries(run, [entry]))
        run.refresh_from_db()
    return run


# The archive stays: it has the earlier frames of the stream.
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
    specs.check_not_withdrawn(run)
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
    """Open the requests that the failure closed and whose effects have no result: the run waits for their answers
    again. Returns them."""
    done = JournalEntry.objects.filter(
        run_id=run.id, generation=run.generation, path=OuterRef("path"), phase=Phase.RESULT
    )
    now, of_run = (
        present(),
        HumanRequest.objects.filter(run_id=run.id, generation=run.generation).order_by("created_at"),
    )
    closed = list(
        of_run.filter(~Exists(done), status=HumanRequest.Status.CANCELLED, answer__isnull=True).select_for_update(
            no_key=True
        )
    )
    later = of_run.filter(path=OuterRef("path"), attempt=OuterRef("attempt"), created_at__gt=OuterRef("created_at"))
    decided = of_run.filter(~Exists(done), ~Exists(later), answer__outcome="fail")
    again = [_asked_again(request) for request in decided]  # the row of the answer stays
    for request in (*closed, *again):
        requests.begin_anew(request, now)
    for request in closed:
        request.version += 1
    if closed:
        HumanRequest.objects.bulk_update(closed, _ANEW)
    HumanRequest.objects.bulk_create(again)
    opened = [*closed, *again]
    record_all(opened, "opened", run)
    for request in opened:
        notify(request_opened, request)
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
    """Children that were cancelled because the run had failed: they are spawned and asked again. Returns the rows to
    supersede. A child that a worker still cancels may act or complete: a second one would act twice."""
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
    """Children that a paused tool call waited for and whose tool must not run again: their end is its result."""
    paused = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, phase=Phase.PAUSED)
    results = paused.values_list("result", flat=True)
    return {result["run"] for result in results if result and result.get("pause") == "child" and not result["again"]}


def _superseded(run: Run) -> list[int]:
    """The rows to supersede: effects whose error is the run's own, and the notes made because of them.

    None, if the same code made another effect after the error: without the error it may ask for another one there.
    """
    failed: list[tuple[int, str]] = []
    later: list[tuple[int, str, str]] = []
    rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, phase=Phase.RESULT)
    rows = rows.exclude(~Q(kind__in=EFFECTS), path__startswith="@").order_by("-seq")
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
    if error and error.get("happened"):  # a guardrail failed the run after an at-most-once effect
        return False
    return all(error.get(key) == failure.get(key) for key in ("type", "message")) if error and failure else False


def _goes_on(path: str, failed: str) -> bool:
    """Whether the code that saw the call at `failed` fail may have made a later call at `path`: in the same scope, or
    in one around it."""
    scope = path[: max(path.rfind("."), path.rfind("/")) + 1]
    return failed.startswith(scope)
