"""What the end of a run means for others: who asked it, its children, and the people it has asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import F, Q

from ravi_django.models import TERMINAL, Ask, AskKind, HumanRequest, JournalEntry, Run, Status, Turn
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, journal_row
from ravi_django.runtime.store import outbox
from ravi_django.runtime.store.queue import promote
from ravi_django.runtime.store.records import record_all, tell
from ravi_django.runtime.store.touching import RELEASED, NotLocked, touch
from ravi_django.signals import request_closed

TOP_UP = "budget"  # the tool of a request for more of it
OWNER_DELETED = "its owner was deleted"  # the cancel reason of a deleted user's runs
RETENTION = "@retention."  # and the agent: its turns of this run are kept for the run alone

ENDS = {
    Status.COMPLETED: AskKind.REPLIED,
    Status.FAILED: AskKind.TARGET_FAILED,
    Status.CANCELLED: AskKind.TARGET_CANCELLED,
}


def end_result(status: str, output: str | None, error: dict[str, Any] | None) -> Any:
    return output if status == Status.COMPLETED else error


def settle_asks(
    target_id: UUID, status: Status, output: str | None, error: dict[str, Any] | None, held: set[UUID]
) -> list[UUID]:
    """The target has ended: that is the outcome of what is still open. Returns the runs woken by it."""
    open_asks = Ask.objects.filter(target_id=target_id, outcome=None)
    askers = list(open_asks.values_list("asker_id", flat=True))
    if not askers:
        return []
    require(askers, held)
    open_asks.update(outcome=ENDS[status], result=end_result(status, output, error), settled_at=clock.now())
    touch(askers)
    return sorted(set(askers))


def end_dependents(run: Run, held: set[UUID]) -> list[UUID]:
    """Nothing outlives the run that needs it: live children are cancelled, open requests closed. Returns the runs to
    hint."""
    return [*close_requests(run, held), *cancel_children(run, ended_reason(run.id), held)]


def drop_turns(run_id: UUID) -> None:
    """The run has ended, whichever way: the turns that were kept for it alone go with it."""
    agents = JournalEntry.objects.filter(run_id=run_id, path__startswith=RETENTION).values("name")
    Turn.objects.filter(run_id=run_id, agent__in=agents).delete()


def close_requests(run: Run, held: set[UUID]) -> list[UUID]:
    """The run waits for no answer any more: it has ended, or has begun anew. Others of its tree may wait for that to
    its request for more budget: they are woken, and one of them asks again. Returns those."""
    pending = HumanRequest.objects.filter(run_id=run.id, status=HumanRequest.Status.PENDING)
    closed = list(pending.select_for_update(no_key=True).order_by("id"))  # somebody may just have them asked of others
    if not closed:
        return []
    asked = {request.id for request in closed if request.tool == TOP_UP}
    woken = _waiting_for(run, asked) if asked else []
    require(woken, held)
    pending.update(status=HumanRequest.Status.CANCELLED, answered_at=clock.now(), version=F("version") + 1)
    for request in closed:
        request.status, request.version = HumanRequest.Status.CANCELLED, request.version + 1
        tell(request_closed, request)
    record_all(closed, "cancelled", run, lambda request: {"reason": f"run {run.id} waits for it no more"})
    touch(woken)
    return woken


def _waiting_for(run: Run, asked: set[UUID]) -> list[UUID]:
    """Those that are driven may be about to."""
    tree = Run.objects.filter(Q(id=run.tree_id) | Q(root_id=run.tree_id)).exclude(id=run.id).order_by("id")
    names = {str(request_id) for request_id in asked}
    return [
        run_id
        for run_id, status, waits in tree.exclude(status__in=TERMINAL).values_list("id", "status", "waiting_on")
        if status == Status.RUNNING
        or (status == Status.SUSPENDED and any(wait.get("id") in names for wait in waits or ()))
    ]


def note_closed(run_id: UUID, entry: Entry) -> None:
    """Put into the row that ends the run which open requests end with it: whoever watches is told from it."""
    pending = HumanRequest.objects.filter(run_id=run_id, status=HumanRequest.Status.PENDING).order_by("id")
    if closed := [str(request_id) for request_id in pending.values_list("id", flat=True)]:
        entry.result = {**(entry.result or {}), "closed": closed}


def ended_reason(run_id: UUID) -> str:
    """Why a child was cancelled whose parent has ended."""
    return f"run {run_id} has ended"


def cancel_locked(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """Cancel a run that is locked, and what depends on it: at once, or by telling whoever leases it."""
    said = OWNER_DELETED if run.cancel_reason == OWNER_DELETED else reason  # a mark that stays: see `disowned`
    Run.objects.filter(id=run.id).update(cancel_requested_at=clock.now(), cancel_reason=said[:200])
    if run.status == Status.RUNNING:
        return cancel_children(run, reason, held)
    return end_unleased(run, Status.CANCELLED, {"type": "Cancelled", "message": said}, held)


def cancel_children(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """The run is locked, and a spawn writes its parent: no child comes meanwhile."""
    live = list(Run.objects.filter(parent_id=run.id).exclude(status__in=TERMINAL).order_by("id"))
    if {child.id for child in live} - held:
        raise NotLocked(concerned(run.id))
    return [woken for child in live for woken in cancel_locked(child, reason, held)]


def concerned(run_id: UUID) -> set[UUID]:
    """The live runs at and below a run, and those that ask one of them: what its cancellation writes."""
    found, edge = {run_id}, {run_id}
    while edge:
        live = Run.objects.filter(parent_id__in=edge).exclude(status__in=TERMINAL)
        edge = set(live.values_list("id", flat=True)) - found
        found |= edge
    return found | set(Ask.objects.filter(target_id__in=found, outcome=None).values_list("asker_id", flat=True))


def require(run_ids: Iterable[UUID], held: set[UUID]) -> None:
    """Raise NotLocked unless all of them are."""
    if missing := set(run_ids) - held:
        raise NotLocked(missing)


def end_unleased(run: Run, status: Status, error: dict[str, Any], held: set[UUID]) -> list[UUID]:
    """End a locked run that nobody leases: the epoch rises, and its row is written under the new one."""
    entry = Entry(kind=f"run.{status}", path=f"@{status}.{run.lease_epoch + 1}", error=error)
    note_closed(run.id, entry)
    Run.objects.filter(id=run.id).update(
        status=status,
        error=error,
        lease_epoch=F("lease_epoch") + 1,
        next_seq=F("next_seq") + 1,
        finished_at=clock.now(),
        waiting_on=None,
        paused_at=None,
        **RELEASED,
    )
    journal_row(
        entry,
        run_id=run.id,
        seq=run.next_seq,
        generation=run.generation,
        epoch=run.lease_epoch + 1,
        now=clock.now(),
        start=clock.now(),
    ).save(force_insert=True)
    outbox.write(outbox.of_entries(run, [entry]))
    drop_turns(run.id)
    hints = [*settle_asks(run.id, status, None, error, held), *end_dependents(run, held)]
    return hints if run.status == Status.QUEUED else [*hints, *promote(run)]
