"""The rows of asks and messages between runs.

Every function here writes two runs: it locks both, in the order of their ids, before the fence locks its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.clock import present
from ravi_django.engine.journal.append import append_rows, appending, store_big_values
from ravi_django.engine.journal.entries import Entry, NewTurn, internalize
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.lease_state import PROVIDER, NotExpired
from ravi_django.models import TERMINAL, Ask, AskKind, HumanRequest, InboxMessage, JournalEntry, Run, Status
from ravi_django.runs.sessions import active_root, create_run
from ravi_django.runs.teams.slots import reached
from ravi_django.runs.wake import append_locked, lock, require, touch


def open_ask(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    ask: Ask,
    message: dict[str, Any] | None,
) -> int:
    """Deliver the question and write the row of the ask, which gets its outcome once. Without a `message` it waits for
    the target's end alone. Is the outcome known (the target has ended or replied; the wait would close a cycle), it is
    written at once.
    """

    def write(held: set[UUID]) -> None:
        target = Run.objects.get(id=ask.target_id)
        if ask.asker_id == target.id or (not target.is_terminal and ask.asker_id in _awaited(target.id)):
            error = {"type": "Cycle", "message": f"run {target.id} waits for run {ask.asker_id} itself"}
            _settle(ask, AskKind.TARGET_FAILED, error)
        else:
            new = message is not None and _deliver_here(target, message)
            _settle_at_once(ask, target, known=not new)
            if ask.outcome is None:
                touch([target.id])  # a run that was never woken does not look for its askers when it ends
        clock.stamp(ask).save(force_insert=True)
        if ask.outcome is not None:
            touch([lease.run_id])  # its worker reads its wake state again

    return append_locked(lease, entries, turns, [ask.target_id], write)


def _awaited(run_id: UUID) -> set[UUID]:
    """The runs that this run waits for, and that those wait for."""

    def asked(edge: set[UUID]) -> Iterable[UUID]:
        open_asks = Ask.objects.filter(asker_id__in=edge, outcome=None).exclude(asker__status__in=TERMINAL)
        return open_asks.values_list("target_id", flat=True)

    return reached(asked({run_id}), asked)


def _deliver_here(target: Run, message: dict[str, Any]) -> bool:
    """Put the message into the run's inbox, unless it has ended; False when it is there already."""
    if InboxMessage.objects.filter(run=target, message_id=message["id"]).exists():
        return False
    if not target.is_terminal:
        InboxMessage.of(target, message).save(force_insert=True)
    return True


def _settle_at_once(ask: Ask, target: Run, *, known: bool) -> None:
    if ask.message_id:
        replies = JournalEntry.objects.filter(run=target, kind="ask.replied", name=ask.message_id)
        reply = replies.order_by("seq").first()
        if reply is not None:
            internalize([reply])
            _settle(ask, AskKind.REPLIED, (reply.result or {}).get("result"))
            return
    if target.is_terminal and known:
        _settle(ask, ENDS[Status(target.status)], end_result(target.status, target.output, target.error))
    elif target.is_terminal:
        error = {"type": "Ended", "message": f"run {target.id} is {target.status}; it reads no more messages"}
        _settle(ask, AskKind.TARGET_FAILED, error)


def _settle(ask: Ask, outcome: AskKind, result: Any) -> None:
    ask.outcome, ask.result, ask.settled_at = outcome, result, clock.now()


def settle_asks(
    target_id: UUID, status: Status, output: str | None, error: dict[str, Any] | None, held: set[UUID]
) -> list[UUID]:
    """The target has ended: write that as the outcome of its open asks. Returns the runs that this wakes."""
    open_asks = Ask.objects.filter(target_id=target_id, outcome=None)
    askers = list(open_asks.values_list("asker_id", flat=True))
    if not askers:
        return []
    require(askers, held)
    open_asks.update(outcome=ENDS[status], result=end_result(status, output, error), settled_at=clock.now())
    touch(askers)
    return sorted(set(askers))


@appending
def time_out_ask(lease: Lease, *, ask_id: UUID, late: str | None = None) -> None:
    """Record that no outcome came in time. With `late`, a later reply is not a message, see `reply`. Raises NotExpired
    when an outcome has come, or when the target's tree waited for people or for a model's limit: that time is added to
    the deadline."""
    ask = Ask.objects.select_for_update().get(id=ask_id)
    if ask.outcome is not None:
        raise NotExpired(None)
    now = present()
    until = (ask.deadline or now) + _waited_for_others(ask, now)
    if until > now:  # with an open request it is always a moment ahead: do not look all the time
        raise NotExpired(max(until, now + timedelta(seconds=conf.SWEEP_S)))
    noted = {"result": {"late": late}} if late else {}
    Ask.objects.filter(id=ask_id).update(outcome=AskKind.TIMED_OUT, settled_at=clock.now(), **noted)


def _waited_for_others(ask: Ask, present: datetime) -> timedelta:
    """How long people had an open request of the target or a run below it, or one of these runs was suspended at a
    model's limit, since the ask."""
    tree = Run.objects.filter(root_id=ask.target.tree_id).order_by("depth")
    below = {ask.target_id}
    for child, parent in tree.values_list("id", "parent_id"):
        if parent in below:
            below.add(child)
    requests = HumanRequest.objects.filter(run_id__in=below, created_at__lt=present)
    spans = [
        (begun, ended or present)
        for begun, ended, status in requests.values_list("created_at", "answered_at", "status")
        if ended is not None or status == HumanRequest.Status.PENDING
    ]
    total, covered = timedelta(), ask.created_at
    for begun, ended in sorted([*spans, *_at_limits(below, ask.created_at, present)]):
        begun, ended = max(begun, covered), min(ended, present)
        if ended > begun:
            total += ended - begun
            covered = ended
    return total


def _at_limits(run_ids: set[UUID], since: datetime, present: datetime) -> Iterator[tuple[datetime, datetime]]:
    """When these runs were suspended at a model's limit: until their next row, or still."""
    rows = JournalEntry.objects.filter(Q(finished_at__gte=since) | Q(kind__in=("run.suspended", "run.resumed")))
    rows = rows.filter(run_id__in=run_ids).order_by("run_id", "seq")
    begun: dict[UUID, datetime] = {}
    for run_id, kind, result, moment in rows.values_list("run_id", "kind", "result", "finished_at"):
        if run_id in begun:
            yield begun.pop(run_id), moment
        if kind == "run.suspended" and any(
            wait.get("kind") == PROVIDER for wait in (result or {}).get("waiting_on", ())
        ):
            begun[run_id] = moment
    for moment in begun.values():
        yield moment, present


ENDS = {
    Status.COMPLETED: AskKind.REPLIED,
    Status.FAILED: AskKind.TARGET_FAILED,
    Status.CANCELLED: AskKind.TARGET_CANCELLED,
}


def end_result(status: str, output: str | None, error: dict[str, Any] | None) -> Any:
    return output if status == Status.COMPLETED else error


def reply(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    asker_id: UUID,
    message_id: str,
    result: Any,
    late: dict[str, Any],
) -> int:
    """Set the outcome of the ask of this message, and wake its asker. After a timeout the reply becomes an ordinary
    message, `late`, unless the ask was a delegation's. Without an ask, the row alone keeps the reply."""

    def write(held: set[UUID]) -> None:
        asks = Ask.objects.filter(target_id=lease.run_id, asker_id=asker_id, message_id=message_id)
        generations = set(asks.filter(outcome=None).values_list("generation", "asker__generation"))
        settled = asks.filter(outcome=None).update(outcome=AskKind.REPLIED, result=result, settled_at=clock.now())
        if any(asked == current for asked, current in generations):
            touch([asker_id])
        elif settled or asks.filter(outcome=AskKind.TIMED_OUT, result__isnull=True).exists():  # no code waits any more
            asker = Run.objects.get(id=asker_id)
            if _deliver_here(asker, late) and not asker.is_terminal:
                touch([asker_id])

    return append_locked(lease, entries, turns, [asker_id], write)


def deliver(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, target_id: UUID, message: dict[str, Any]
) -> int:
    """Put a message into another run's inbox and wake it. An ended run does not get it; the row says so."""
    with transaction.atomic():
        lock([lease.run_id, target_id])
        target = Run.objects.get(id=target_id)
        for entry in entries[-1:]:
            entry.result = {"run": str(target_id), "delivered": not target.is_terminal}
        store_big_values(entries)
        first = append_rows(lease, entries, turns)
        if _deliver_here(target, message) and not target.is_terminal:
            touch([target_id])
        return first


def deliver_to_agent(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, run: Run, message: dict[str, Any]
) -> int:
    """Put a message into the inbox of the agent's active run in the session. Without one, `run` becomes that run."""
    with transaction.atomic():
        active = active_root(run).values_list("id", flat=True).first()
        if active is not None:
            lock([lease.run_id, active])
            now = Run.objects.get(id=active)
            if not now.is_terminal and now.agent == run.agent:  # a handoff changes the agent
                return deliver(lease, entries, turns, target_id=active, message=message)
        for entry in entries[-1:]:
            entry.result = {"run": str(run.id), "delivered": True}
        store_big_values(entries)
        first = append_rows(lease, entries, turns)
        create_run(copy(run), message)  # a repeat after a lost commit begins with the same values
        return first
