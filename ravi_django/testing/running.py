"""Drive runs inside a test, and look at what they recorded."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

from ravi_django.models import JournalEntry, Run
from ravi_django.runtime import registry, store
from ravi_django.runtime.engine import Engine
from ravi_django.runtime.entries import internalize


def run_until_idle(*, timeout: float = 30.0) -> int:
    """Drive every claimable run of the registered agents until none is left; returns how many leases that took.

    Uses the real engine on threads with their own connections: mark the test `django_db(transaction=True)`, or use
    TransactionTestCase. Raises TimeoutError after `timeout` seconds.
    """
    return asyncio.run(arun_until_idle(timeout=timeout))


async def arun_until_idle(*, timeout: float = 30.0) -> int:
    """`run_until_idle` for async tests."""
    engine = Engine(on_promoted=lambda run_id: None)  # they are claimed, and counted, as any other
    leases = 0
    give_up = time.monotonic() + timeout
    try:
        while True:
            settled = engine.settled
            busy = bool(engine.active or engine._leases)  # before the look: what ends meanwhile may wake another run
            lease = await engine.database.call(store.claim_next, engine.name, registry.known_addresses())
            if lease is not None:
                leases += 1
                engine._background(engine._drive_lease(lease))
                continue
            if not busy:
                return leases
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"still running after {timeout:g} s: {', '.join(map(str, engine.active))}")
            try:
                async with asyncio.timeout(min(remaining, 0.05)):
                    await settled.wait()
            except TimeoutError:
                continue
    finally:
        await engine.close(drain_s=0.5)


def journal_of(run: Run | UUID | str) -> list[JournalEntry]:
    """A run's journal in seq order, big values put back."""
    run_id: Any = run.id if isinstance(run, Run) else run
    entries = list(JournalEntry.objects.filter(run_id=run_id).order_by("seq"))
    internalize(entries)
    return entries
