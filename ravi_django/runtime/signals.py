"""Telling a run something by name, from anywhere in a site."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError, InvalidInputError, NotFoundError
from ravi_django.kernel.checks import check_text
from ravi_django.models import Run
from ravi_django.runtime import dispatch
from ravi_django.runtime.entries import storable
from ravi_django.runtime.store import waiting
from ravi_django.runtime.waits import check_name


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
    sent = waiting.send_signal(run_id, name, storable(payload), key)
    dispatch.on_commit(run_id, None if sent.woke else wake)
    return sent.new


def wake(run_id: UUID | str) -> None:
    """After the commit: raise the run's `wake_seq` where the sender could not, and hint it."""
    waiting.wake_silent(run_id)
    dispatch.send(run_id)


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
