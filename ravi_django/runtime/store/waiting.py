"""Suspending (`settle.suspend`) and waking. A waker touches the run by its id alone; who suspends says
which wake-up it has seen.

So no wake-up is lost: either the touch comes first, and the run does not suspend, or it comes after, and the touch
itself makes the suspended run pending. A status in the waker's condition would skip a row that is being suspended at
that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import IntegrityError

from ravi_django.db import connection, transaction
from ravi_django.kernel import IllegalTransitionError, LeaseLostError, NotFoundError
from ravi_django.models import TERMINAL, Ask, HumanRequest, Run, Signal
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import accounts, fence, leases
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.touching import status_held, touch

NOT_READ: Any = object()  # in place of a payload: `payload_of` gives it
PAYLOADS = 50  # of a run's unread signals that are read with it; of thousands, the others by and by


@dataclass(slots=True)
class Facts:
    """What has happened to a run that its journal does not know yet."""

    wake_seq: int = 0  # the wake-ups that these facts include
    # unread (id, name, payload), all, oldest first; the payload may be NOT_READ
    signals: list[tuple[int, str, Any]] = field(default_factory=list)
    asks: dict[str, Ask] = field(default_factory=dict)  # of this generation, settled or not, by path
    requests: dict[tuple[str, int], HumanRequest] = field(default_factory=dict)  # by path and attempt, the latest


def load_with_facts(lease: Lease, limit: int | None = None) -> tuple[leases.Loaded, Facts]:
    """What a lease starts from. A run that nobody has ever woken has no facts to read, and its journal says what else
    there can be: the claim's number of the wake-up is the one that these facts include at least."""
    accounts.learn()
    loaded = leases.load(lease, limit)
    if not lease.run.wake_seq:
        return loaded, Facts()
    kinds = {row.kind for row in loaded.journal}
    return loaded, _facts(lease, lease.run.wake_seq, asks="ask" in kinds, requests="request.opened" in kinds)


def facts(lease: Lease) -> Facts:
    """Read them, the number of the wake-up first: what comes after it is known to be new."""
    seen = Run.objects.values_list("wake_seq", flat=True).get(id=lease.run_id)
    return _facts(lease, seen, asks=True, requests=True) if seen else Facts()


def _facts(lease: Lease, seen: int, *, asks: bool, requests: bool) -> Facts:
    run_id, generation = lease.run_id, lease.run.generation
    found = Facts(wake_seq=seen, signals=_unread(run_id))
    if asks:
        found.asks = {ask.path: ask for ask in Ask.objects.filter(asker_id=run_id, generation=generation)}
    if requests:
        rows = HumanRequest.objects.filter(run_id=run_id, generation=generation).order_by("id")
        found.requests = {(request.path, request.attempt): request for request in rows}
    return found


def _unread(run_id: UUID) -> list[tuple[int, str, Any]]:
    """All names: whether a wait is over must not depend on how many others came before."""
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None).order_by("id")
    whole = list(unread.values_list("id", "name", "payload")[:PAYLOADS])
    if len(whole) < PAYLOADS:
        return whole
    rest = unread.filter(id__gt=whole[-1][0]).values_list("id", "name")
    return whole + [(number, name, NOT_READ) for number, name in rest]


def payload_of(signal_id: int) -> Any:
    """Of a signal that was found unread."""
    return Signal.objects.values_list("payload", flat=True).get(id=signal_id)


# -------------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a signal: `new` is False for a key that was there; `woke` is False when the touch is still due."""

    new: bool
    woke: bool


def send_signal(run_id: UUID | str, name: str, payload: Any, key: str = "") -> Sent:
    """Write a signal for a run. Wakes the run in the same transaction, or, inside a caller's, leaves that to
    `wake_silent` after the commit: the caller's may be long.

    Raises NotFoundError, and IllegalTransitionError when the run has ended.
    """
    inside = connection.in_atomic_block
    with transaction.atomic():
        status = status_held(run_id)
        if status is None:
            raise NotFoundError(f"there is no run {run_id}")
        if key and Signal.objects.filter(run_id=run_id, key=key).exists():
            return Sent(new=False, woke=True)  # whatever has become of the run since
        if status in TERMINAL:
            raise IllegalTransitionError(f"run {run_id} is {status} already; nobody would read the signal")
        row = Signal(run_id=run_id, name=name, payload=payload, key=key, woke=not inside)
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError:
            if key and Signal.objects.filter(run_id=run_id, key=key).exists():
                return Sent(new=False, woke=True)
            raise
        if not inside:
            touch([row.run_id])
    return Sent(new=True, woke=not inside)


def wake_silent(run_id: UUID | str) -> bool:
    """Touch a run for signals and answers that were written inside of somebody's transaction; once for all of them."""
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()
        silent_signals = Signal.objects.filter(run_id=run_id, woke=False).update(woke=True)
        silent_answers = HumanRequest.objects.filter(run_id=run_id, woke=False).update(woke=True)
        if silent_signals or silent_answers:
            touch([UUID(str(run_id))])
        return bool(silent_signals or silent_answers)


def silent(limit: int, older_than_s: float = 0.0) -> list[UUID]:
    """Runs with signals or answers for which nobody has woken them: whoever wrote them died after the commit."""
    found: list[UUID] = []
    before = clock.after(-older_than_s)
    for rows in (
        Signal.objects.filter(woke=False, created_at__lte=before),
        HumanRequest.objects.filter(woke=False, answered_at__lte=before),
    ):
        found += rows.values_list("run_id", flat=True).distinct()[: max(0, limit - len(found))]
    return found


def consume_signal(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, signal_id: int) -> int:
    """Append the row of a wait with the signal that ended it, which nobody else can read any more."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        if not Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now()):
            raise LeaseLostError(lease.run_id, lease.epoch)
        return first
