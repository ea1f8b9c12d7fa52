"""Tool calls that stand open until a test lets them go, and what may happen to their run meanwhile."""

from __future__ import annotations

import asyncio

from ravi_django import tool
from ravi_django.models import Run
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, in_background
from tests.support.world import Engine


def steal(run):
    """Another worker claims the run, as if the lease had expired."""
    Run.objects.filter(id=run.id).update(lease_expires_at="2000-01-01T00:00:00Z")
    assert world.claim(run.id, "thief") is not None


class Gate:
    """A tool call that stands open until the test lets it go."""

    def __init__(self):
        self.began = asyncio.Event()
        self.open = asyncio.Event()

    def tool(self):
        @tool(timeout=2 * BOUND_S)  # nothing waits for its end
        async def hold(name: str = "hold") -> str:
            """Hold."""
            self.began.set()
            await self.open.wait()
            return name

        return hold


def drained(run, agent_code, *, tools=(), model=None, while_draining=None, drain_s=5.0):
    """Drive the run, and close the worker while the held call is open."""
    gate = Gate()
    code(agent_code, tools=[gate.tool(), *tools], model=model)

    async def main():
        engine = Engine()
        driving = engine.hint(run.id)
        await asyncio.wait_for(gate.began.wait(), BOUND_S)
        closing = asyncio.create_task(engine.close(drain_s))
        await auntil(lambda: engine.draining)
        if while_draining is not None:
            while_draining(gate)
        await asyncio.wait_for(closing, BOUND_S)
        await asyncio.wait_for(driving, BOUND_S)

    asyncio.run(main())
    run.refresh_from_db()
    return run


def cancelled_in(run, agent_code, *, tools=(), model=None, began=None):
    """Drive the run; cancel it once a call is open; returns it as it is then."""

    gate = Gate()
    code(agent_code, tools=[gate.tool(), *tools], model=model)

    async def main():
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(run.id))
            await (asyncio.wait_for(gate.began.wait(), BOUND_S) if began is None else auntil(began))
            await asyncio.to_thread(lambda: in_background(world.request_cancel, run.id, "enough").result(BOUND_S))
            await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(BOUND_S))
            await asyncio.wait_for(driving, BOUND_S)
        finally:
            await engine.close(drain_s=0)

    asyncio.run(main())
    run.refresh_from_db()
    return run
