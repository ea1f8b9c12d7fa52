"""Signals that answer a question in a person's place: which of them count, and the one that ends the wait."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django.db.models import F, QuerySet

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import IdempotencyMismatchError
from ravi_django.models import HumanRequest, Run, Signal
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease.refusals import NotDue
from ravi_django.runtime.people.records import record, tell
from ravi_django.runtime.runs.signals import Sent, send_signal
from ravi_django.signals import request_closed

_PERSONS = "person:"  # begins the key of a signal that a person has sent, not the site's own code


def forget_earlier(request: HumanRequest) -> None:
    """In the transaction that opens a question: of the signals that came before it under its name, leave those that
    may answer it. One that a person sent counts where the question is the run owner's, who alone may send it; none does
    that was sent while the name stood for an earlier question."""
    earlier = _unread(request)
    if not HumanRequest.objects.filter(run_id=request.run_id, signal=request.signal).exists():
        if request.to == "owner" and conf.MAY_ANSWER is None:
            return
        earlier = earlier.filter(key__startswith=_PERSONS)
    earlier.update(consumed_at=clock.now())


@appending
def relay_signal(lease: Lease, *, request_id: UUID, signal_id: int) -> None:
    """Append the row of a question that a signal has answered: the signal is consumed, and the request closed.

    Raises NotDue when somebody has answered after all, or the signal counts no more.
    """
    pending = HumanRequest.objects.filter(id=request_id, status=HumanRequest.Status.PENDING)
    closed = {"status": HumanRequest.Status.CANCELLED, "answered_at": clock.now(), "version": F("version") + 1}
    if not pending.update(**closed):
        raise NotDue(None)
    if not Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now()):
        raise NotDue(None)
    request = HumanRequest.objects.get(id=request_id)
    record(request, "cancelled", lease.run, {"reason": f"answered by the signal {request.signal}"})
    tell(request_closed, request)


def write_reply(request: HumanRequest, said: Any, *, woke: bool) -> None:
    """The signal that an answer also is: read already, by the question that waits for the answer itself."""
    Signal.objects.create(run_id=request.run_id, name=request.signal, payload=said, woke=woke, consumed_at=clock.now())


def has_reply(request: HumanRequest) -> bool:
    """Whether a signal has come for it that its run has not read yet."""
    return _unread(request).exists()


def key_of_person(digest: str) -> str:
    """The key of a signal that a person has sent under an idempotency key."""
    return f"{_PERSONS}{digest}"[:64]


def is_repeated(run_id: UUID, name: str, payload: Any, key: str) -> bool:
    """Whether a person has sent the same under this key before. Raises IdempotencyMismatchError where it was something
    else. Inside a transaction: the run is locked, so that a repeat waits for the first."""
    Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()
    known = Signal.objects.filter(run_id=run_id, key=key).values_list("name", "payload").first()
    if known not in (None, (name, payload)):
        raise IdempotencyMismatchError(f"this idempotency key belongs to another signal to run {run_id}; use a new key")
    return known is not None


def keep_key(run_id: UUID, name: str, payload: Any, key: str) -> None:
    """Of a signal that has answered a question: no wait takes it."""
    Signal.objects.create(run_id=run_id, name=name, payload=payload, key=key, consumed_at=clock.now())


def send_unless_asked(run_id: UUID, name: str, payload: Any, key: str = "") -> Sent | UUID:
    """Send a signal for a person, unless the run has asked a question by this name: that one's id then, an open one
    before those that are closed.

    The run is locked: a question that is opened meanwhile finds the signal, or this finds the question.
    """
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()
        named = HumanRequest.objects.filter(run_id=run_id, signal=name)
        pending = named.filter(status=HumanRequest.Status.PENDING).order_by("id")
        found: UUID | None = (pending.first() or named.order_by("-id").first() or HumanRequest(id=None)).id
        if found is not None:
            return found
        return send_signal(run_id, name, payload, key or key_of_person(uuid4().hex))


def _unread(request: HumanRequest) -> QuerySet[Signal]:
    return Signal.objects.filter(run_id=request.run_id, name=request.signal, consumed_at=None)
