"""End a run, with its asks, its requests to people and its children. A cancellation locks the run, raises its epoch and
adds a row: its writer holds no lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import F, Q

from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal import fence, outbox
from ravi_django.engine.journal.append import mark, store_big_values, write_row
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.lease_state import RETENTION
from ravi_django.engine.lease.sleeps import check_name
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.wake_state import PEOPLES
from ravi_django.kernel import LeaseLostError
from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.errors import IllegalTransitionError, InvalidInputError, PermanentError
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import ControlPayload, Message
from ravi_django.live.streams import republish
from ravi_django.models import TERMINAL, Ask, InboxMessage, JournalEntry, Run, Session, Signal, Status, Turn
from ravi_django.models.session import by_agent
from ravi_django.people.rows import close_requests, note_closed
from ravi_django.runs import hints
from ravi_django.runs.sessions import pass_on, promote, promote_soon
from ravi_django.runs.signals import send_signal
from ravi_django.runs.teams import slots
from ravi_django.runs.teams.ask_rows import settle_asks
from ravi_django.runs.teams.asks import unreachable
from ravi_django.runs.teams.messages import content_of, filled, raise_recorded, refuse, run_id_of
from ravi_django.runs.teams.slots import reached
from ravi_django.runs.wake import RELEASED, NotLocked, append_locked, locking, touch


def cancel(run_id: UUID | str, reason: str) -> None:
    """Cancel a run. One without a lease ends at once, and its stream with it; the worker of a leased one reads it at
    the next heartbeat. Raises IllegalTransitionError when the run has ended."""
    for claimable in request_cancel(run_id, reason):
        hints.on_commit(claimable)
    run = Run.objects.get(id=run_id)
    if run.is_terminal:
        republish.on_commit(run, _publish_end)
    else:
        transaction.on_commit(lambda: hints.cancel_here(run.id), robust=True)


def cancel_for(user: Any, run_id: UUID, reason: str = "") -> None:
    """`cancel` for a user who may see the run. The default reason names nobody: others' journals and streams copy
    it."""
    is_owner = Run.objects.filter(id=run_id, owner_id=user.pk).exists()
    cancel(run_id, reason or f"cancelled by {'its owner' if is_owner else 'an administrator'}")


def _publish_end(run: Run) -> None:
    if run.parent_id is None:
        republish.republish(str(run.id))
    else:
        republish.publish_ended(run, republish.ended_with(run, run.finished_at or run.created_at))


async def control(ctx: RunState, target: AgentId | RunHandle, message: Message, payload: ControlPayload) -> None:
    """Act on a run below: `abort` cancels it, any other name is a signal to it."""
    recorder, path, signal = ctx.recorder, ctx.path(), payload.signal
    check_name(signal)
    if signal.startswith(PEOPLES):
        raise InvalidInputError(f"{signal!r} is what a person says; no agent says it in their place", field="signal")
    if not isinstance(target, RunHandle):
        raise InvalidInputError("a control message goes to a run: give its handle", field="target")
    arguments = {"run": target.run_id, "message": content_of(message)}
    row = await recorder.recall(path, "msg.sent", str(target.agent_id), arguments)
    if row is not None:
        raise_recorded(row)
        return
    target_id, key = run_id_of(target), filled(ctx, target.agent_id, message, path, control=True)["id"]
    entry = Entry("msg.sent", path, str(target.agent_id), request={"message": key})
    async with recorder.effect():
        refusal = await unreachable(ctx, target_id)
        if refusal is None and not await recorder.database.call(is_ancestor, recorder.lease.run_id, target_id):
            detail = f"run {recorder.lease.run_id} may not control run {target_id}: it is no ancestor of it"
            refusal = PermanentError(detail)
        if refusal is not None:
            await refuse(ctx, entry, refusal)
        entry.result = {"run": str(target_id), "control": signal}
        woken = [target_id]
        write = partial(record_control, target_id=target_id, signal=signal, data=payload.data, key=key, woken=woken)
        await recorder.record(entry, write)
    recorder.wake(woken)


def request_cancel(run_id: UUID | str, reason: str) -> list[UUID]:
    """Cancel a run and the runs below it: at once without a lease, else at the worker's next heartbeat. Returns the
    runs to hint. Raises IllegalTransitionError when the run has ended."""
    wanted = UUID(str(run_id))
    return locking(to_cancel(wanted), lambda held: cancel_held(wanted, reason, held))


def to_cancel(run_id: UUID) -> set[UUID]:
    """The runs to lock for the cancellation of one: its parent, which reads the outcome, the root, and all below it."""
    parents = Run.objects.filter(id=run_id, parent__isnull=False).values_list("parent_id", "root_id")
    return concerned(run_id).union(*parents)


def cancel_held(run_id: UUID, reason: str, held: set[UUID]) -> list[UUID]:
    """`request_cancel` in a transaction that has `held` locked. Raises NotLocked too."""
    run = Run.objects.select_for_update(no_key=True).get(id=run_id)
    if run.is_terminal:
        raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
    return [*cancel_locked(run, reason, held), *slots.promote(run.tree_id, held)]


def cancel_reason(run_id: UUID) -> str:
    """Why the run is being cancelled; empty when it is not."""
    return str(Run.objects.values_list("cancel_reason", flat=True).get(id=run_id))


def record_control(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    target_id: UUID,
    signal: str,
    data: dict[str, Any],
    key: str,
    woken: list[UUID],
) -> int:
    """Write what a control message does to a run below: `abort` cancels it, any other name is a signal. Nothing happens
    to a run that has ended. The runs to hint are added to `woken`."""

    def write(held: set[UUID]) -> None:
        with suppress(IllegalTransitionError):
            if signal == "abort":
                woken.extend(cancel_held(target_id, f"aborted by run {lease.run_id}", held))
            else:
                send_signal(target_id, signal, data, key)
                touch([target_id])  # in this transaction, not after its commit
                Signal.objects.filter(run_id=target_id, key=key, woke=False).update(woke=True)

    return append_locked(lease, entries, turns, to_cancel(target_id) if signal == "abort" else {target_id}, write)


def is_ancestor(run_id: UUID, of: UUID) -> bool:
    return run_id != of and run_id in slots.above(Run.objects.get(id=of))


OWNER_DELETED = "its owner was deleted"  # the cancel reason of a deleted user's runs; a mark, see `erasing.py`


class UnreadMessages(Exception):
    """The run has a message that its code has not read: it is not complete yet."""


def finish(
    lease: Lease,
    status: Status,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    output: str | None = None,
    error: dict[str, Any] | None = None,
    entangled: bool = False,
    retains: bool = True,
) -> tuple[int, list[UUID]]:
    """End the run under its lease, write the outcome for its askers, and promote the next queued run of its session.
    `entangled`: it may have children or open requests, which end with it. `retains`: all its turns stay.

    Returns the seq of the first row written, and the runs to hint. Raises UnreadMessages, and writes nothing, when a
    run that would complete has a message that its code has not read.
    """
    run = lease.run
    if entangled:
        note_closed(run.id, entries[-1])
    store_big_values(entries)
    changes = {
        "status": status,
        "output": output,
        "error": error,
        "finished_at": clock.now(),
        "waiting_on": None,
        "awaits_slot": False,
        **RELEASED,
    }

    def end(held: set[UUID]) -> tuple[int, list[UUID]]:
        woken = False
        try:
            first = fence.append_in_transaction(lease, entries, turns, seen=run.wake_seq, **changes)
        except LeaseLostError:  # or it was woken since the claim: then the second append does not raise
            first, woken = fence.append_in_transaction(lease, entries, turns, **changes), True
            if status == Status.COMPLETED and _has_unread(run):
                raise UnreadMessages from None
        if not retains:
            drop_turns(run)
        asked = run.parent_id is not None or woken or run.wake_seq > 0
        if asked and status != Status.COMPLETED and run.parent_id is None:
            pass_on(run)
        hints = _end_with(run, status, output, error, held, asked=asked, entangled=entangled)
        return first, hints if run.parent_id is None else [*hints, *slots.promote(run.tree_id, held)]

    is_plain = run.parent_id is None and status == Status.COMPLETED and retains and not (entangled or run.wake_seq)
    if is_plain and turns and fence.in_one_statement(entries, turns) and not connection.in_atomic_block:
        with suppress(LeaseLostError):  # or it was woken since the claim
            first = fence.append_in_transaction(lease, entries, turns, seen=run.wake_seq, **changes)
            return first, promote_soon(run)
    return locking({run.id, run.parent_id or run.id, run.tree_id}, end)


def _has_unread(run: Run) -> bool:
    return InboxMessage.objects.filter(run_id=run.id, id__gt=F("run__read_upto")).exists()


def _end_with(
    run: Run,
    status: Status,
    output: str | None,
    error: dict[str, Any] | None,
    held: set[UUID],
    *,
    asked: bool = True,
    entangled: bool = True,
) -> list[UUID]:
    """End what needs the run: settle the asks of it, close its open requests, cancel its live children, and promote the
    next queued run of its session. Returns the runs to hint."""
    if run.parent_id is not None:
        _keep_or_drop_memory(run)
    return [
        *(settle_asks(run.id, status, output, error, held) if asked else ()),
        *(close_requests(run, held) if entangled else ()),
        *(cancel_children(run, ended_reason(run.id), held) if entangled else ()),
        *(promote(run) if run.status != Status.QUEUED else ()),
    ]


def _keep_or_drop_memory(child: Run) -> None:
    """Later children of the conversation read the turns of one that remembers. Nothing reads those of another."""
    if child.session.memory_of is not None:
        Session.objects.filter(id=child.session_id).update(ended_at=clock.now())
    else:
        Turn.objects.filter(Q(run=child.id) | Q(run=None), session=child.session_id).delete()


def drop_turns(run: Run) -> None:
    """Delete the turns that were kept for this run alone."""
    agents = JournalEntry.objects.filter(run_id=run.id, path__startswith=RETENTION).values_list("name", flat=True)
    if names := list(agents):  # else the turns of the whole session would be read for nothing
        Turn.objects.filter(by_agent(*names), session_id=run.session_id, run_id=run.id).delete()


def ended_reason(run_id: UUID) -> str:
    """The cancel reason of the children of a run that has ended."""
    return f"run {run_id} has ended"


def cancel_locked(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """Cancel a locked run and what depends on it: at once, or by a mark that its worker reads."""
    recorded_reason = OWNER_DELETED if run.cancel_reason == OWNER_DELETED else reason
    changes = {"cancel_requested_at": clock.now(), "cancel_reason": recorded_reason[:200], "awaits_slot": False}
    Run.objects.filter(id=run.id).update(**changes)
    if run.status == Status.RUNNING:
        return cancel_children(run, reason, held)
    return end_unleased(run, Status.CANCELLED, {"type": "Cancelled", "message": recorded_reason}, held)


def cancel_children(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """The run is locked, and a spawn writes its parent: no child is added meanwhile."""
    live = list(Run.objects.filter(parent_id=run.id).exclude(status__in=TERMINAL).order_by("id"))
    if {child.id for child in live} - held:
        raise NotLocked(concerned(run.id))
    return [woken for child in live for woken in cancel_locked(child, reason, held)]


def concerned(run_id: UUID) -> set[UUID]:
    """The live runs at and below a run, and the runs that ask one of them: its cancellation writes these."""

    def below(edge: set[UUID]) -> Iterable[UUID]:
        return Run.objects.filter(parent_id__in=edge).exclude(status__in=TERMINAL).values_list("id", flat=True)

    run_ids = reached({run_id}, below)
    return run_ids | set(Ask.objects.filter(target_id__in=run_ids, outcome=None).values_list("asker_id", flat=True))


def end_unleased(run: Run, status: Status, error: dict[str, Any], held: set[UUID]) -> list[UUID]:
    """End a locked run without a lease: the epoch rises, and its row is written under the new one."""
    entry = Entry(kind=f"run.{status}", path=f"@{status}.{run.lease_epoch + 1}", error=error)
    note_closed(run.id, entry)
    Run.objects.filter(id=run.id).update(
        status=status,
        error=error,
        lease_epoch=F("lease_epoch") + 1,
        next_seq=F("next_seq") + 1,
        finished_at=clock.now(),
        waiting_on=None,
        **RELEASED,
    )
    mark(run.id)
    write_row(run, entry, run.lease_epoch + 1)
    outbox.write(outbox.of_entries(run, [entry]))
    drop_turns(run)
    if run.parent_id is None and error["message"] != OWNER_DELETED:
        pass_on(run)
    return _end_with(run, status, None, error, held)
