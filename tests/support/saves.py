"""Sources of the project's invoices, for the tests of model sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from project.models import Invoice
from ravi_django.models import InboxMessage, Signal, Source
from tests.support import world
from tests.support.runs import code


@pytest.fixture(autouse=True)
def invoices_named(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hints are taken down and not sent: each test tells by itself."""
    settings.RAVI = {**settings.RAVI, "SOURCE_MODELS": ["project.Invoice"]}
    world.patch(monkeypatch, "background_hint", lambda *call: hinted.append(call))
    hinted.clear()
    code(lambda ctx, inbox: None)
    world.model_sources_forget()
    yield
    world.model_sources_forget()


hinted: list[tuple[str, ...]] = []


def declare(**fields: Any) -> Source:
    given = {"name": "invoices", "kind": "model", "location": "project.Invoice", "agent": "test/code", **fields}
    return Source.objects.create(**given)


def invoice(customer: str = "ACME", amount: int = 5) -> Invoice:
    return Invoice.objects.create(customer=customer, amount=amount, idempotency_key="key-1")


def told() -> list[dict[str, Any]]:
    """What the agent was given, in order."""
    boots = [row.body["payload"]["data"] for row in InboxMessage.objects.order_by("id")]
    return boots + [signal.payload for signal in Signal.objects.order_by("id")]
