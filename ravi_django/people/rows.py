"""The writes of requests to people: a lease holder opens and expires them, the first answer counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _, gettext_lazy

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.clock import present
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.outbox import TOP_UP
from ravi_django.engine.lease.lease_state import NotExpired, TooManyRequests
from ravi_django.engine.lease.wake_state import PERSONS
from ravi_django.kernel import ConflictError, NotFoundError
from ravi_django.models import TERMINAL, HumanRequest, Run, Signal, Status, StickyDecision
from ravi_django.people.records import log_entry, notify, record, record_all
from ravi_django.people.sticky import save_sticky
from ravi_django.runs.wake import require, touch
from ravi_django.signals import request_answered, request_closed, request_opened

_OF_RUN = ("status", "agent", "session_id", "root_id", "parent_id", "owner_id", "tenant")  # read for the records


@appending
def open_request(lease: Lease, *, request: HumanRequest, most: int | None = None) -> None:
    """Write a request with the journal rows that announce it. Raises TooManyRequests when the run already has `most`
    requests of its kind and tool, open or closed."""
    # The append holds the run's row: of two requests at once one is counted first.
    same = HumanRequest.objects.filter(run_id=lease.run_id, kind=request.kind, tool=request.tool)
    if most is not None and same.count() >= most:
        raise TooManyRequests
    if request.signal:
        forget_earlier(request)
    write_request(request, lease.run)


def write_request(request: HumanRequest, run: Run) -> None:
    """In the caller's transaction: the row, its record, and after the commit the Django signal."""
    clock.stamp(request).save(force_insert=True)
    record(request, "opened", run)
    notify(request_opened, request)


@appending
def expire_request(lease: Lease, *, request_id: UUID) -> None:
    """Append the row of a timeout, and close the request. Raises NotExpired when it has an answer, or when it has time
    left by the database's clock."""
    request = HumanRequest.objects.select_for_update(no_key=True).get(id=request_id)
    if request.status != HumanRequest.Status.PENDING:
        raise NotExpired(None)
    now = present()
    if request.expires_at is None or now < request.expires_at:  # our clock is ahead: look again, but not at once
        raise NotExpired(request.expires_at and max(request.expires_at, now + timedelta(milliseconds=50)))
    if request.signal and has_reply(request):
        raise NotExpired(None)
    _close(request, HumanRequest.Status.EXPIRED, lease.run)


@appending
def withdraw_request(lease: Lease, *, request_id: UUID) -> None:
    """Append the row of code that continues without a decision, and close the request if it is pending."""
    request = HumanRequest.objects.select_for_update(no_key=True).get(id=request_id)
    if request.status == HumanRequest.Status.PENDING:
        reason = f"run {lease.run_id} continued without an answer"
        _close(request, HumanRequest.Status.CANCELLED, lease.run, {"reason": reason})


@appending
def relay_signal(lease: Lease, *, request_id: UUID, signal_id: int) -> None:
    """Append the row of a question that a signal has answered: consume the signal, and close the request.

    Raises NotExpired when the request was answered or closed first, or the signal is read or does not count any more.
    """
    request = HumanRequest.objects.select_for_update(no_key=True).get(id=request_id)
    if request.status != HumanRequest.Status.PENDING:
        raise NotExpired(None)
    if not Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now()):
        raise NotExpired(None)
    detail = {"reason": f"answered by the signal {request.signal}"}
    _close(request, HumanRequest.Status.CANCELLED, lease.run, detail)


def _close(request: HumanRequest, status: HumanRequest.Status, run: Run, detail: dict[str, Any] | None = None) -> None:
    HumanRequest.objects.filter(id=request.id).update(status=status, answered_at=clock.now(), version=F("version") + 1)
    request.status, request.version = status, request.version + 1
    record(request, status.value, run, detail)
    notify(request_closed, request)


def close_requests(run: Run, held: set[UUID]) -> list[UUID]:
    """Cancel the pending requests of a run that has ended or continued as new. Other runs of its tree may wait for its
    request for more budget: wake them, and one of them asks again. Returns those."""
    pending = HumanRequest.objects.filter(run_id=run.id, status=HumanRequest.Status.PENDING)
    closed = list(pending.select_for_update(no_key=True).order_by("id"))  # a reassignment may be in progress
    if not closed:
        return []
    asked = {str(request.id) for request in closed if request.tool == TOP_UP}
    woken = [run_id for run_id in waiting_for(run.tree_id, asked) if run_id != run.id] if asked else []
    require(woken, held)
    pending.update(status=HumanRequest.Status.CANCELLED, answered_at=clock.now(), version=F("version") + 1)
    for request in closed:
        request.status, request.version = HumanRequest.Status.CANCELLED, request.version + 1
        notify(request_closed, request)
    record_all(closed, "cancelled", run, {"reason": f"run {run.id} waits for it no more"})
    touch(woken)
    return woken


def waiting_for(tree_id: UUID, request_ids: set[str]) -> list[UUID]:
    """The runs of a tree that wait for one of these requests. A running one may be about to."""
    tree = Run.objects.filter(Q(id=tree_id) | Q(root_id=tree_id)).exclude(status__in=TERMINAL).order_by("id")
    return [
        run_id
        for run_id, status, waits in tree.values_list("id", "status", "waiting_on")
        if status == Status.RUNNING
        or (status == Status.SUSPENDED and any(wait.get("id") in request_ids for wait in waits or ()))
    ]


def note_closed(run_id: UUID, entry: Entry) -> None:
    """Put the ids of the open requests into the row that ends the run: its stream reports them as closed."""
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
    """Answer a pending request: the first answer counts. The answer, its records, its signal, `sticky` and the run's
    wake-up are one commit. Returns whether the run is woken; inside a caller's transaction it is not, and `wake_silent`
    has to follow the commit.

    Raises NotFoundError. Raises ConflictError when the request is answered, closed or changed since `version`, when it
    is too early or too late, and when the run has ended.
    """
    inside = connection.in_atomic_block
    with transaction.atomic():
        request = HumanRequest.objects.filter(id=request_id).first()
        if request is None:
            raise NotFoundError(_("There is no request %(id)s.") % {"id": request_id})
        if request.status != HumanRequest.Status.PENDING:  # final: late answers need no lock
            raise conflict(request)
        run = Run.objects.select_for_update(no_key=True).only(*_OF_RUN).get(id=request.run_id)
        check_in_time(request, run.status)
        if request.signal and has_reply(request):
            raise ConflictError(
                _("The signal %(signal)s has already answered this request.") % {"signal": request.signal}
            )
        pending = HumanRequest.objects.filter(
            id=request.id, status=HumanRequest.Status.PENDING, version=request.version if version is None else version
        )
        changed = pending.update(
            status=HumanRequest.Status.ANSWERED,
            answer=answer,
            answered_by=by,
            answered_at=clock.now(),
            version=F("version") + 1,
            woke=not inside,
        )
        request.refresh_from_db()
        if not changed:
            raise conflict(request)
        if sticky is not None:
            save_sticky(sticky)
        if request.signal:
            sent = {name: answer.get(name, "") for name in ("action", "text", "by")}
            reply = Signal(run_id=run.id, name=request.signal, payload=sent, woke=not inside, consumed_at=clock.now())
            reply.save(force_insert=True)  # consumed: the question waits for the answer itself
        event = "cancelled" if answer.get("action") == "cancel" else "answered"
        record(request, event, run, {"answer": answer, "by": answer.get("by", "")})
        log_entry(request, by, answer_line(answer))
        notify(request_answered, request, by=by)
        if not inside:
            touch([request.run_id])
    return not inside


def answer_line(answer: dict[str, Any]) -> str:
    """An answer in one line, for Django's log."""
    parts = [answer.get(name) for name in ("action", "outcome", "text", "reason")]
    text = ": ".join(str(part) for part in parts if part)
    return f"Answered: {text}"[:1000] + (f" (in place of {answer['instead_of']})" if answer.get("instead_of") else "")


def check_in_time(request: HumanRequest, run_status: str) -> None:
    """Raise ConflictError when its run has ended, or its time."""
    if run_status in TERMINAL:
        raise ConflictError(_("Run %(id)s has already ended, so it takes no answers.") % {"id": request.run_id})
    if request.expires_at is not None and request.expires_at <= present():
        raise ConflictError(
            _("Request %(id)s expired at %(time)s UTC.")
            % {"id": request.id, "time": f"{request.expires_at:%Y-%m-%d %H:%M:%S}"}
        )


def conflict(request: HumanRequest) -> ConflictError:
    """Why a change of the request came too late, by its present row: it is answered, closed or changed."""
    if request.status == HumanRequest.Status.PENDING:
        return ConflictError(
            _("Request %(id)s has changed since you opened it. It now has version %(version)d. Load it again.")
            % {"id": request.id, "version": request.version}
        )
    name = request.answered_by or (request.answer or {}).get("by")
    if request.status == HumanRequest.Status.ANSWERED and name:
        return ConflictError(_("Request %(id)s was already answered by %(name)s.") % {"id": request.id, "name": name})
    return ConflictError(str(_CLOSED[HumanRequest.Status(request.status)]) % {"id": request.id})


_CLOSED = {
    HumanRequest.Status.ANSWERED: gettext_lazy("Request %(id)s was already answered."),
    HumanRequest.Status.EXPIRED: gettext_lazy("Request %(id)s has already expired."),
    HumanRequest.Status.CANCELLED: gettext_lazy("Request %(id)s was already cancelled."),
}


def forget_earlier(request: HumanRequest) -> None:
    """In the transaction that opens a question: discard earlier signals of its name that may not answer it.

    A signal from a person counts only if the question is the run owner's, because only the owner may send it. No
    earlier signal counts when an earlier question had the same name.
    """
    earlier = _unread(request)
    if not HumanRequest.objects.filter(run_id=request.run_id, signal=request.signal).exists():
        if request.to == "owner" and conf.MAY_ANSWER is None:
            return
        earlier = earlier.filter(key__startswith=PERSONS)
    earlier.update(consumed_at=clock.now())


def has_reply(request: HumanRequest) -> bool:
    """Whether it has a signal that its run has not read yet."""
    return _unread(request).exists()


def _unread(request: HumanRequest) -> QuerySet[Signal]:
    return Signal.objects.filter(run_id=request.run_id, name=request.signal, consumed_at=None)
