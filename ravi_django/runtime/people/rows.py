"""Requests to people: opened by the lease holder, answered once by whoever comes first, or closed when nobody did."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

from django.db.models import F, Q

from ravi_django.db import connection, transaction
from ravi_django.kernel import ConflictError, NotFoundError
from ravi_django.models import TERMINAL, HumanRequest, Run, Status, StickyDecision
from ravi_django.runtime.db import clock
from ravi_django.runtime.db.clock import present
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.journal.outbox import TOP_UP
from ravi_django.runtime.lease.refusals import NotDue, TooManyRequests
from ravi_django.runtime.people.records import log_entry, record, record_all, tell, what_is_asked
from ravi_django.runtime.people.reply_rows import forget_earlier, has_reply, write_reply
from ravi_django.runtime.people.standing import stick
from ravi_django.runtime.runs.waking import require, touch
from ravi_django.signals import request_answered, request_closed, request_opened


@appending
def open_request(lease: Lease, *, request: HumanRequest, most: int | None = None) -> None:
    """Write a request with the journal rows that announce it, in one commit.

    Raises TooManyRequests when the run has `most` of its kind and tool already, whatever has become of those.
    """
    # The append holds the run's row: of two requests at once one is counted first.
    same = HumanRequest.objects.filter(run_id=lease.run_id, kind=request.kind, tool=request.tool)
    if most is not None and same.count() >= most:
        raise TooManyRequests
    if request.signal:
        forget_earlier(request)
    write_request(request, lease.run)


def write_request(request: HumanRequest, run: Run) -> None:
    """In the caller's transaction: the row, its record, and word of it once that commits."""
    clock.stamp(request).save(force_insert=True)
    record(request, "opened", run, what_is_asked(request))
    tell(request_opened, request)


@appending
def expire_request(lease: Lease, *, request_id: UUID) -> None:
    """Record that nobody answered in time, and close the request. Raises NotDue when somebody has, or when by the
    database's clock there is time left."""
    request = HumanRequest.objects.select_for_update(no_key=True).get(id=request_id)
    if request.status != HumanRequest.Status.PENDING:
        raise NotDue(None)
    now = present()
    if request.expires_at is None or now < request.expires_at:  # our clock is ahead: look again, but not at once
        raise NotDue(request.expires_at and max(request.expires_at, now + timedelta(milliseconds=50)))
    if request.signal and has_reply(request):
        raise NotDue(None)
    _close(request, HumanRequest.Status.EXPIRED, lease.run)


@appending
def withdraw_request(lease: Lease, *, request_id: UUID) -> None:
    """Record that the run's code goes on without a decision, and close the request, unless somebody just has."""
    request = HumanRequest.objects.select_for_update(no_key=True).get(id=request_id)
    if request.status == HumanRequest.Status.PENDING:
        reason = f"run {lease.run_id} goes on without it"
        _close(request, HumanRequest.Status.CANCELLED, lease.run, {"reason": reason})


def _close(request: HumanRequest, status: HumanRequest.Status, run: Run, detail: dict[str, Any] | None = None) -> None:
    HumanRequest.objects.filter(id=request.id).update(status=status, answered_at=clock.now(), version=F("version") + 1)
    request.status, request.version = status, request.version + 1
    record(request, status.value, run, detail)
    tell(request_closed, request)


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


def answer_request(
    request_id: UUID | str,
    answer: dict[str, Any],
    *,
    by: Any,
    version: int | None = None,
    sticky: StickyDecision | None = None,
) -> bool:
    """Answer a pending request: the first answer wins. The answer, its records, the signal that it sends and the run's
    wake-up are one commit. `sticky` is written with it. Returns whether the run is woken; inside a caller's transaction
    it is not, and `wake_silent` has to follow the commit.

    Raises NotFoundError, and ConflictError when it is answered, closed, changed since `version`, when it is too early
    or too late, and when the run has ended.
    """
    inside = connection.in_atomic_block
    with transaction.atomic():
        request = HumanRequest.objects.filter(id=request_id).first()
        if request is None:
            raise NotFoundError(f"there is no request {request_id}")
        if request.status != HumanRequest.Status.PENDING:  # it stays so: the many who come late need no lock
            raise ConflictError(_why_not(request_id))
        if request.not_before is not None and present() < request.not_before:
            raise ConflictError(
                f"request {request.id} can be answered from {request.not_before:%H:%M:%S} UTC on: until then the "
                "worker that began it may still be at it"
            )
        run = Run.objects.select_for_update(no_key=True).only(*_OF_RUN).get(id=request.run_id)
        check_in_time(request, run.status)
        if request.signal and has_reply(request):
            raise ConflictError(f"run {run.id} was sent the signal {request.signal} before; that is its answer")
        pending = HumanRequest.objects.filter(
            id=request.id, status=HumanRequest.Status.PENDING, version=request.version if version is None else version
        )
        if not pending.update(
            status=HumanRequest.Status.ANSWERED,
            answer=answer,
            answered_by=by,
            answered_at=clock.now(),
            version=F("version") + 1,
            woke=not inside,
        ):
            raise ConflictError(_why_not(request_id))
        request.refresh_from_db()
        if sticky is not None:
            stick(sticky)
        if request.signal:
            write_reply(request, said(answer), woke=not inside)
        event = "cancelled" if answer.get("action") == "cancel" else "answered"
        record(request, event, run, {"answer": answer, "by": answer.get("by", "")})
        log_entry(request, by, words_of(answer))
        tell(request_answered, request, by=by)
        if not inside:
            touch([request.run_id])
    return not inside


_OF_RUN = ("status", "agent", "session_id", "root_id", "parent_id", "owner_id", "tenant")  # what the records say of it


def said(answer: dict[str, Any]) -> Any:
    """What the run is told of an answer by a signal."""
    return {name: answer.get(name, "") for name in ("action", "text", "by")}


def words_of(answer: dict[str, Any]) -> str:
    """An answer in one line, for Django's log."""
    parts = [answer.get("outcome"), answer.get("text"), answer.get("reason")]
    told = ": ".join(str(part) for part in (answer.get("action"), *parts) if part)
    return f"Answered: {told}"[:1000] + (f" (in place of {answer['instead_of']})" if answer.get("instead_of") else "")


def refuse_late(request: HumanRequest) -> NoReturn:
    """Raise ConflictError: it is decided, or closed, already."""
    raise ConflictError(_closed(request))


def refuse_changed(request_id: UUID | str) -> NoReturn:
    """Raise ConflictError: it is not as it was when it was read."""
    raise ConflictError(_why_not(request_id))


def check_in_time(request: HumanRequest, run_status: str) -> None:
    """Raise ConflictError when its run has ended, or its time."""
    if run_status in TERMINAL:
        raise ConflictError(f"run {request.run_id} is {run_status} already; nobody would read the answer")
    if request.expires_at is not None and request.expires_at <= present():
        raise ConflictError(f"request {request.id} expired at {request.expires_at:%Y-%m-%d %H:%M:%S} UTC")


def _why_not(request_id: UUID | str) -> str:
    request = HumanRequest.objects.select_related("answered_by").get(id=request_id)
    if request.status == HumanRequest.Status.PENDING:
        return f"request {request.id} has changed since: it is at version {request.version} now; read it again"
    return _closed(request)


def _closed(request: HumanRequest) -> str:
    name = request.answered_by or (request.answer or {}).get("by")
    who = f" by {name}" if name else ""
    return f"request {request.id} is {request.status} already{who}"
