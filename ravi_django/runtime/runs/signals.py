"""Telling a run something by name, from anywhere in a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.kernel import (
    IllegalTransitionError,
    InputTooLargeError,
    InvalidInputError,
    NotFoundError,
)
from ravi_django.kernel.checks import check_text
from ravi_django.models import TERMINAL, HumanRequest, Run, Signal
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.entries import storable
from ravi_django.runtime.lease.waits import check_name
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.waking import status_held, touch


def signal(run: Run | UUID | str, name: str, payload: Any = None, *, key: str = "") -> bool:
    """Send a run a signal, which `ctx.sleep_until_signal(name)` returns the `payload` (JSON) of. It is kept until a
    wait takes it, once. Inside the caller's transaction: rolled back with it.

    A repeat with the same `key` (at most 64 characters) is no second signal: False.

    Raises NotFoundError, IllegalTransitionError when the run has ended, InvalidInputError and InputTooLargeError.
    """
    run_id = _run_id(run)
    check_name(name)
    check_text("key", key, 64, least=0)
    check_payload(payload)
    sent = send_signal(run_id, name, storable(payload), key)
    hints.on_commit(run_id, None if sent.woke else wake)
    return sent.new


def wake(run_id: UUID | str) -> None:
    """After the commit: raise the run's `wake_seq` where the sender could not, and hint it."""
    wake_silent(run_id)
    hints.send(run_id)


def _run_id(run: Run | UUID | str) -> UUID:
    given = run.id if isinstance(run, Run) else run
    try:
        return given if isinstance(given, UUID) else UUID(str(given))
    except ValueError:
        raise NotFoundError(f"there is no run {given!r}") from None


def check_payload(payload: Any) -> None:
    """Raises InvalidInputError when it is no JSON, InputTooLargeError."""
    try:
        size = len(to_json(payload))
    except ValueError as error:
        raise InvalidInputError(f"payload is not JSON: {error}", field="payload") from None
    if size > conf.MAX_INPUT_BYTES:
        raise InputTooLargeError(f"payload has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="payload")


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
