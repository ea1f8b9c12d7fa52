"""Run agents inside a test, and read the journals of their runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

from ravi_django.models import JournalEntry, Run
from ravi_django.runtime.catalog import registry
from ravi_django.runtime.engine.engine import BATCH, Engine
from ravi_django.runtime.journal.entries import internalize
from ravi_django.runtime.lease import claims
from ravi_django.testing import warm


def run_until_idle(*, timeout: float = 30.0) -> int:
    """Execute the claimable runs of the registered agents until none is left. Returns the number of leases.

    Uses the real engine on threads with their own connections: mark the test `django_db(transaction=True)`, or use
    TransactionTestCase. The event loop and the connections are kept for the next call, and closed before Django
    destroys the test database. Raises TimeoutError after `timeout` seconds.
    """
    return warm.run(arun_until_idle(timeout=timeout))


async def arun_until_idle(*, timeout: float = 30.0) -> int:
    """`run_until_idle` for async tests."""
    async with warm.engine() as engine:
        return await _until_idle(engine, timeout)


async def _until_idle(engine: Engine, timeout: float) -> int:
    leases = 0
    give_up = time.monotonic() + timeout
    while True:
        driving = set(engine._leases)  # read before the claim: a run that ends meanwhile may wake another
        claimed = await engine.database.call(
            claims.claim_batch, engine.name, registry.known_addresses(), BATCH, engine._suspect is None
        )
        for lease in claimed:
            engine._background(engine._drive_lease(lease))
        leases += len(claimed)
        if claimed:
            continue
        if not driving:
            return leases
        remaining = give_up - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"still running after {timeout:g} s: {', '.join(map(str, engine.active))}")
        await asyncio.wait(driving, timeout=min(remaining, 0.05), return_when=asyncio.FIRST_COMPLETED)


def journal_of(run: Run | UUID | str) -> list[JournalEntry]:
    """A run's journal in the order of `seq`, with its big values loaded."""
    run_id: Any = run.id if isinstance(run, Run) else run
    entries = list(JournalEntry.objects.filter(run_id=run_id).order_by("seq"))
    internalize(entries)
    return entries
