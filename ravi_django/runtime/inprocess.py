"""`Runtime`: the same engine and the same rows, on the event loop of the code that opens it. No broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from ravi_django.kernel import Agent, AgentId, Message, NotFoundError, RunFailedError
from ravi_django.models import Run, Status, uuid7
from ravi_django.runtime import background, registry
from ravi_django.runtime.engine import Engine
from ravi_django.runtime.keeper import keep
from ravi_django.runtime.submit import submit_once


class Runtime:
    """Drives runs while it is open.

        async with Runtime() as rt:
            await rt.register(agent)
            run_id = await rt.submit(agent.id, "What is 12 * 7?")
            print(await rt.result(run_id))

    `poll_s` is how often it looks for runs that other processes submitted.
    """

    def __init__(self, *, poll_s: float | None = None) -> None:
        self._poll_s = poll_s
        self._keeper: asyncio.Task[None] | None = None
        self.engine: Engine

    async def __aenter__(self) -> Self:
        self.engine = Engine()
        self._keeper = asyncio.create_task(keep(self.engine, self._poll_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        background.stop()
        await self.engine.close()

    async def register(self, agent: Agent) -> AgentId:
        """Make an agent known in this process."""
        return registry.register(agent).id

    async def submit(self, target: Agent | AgentId | str, message: Message | str | list[Any], **options: Any) -> str:
        """`ravi_django.submit` on this runtime; returns the run's id."""
        loop = asyncio.get_running_loop()

        def here(run_id: UUID | str) -> None:
            loop.call_soon_threadsafe(self.engine.hint, run_id)

        new_id = uuid7()  # a repeated call, after a lost connection, finds its own run
        run, _ = await self.engine.database.call(submit_once, target, message, send=here, run_id=new_id, **options)
        return str(run.id)

    async def result(self, run_id: str, timeout: float | None = None) -> str:
        """Wait for a run's end and return its output.

        Raises RunFailedError when it failed, was cancelled or is blocked, TimeoutError after `timeout` seconds.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            settled = self.engine.settled
            row = await self.engine.database.call(_end_of, run_id)
            if row is None:
                raise NotFoundError(f"there is no run {run_id}")
            status, output, error = row
            if status == Status.COMPLETED:
                return output or ""
            if status in (Status.FAILED, Status.CANCELLED, Status.BLOCKED):
                found = error or {}
                raise RunFailedError(found.get("message", status), type=found.get("type", status), status=str(status))
            if give_up is not None and time.monotonic() >= give_up:
                raise TimeoutError(f"run {run_id} is {status} after {timeout:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await settled.wait()


def _end_of(run_id: str) -> tuple[str, str | None, dict[str, Any] | None] | None:
    return Run.objects.filter(id=run_id).values_list("status", "output", "error").first()
