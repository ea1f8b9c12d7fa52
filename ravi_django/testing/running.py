"""Run agents inside a test, and read the journals of their runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from ravi_django.db import connection
from ravi_django.models import JournalEntry, Run
from ravi_django.runtime.catalog import registry
from ravi_django.runtime.engine.engine import BATCH
from ravi_django.runtime.journal.entries import internalize
from ravi_django.runtime.lease import claims
from ravi_django.testing import warm


def run_until_idle(*, timeout: float = 30.0) -> int:
    """Execute the claimable runs of the registered agents until none is left. Returns the number of leases.

    Uses the real engine on threads with their own connections: mark the test `django_db(transaction=True)`, or use
    TransactionTestCase. The event loop and the connections are kept for the next call, and closed before Django
    destroys the test database. Raises TimeoutError after `timeout` seconds, and RuntimeError inside a transaction.
    """
    _refuse_transaction()
    return warm.run(_until_idle(timeout))


async def arun_until_idle(*, timeout: float = 30.0) -> int:
    """`run_until_idle` for async tests."""
    _refuse_transaction()
    await sync_to_async(_refuse_transaction)()  # Django's TestCase has its transaction on another thread
    return await _until_idle(timeout)


def _refuse_transaction() -> None:
    if connection.in_atomic_block:
        fix = "use TransactionTestCase, or @pytest.mark.django_db(transaction=True) with pytest-django"
        raise RuntimeError(f"run_until_idle is inside a transaction, and its threads see committed rows only: {fix}")


async def _until_idle(timeout: float) -> int:
    begun: dict[asyncio.Task[Any], UUID] = {}
    give_up = time.monotonic() + timeout
    async with warm.engine() as engine:
        while True:
            driving = set(engine._leases)  # read before the claim: a run that ends meanwhile may wake another
            agents = registry.known_addresses()
            claimed = await engine.database.call(
                claims.claim_batch, engine.name, agents, BATCH, engine._suspect is None
            )
            begun |= {engine._background(engine._drive_lease(lease)): lease.run_id for lease in claimed}
            if claimed:
                continue
            locked = [] if driving else await engine.database.call(claims.unclaimed, agents)
            if not (driving or locked):
                return len(begun)
            pause = min(give_up - time.monotonic(), 0.05)
            if pause <= 0:
                state = "locked by another transaction" if locked else "still running"
                left = locked or [run_id for task, run_id in begun.items() if not task.done()]
                raise TimeoutError(f"{state} after {timeout:g} s: {', '.join(map(str, left))}")
            first = asyncio.FIRST_COMPLETED
            await (asyncio.wait(driving, timeout=pause, return_when=first) if driving else asyncio.sleep(pause))


def journal_of(run: Run | UUID | str) -> list[JournalEntry]:
    """A run's journal in the order of `seq`, with its big values loaded."""
    run_id: Any = run.id if isinstance(run, Run) else run
    entries = list(JournalEntry.objects.filter(run_id=run_id).order_by("seq"))
    internalize(entries)
    return entries
