"""Run agents inside a test, and read the journals of their runs."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from celery import current_app

from ravi_django.calls.model import permits
from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.engine.journal.entries import internalize
from ravi_django.engine.lease import claims
from ravi_django.engine.worker import sweep
from ravi_django.engine.worker.engine import BATCH
from ravi_django.engine.worker.worker import has_worker
from ravi_django.kernel.checks import seconds_of
from ravi_django.models import JournalEntry, Run
from ravi_django.runs import background_tasks
from ravi_django.runs.catalog import registry
from ravi_django.runs.checks import run_id_of
from ravi_django.testing import memory, warm


def run_until_idle(*, timeout: float | timedelta | None = 30.0) -> int:
    """Execute the claimable runs of the registered agents until none is left. Returns the number of leases.

    With RAVI["ENGINE"] = "manual", as in tests by default, it also does what a site's workers do beside them: it
    delivers publications, submits the runs of due schedules, sends e-mails of requests and escalates them.

    Uses the real engine on threads: mark the test `django_db(transaction=True)`, or use TransactionTestCase. The event
    loop and the connections are kept for the next call, and closed before Django destroys the test database. Raises
    TimeoutError after `timeout` seconds, and RuntimeError inside a transaction and beside another engine.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("run_until_idle() would block the event loop of an async test: await arun_until_idle()")
    _prepare()
    return warm.run(_until_idle(timeout))


async def arun_until_idle(*, timeout: float | timedelta | None = 30.0) -> int:
    """`run_until_idle` for async tests."""
    if connection.in_atomic_block:
        raise RuntimeError(TRANSACTION)
    await sync_to_async(_prepare)()  # Django's TestCase has its transaction on another thread
    return await _until_idle(timeout)


TRANSACTION = (
    "run_until_idle is inside a transaction, and its threads see committed rows only: use TransactionTestCase, or "
    "@pytest.mark.django_db(transaction=True) with pytest-django"
)
MANUAL = "leave RAVI['ENGINE'] out of the settings of tests, or set it to 'manual'"


def _prepare() -> None:
    """Refuse what would run beside it. The threads will share a connection to a database in memory."""
    if connection.in_atomic_block:
        raise RuntimeError(TRANSACTION)
    if conf.ENGINE == "celery" and current_app.conf.task_always_eager:
        raise RuntimeError(f"run_until_idle: CELERY_TASK_ALWAYS_EAGER starts a worker inside `submit`: {MANUAL}")
    if has_worker():
        raise RuntimeError(f"run_until_idle: a worker runs in this process, which executes the runs: {MANUAL}")
    memory.share()


async def _until_idle(timeout: float | timedelta | None) -> int:
    begun: dict[asyncio.Task[Any], UUID] = {}
    seconds = math.inf if timeout is None else seconds_of(timeout)
    give_up = time.monotonic() + seconds
    is_swept = conf.ENGINE != "manual"
    async with warm.engine() as engine:
        while True:
            driving = set(engine._leases)  # read before the claim: a run that ends meanwhile may wake another
            agents = registry.known_addresses()
            claimed = await engine.database.call(
                claims.claim_batch, engine.name, agents, BATCH, engine._suspect is None
            )
            begun |= {engine._background(engine._drive_lease(lease)): lease.run_id for lease in claimed}
            if claimed:
                is_swept = conf.ENGINE != "manual"
                continue
            locked = [] if driving else await engine.database.call(claims.unclaimed, agents)
            if not (driving or locked):
                if is_swept:
                    if await engine.database.call(permits.grant):
                        continue
                    return len(begun)
                await engine.database.call(_work_beside_runs)
                is_swept = True
                continue
            pause = min(give_up - time.monotonic(), 0.05)
            if pause <= 0:
                state = "locked by another transaction" if locked else "still running"
                left = locked or [run_id for task, run_id in begun.items() if not task.done()]
                raise TimeoutError(f"{state} after {seconds:g} s: {', '.join(map(str, left))}")
            first = asyncio.FIRST_COMPLETED
            await (asyncio.wait(driving, timeout=pause, return_when=first) if driving else asyncio.sleep(pause))


def _work_beside_runs() -> None:
    """Publications, schedules, e-mails, escalations: what was hinted, and what is due."""
    background_tasks.do_manual()
    sweep.sweep(send=lambda run_ids: None)
    background_tasks.do_manual()


def journal_of(run: Run | UUID | str) -> list[JournalEntry]:
    """A run's journal in the order of `seq`, with its big values loaded. Raises NotFoundError for what is no id."""
    entries = list(JournalEntry.objects.filter(run_id=run_id_of(run)).order_by("seq"))
    internalize(entries)
    return entries
