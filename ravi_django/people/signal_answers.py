"""Signals that a person sends over a surface. A signal with the name of a question answers it, under the rules of
answers. The site's own code sends signals by `runs/signals.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from django.utils.translation import gettext as _
from pydantic_core import to_json

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.lease.sleeps import check_name
from ravi_django.engine.lease.wake_state import PEOPLES, PERSONS
from ravi_django.kernel import IdempotencyMismatchError, InvalidInputError
from ravi_django.kernel.json_values import check_json
from ravi_django.models import HumanRequest, Run, Signal
from ravi_django.people import answers
from ravi_django.runs import hints
from ravi_django.runs.checks import scope_of
from ravi_django.runs.signals import SentSignal, send_signal, signal, wake

_ANSWER = frozenset({"action", "text", "values", "arguments", "reason", "sticky"})
_OF_REQUEST = "hitl:"  # and the request's id


def send(run: Run, name: str, payload: Any = None, *, by: Any, idempotency_key: str | None = None) -> None:
    """Send a signal to the run for the user `by`, who may see the run. The name of a question of the run
    (`human_reply:…`, or `hitl:` and the request's id) answers it. The payload is then a text or `{"action", "text"}`;
    any other JSON is the text.

    A repeat with the same `idempotency_key`, scoped to (user, run), sends and answers nothing.

    Raises ForbiddenError for a name that the user may not send, AgentNotFoundError when the user may no longer run the
    agent, IdempotencyMismatchError when the key belongs to another name or payload, and what `answer` and `signal`
    raise.
    """
    check_name(name)
    if not name.startswith(PEOPLES):
        access.continue_run(by, run)
        access.check_signal(by, run, name)
    payload = check_json("payload", payload, conf.MAX_INPUT_BYTES)
    if idempotency_key is None:
        _send(run, name, payload, by)
        return
    key = _key(scope_of(by, f"signal:{run.id}", idempotency_key))
    with transaction.atomic():
        _lock(run.id)  # a repeat waits for the first
        known = Signal.objects.filter(run_id=run.id, key=key).values_list("name", "payload").first()
        if known not in (None, (name, payload)):
            message = f"this idempotency key belongs to another signal to run {run.id}; use a new key"
            raise IdempotencyMismatchError(message)
        if known is None and _send(run, name, payload, by, key):  # consumed: no wait takes it
            Signal.objects.create(run_id=run.id, name=name, payload=payload, key=key, consumed_at=clock.now())


def _lock(run_id: UUID) -> None:
    Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()


def _key(text: str) -> str:
    return f"{PERSONS}{text}"[:64]


def _send(run: Run, name: str, payload: Any, by: Any, key: str = "") -> bool:
    """Returns whether it was an answer: then there is no signal."""
    if not name.startswith(PEOPLES):
        signal(run, name, payload, key=key)
        return False
    asked = _by_id(run, name) or _send_unless_asked(run.id, name, payload, key)
    if isinstance(asked, UUID):
        answers.answer(asked, **_answer(payload), by=by)
        return True
    hints.on_commit(run.id, None if asked.woke else wake)
    return False


def _send_unless_asked(run_id: UUID, name: str, payload: Any, key: str) -> SentSignal | UUID:
    """Send the signal. If the run has a question of this name, return the question's id instead; an open one first.

    The run is locked: a question that is opened meanwhile finds the signal, or this finds the question.
    """
    with transaction.atomic():
        _lock(run_id)
        named = HumanRequest.objects.filter(run_id=run_id, signal=name).order_by("created_at", "id")
        question = named.filter(status=HumanRequest.Status.PENDING).first() or named.last()
        return question.id if question else send_signal(run_id, name, payload, key or _key(uuid4().hex))


def _by_id(run: Run, name: str) -> UUID | None:
    if not name.startswith(_OF_REQUEST):
        return None
    try:
        wanted = UUID(name.removeprefix(_OF_REQUEST))
    except ValueError:
        return None
    return HumanRequest.objects.filter(run_id=run.id, id=wanted).values_list("id", flat=True).first()


def _answer(payload: Any) -> dict[str, Any]:
    if isinstance(payload, str) or payload is None:
        return {"text": payload or ""}
    if isinstance(payload, Mapping) and payload.keys() & {"action", "text", "values"}:
        if unknown := sorted(payload.keys() - _ANSWER):
            raise InvalidInputError(
                _("Unknown field %(name)s in the payload. An answer has: %(fields)s.")
                % {"name": repr(unknown[0]), "fields": ", ".join(sorted(_ANSWER))},
                field="payload",
            )
        return dict(payload)
    return {"text": to_json(payload).decode()}
