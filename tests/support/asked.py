"""Requests to people as they lie in the database, without a run that waits for them."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest, Run, uuid7
from tests.support import world
from tests.support.world import write_request

Kind = HumanRequest.Kind


def asked_by(run: Run, kind: Kind = Kind.QUESTION, to: Any = None, **asked: Any) -> HumanRequest:
    """An open request of the run, made and written as those that agents make. `to`: else whom the settings name."""
    asked.setdefault("text", "Which colour?")
    addressees = None if to is None else Addressees.of(to)
    request = world.requests_new(run, f"test/{uuid7()}", kind, present=timezone.now(), to=addressees, **asked)
    with transaction.atomic():
        write_request(request, run)
    request.refresh_from_db()
    return request


def approval_of(run: Run, to: Any = "staff", **asked: Any) -> HumanRequest:
    """Of a call of `pay(to, amount)`."""
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["to", "amount"],
        "additionalProperties": False,
    }
    call = {"tool": "pay", "arguments": {"to": "ACME", "amount": 100}, "risk": "high", "details": {"schema": schema}}
    return asked_by(run, Kind.APPROVAL, to, **{"text": "Pay?", **call, **asked})
