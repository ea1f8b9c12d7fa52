"""What some runs cost the database, driven in this process with heartbeat and sweep silenced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.conf import settings
from django.db import connections
from django.test import override_settings

from benchmarks.steps import TIMEOUT_S, runtime
from benchmarks.storage import QUIET_S, Database


@dataclass(frozen=True, slots=True)
class Cost:
    output: str  # of the last run
    commits: float  # of a run that was submitted, all that it started included
    disk: float  # bytes, indexes too


def cost(url: str, agent: str, text: str, times: int = 1) -> Cost:
    """Of `times` runs of an agent, one after the other."""
    connections.close_all()
    database = Database(url)
    try:
        before = database.state()
        quiet = {"HEARTBEAT_S": QUIET_S, "SWEEP_S": QUIET_S, "LEASE_S": 4 * QUIET_S}
        with override_settings(RAVI={**settings.RAVI, **quiet}):
            output = asyncio.run(_drive(agent, text, times))
        after = database.state()
    finally:
        database.close()
    return Cost(output, (after.commits - before.commits) / times, (after.disk - before.disk) / times)


async def _drive(agent: str, text: str, times: int) -> str:
    output = ""
    async with runtime() as rt:
        for _ in range(times):
            output = await rt.result(await rt.submit(agent, text), timeout=TIMEOUT_S)
    return output
