"""Requests to people for the socket tests, and what a client reads of them."""

from __future__ import annotations

import json
import time
from typing import Any

from django.db import transaction
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest, Run
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.world import write_request


def ask(run: Run, text: str = "Which?", *, to: str | None = None, path: str = "", **fields: Any) -> HumanRequest:
    """A request of the run, committed and told of as its worker would."""
    kind = fields.pop("kind", HumanRequest.Kind.QUESTION)
    addressees = None if to is None else Addressees.of(to)
    found = world.requests_new(run, path or text, kind, present=timezone.now(), to=addressees, text=text, **fields)
    with transaction.atomic():
        write_request(found, run)
    return found


def approval(run: Run, *, to: str, **fields: Any) -> HumanRequest:
    asked = {"tool": "send_invoice", "arguments": {"customer": "ACME", "amount": 100}, "risk": "high"}
    return ask(run, "May I?", to=to, kind=HumanRequest.Kind.APPROVAL, **{**asked, **fields})


def frame(client: Any, timeout: float = BOUND_S) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(timeout=timeout))
    return found


def until(client: Any, type: str, **fields: Any) -> dict[str, Any]:
    """The next frame of this type, with these fields."""
    give_up = time.monotonic() + BOUND_S
    while time.monotonic() < give_up:
        found = frame(client)
        if found["type"] == type and all(found.get(name) == value for name, value in fields.items()):
            return found
    raise AssertionError(f"no {type} with {fields}")


def answer(client: Any, request: Any, action: str = "answer", **said: Any) -> dict[str, Any]:
    """Send an answer, and what it is answered: `accepted` or `error`."""
    client.send(json.dumps({"type": "answer", "request": str(request), "action": action, **said}))
    while (found := frame(client))["type"] not in ("accepted", "error"):
        pass
    return found
