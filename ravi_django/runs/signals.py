"""Signals: named messages to a run, sent from anywhere in a site."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.lease.sleeps import check_name
from ravi_django.kernel import IllegalTransitionError, NotFoundError
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.json_values import check_json
from ravi_django.models import TERMINAL, HumanRequest, Run, Signal
from ravi_django.runs import hints
from ravi_django.runs.checks import run_id_of
from ravi_django.runs.wake import status_held, touch


def signal(run: Run | UUID | str, name: str, payload: Any = None, *, key: str = "") -> bool:
    """Send a run a signal. One call of `ctx.sleep_until_signal(name)` returns its `payload` (JSON); until then it is
    kept. Inside the caller's transaction: rolled back with it.

    A repeat with the same `key` (at most 64 characters) sends nothing and returns False.

    Raises NotFoundError, IllegalTransitionError when the run has ended, InvalidInputError and InputTooLargeError.
    """
    run_id = run_id_of(run)
    check_name(name)
    check_text("key", key, 64, least=0)
    sent = send_signal(run_id, name, check_json("payload", payload, conf.MAX_INPUT_BYTES), key)
    hints.on_commit(run_id, None if sent.woke else wake)
    return sent.new


asignal = sync_to_async(signal)


def wake(run_id: UUID | str) -> None:
    """After the commit: raise the run's `wake_seq` where the sender could not, and hint it."""
    wake_silent(run_id)
    hints.send(run_id)


@dataclass(frozen=True, slots=True)
class SentSignal:
    new: bool  # False for a key that the run has already
    woke: bool  # False when `wake_silent` has to be called


def send_signal(run_id: UUID | str, name: str, payload: Any, key: str = "") -> SentSignal:
    """Write a signal and wake the run in the same transaction. Inside a caller's transaction, which may be long, the
    run is not woken: call `wake_silent` after the commit.

    Raises NotFoundError, and IllegalTransitionError when the run has ended.
    """
    inside = connection.in_atomic_block
    with transaction.atomic():
        status = status_held(run_id)
        if status is None:
            raise NotFoundError(f"there is no run {run_id}")
        if key and Signal.objects.filter(run_id=run_id, key=key).exists():
            return SentSignal(new=False, woke=True)  # whatever status the run has now
        if status in TERMINAL:
            raise IllegalTransitionError(f"run {run_id} is already {status} and takes no signals")
        row = Signal(run_id=run_id, name=name, payload=payload, key=key, woke=not inside)
        try:
            with transaction.atomic() if key else nullcontext():  # only a key can be taken
                row.save(force_insert=True)
        except IntegrityError:
            if key and Signal.objects.filter(run_id=run_id, key=key).exists():
                return SentSignal(new=False, woke=True)
            raise
        if not inside:
            touch([row.run_id])
    return SentSignal(new=True, woke=not inside)


def wake_silent(run_id: UUID | str) -> bool:
    """Wake a run, once for all signals and answers that were written inside a caller's transaction."""
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()
        silent_signals = Signal.objects.filter(run_id=run_id, woke=False).update(woke=True)
        silent_answers = HumanRequest.objects.filter(run_id=run_id, woke=False).update(woke=True)
        if silent_signals or silent_answers:
            touch([UUID(str(run_id))])
        return bool(silent_signals or silent_answers)


def silent(limit: int, older_than_s: float = 0.0) -> list[UUID]:
    """Runs with signals or answers that did not wake them: the writer died after the commit."""
    run_ids: list[UUID] = []
    before = clock.after(-older_than_s)
    for rows in (
        Signal.objects.filter(woke=False, created_at__lte=before),
        HumanRequest.objects.filter(woke=False, answered_at__lte=before),
    ):
        run_ids += rows.values_list("run_id", flat=True).distinct()[: max(0, limit - len(run_ids))]
    return run_ids
