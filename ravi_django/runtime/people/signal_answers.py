"""A signal that a person sends over a surface. One by the name of a question is an answer to it, under the same rule of
who may; the site's own code sends what it likes by `signals`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.checks import check_json
from ravi_django.models import HumanRequest, Run
from ravi_django.runtime.journal.entries import encode, storable
from ravi_django.runtime.lease.waits import PEOPLES, check_name
from ravi_django.runtime.people import answers, reply_rows
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.checks import scope_of
from ravi_django.runtime.runs.signals import signal, wake

_ANSWER = frozenset({"action", "text", "values", "arguments", "reason", "sticky"})
_OF_REQUEST = "hitl:"  # and the request's id


def send(run: Run, name: str, payload: Any = None, *, by: Any, idempotency_key: str | None = None) -> None:
    """Send the run a signal in the name of `by`, who may see it. With the name of a question of it, `human_reply:…`, or
    `hitl:` and a request's id: answer that, with a text or `{"action", "text"}`; any other JSON is its own text.

    With an `idempotency_key`, scoped to (user, run), a repeat is no second signal, and no second answer.

    Raises ForbiddenError for a name that is not the user's to send, ForbiddenError and ConflictError as `answer`
    does, AgentNotFoundError where the user may no longer run the agent, IdempotencyMismatchError where the key belongs
    to another name or payload, and what `signal` raises.
    """
    check_name(name)
    if not name.startswith(PEOPLES):
        access.continue_run(by, run)
        access.check_signal(by, run, name)
    check_json("payload", payload, conf.MAX_INPUT_BYTES)
    if idempotency_key is None:
        _send(run, name, payload, by)
        return
    key = reply_rows.key_of_person(scope_of(by, f"signal:{run.id}", idempotency_key))
    kept = json.loads(encode(payload))
    with transaction.atomic():
        if not reply_rows.is_repeated(run.id, name, kept, key) and _send(run, name, payload, by, key):
            reply_rows.keep_key(run.id, name, kept, key)


def _send(run: Run, name: str, payload: Any, by: Any, key: str = "") -> bool:
    """Returns whether it was an answer, which no signal stands for."""
    if not name.startswith(PEOPLES):
        signal(run, name, payload, key=key)
        return False
    asked = _by_id(run, name) or reply_rows.send_unless_asked(run.id, name, storable(payload), key)
    if isinstance(asked, UUID):
        answers.answer(asked, **_answer(payload), by=by)
        return True
    hints.on_commit(run.id, None if asked.woke else wake)
    return False


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
                f"payload has {unknown[0]!r}; an answer has {', '.join(sorted(_ANSWER))}", field="payload"
            )
        return dict(payload)
    return {"text": to_json(payload).decode()}
