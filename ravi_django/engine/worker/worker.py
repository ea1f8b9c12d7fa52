"""The worker: one engine in a process, on its own thread and event loop. Its first use starts it, never before a fork.

The keeper looks for runs that were not hinted; without a broker it sweeps too. `Runtime` is the same engine on the
event loop of the code that opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from datetime import timedelta
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.engine.db import threads
from ravi_django.engine.worker import sweep
from ravi_django.engine.worker.engine import Engine
from ravi_django.kernel import Agent, AgentId, Message, NotFoundError, StreamEvent
from ravi_django.kernel.checks import listed, seconds_of
from ravi_django.live.streams import buffer
from ravi_django.models import TERMINAL, Run, Status, uuid7
from ravi_django.people import answers
from ravi_django.runs import background_tasks, following, hints, results
from ravi_django.runs.catalog import registry, specs
from ravi_django.runs.checks import run_id_of
from ravi_django.runs.lifecycle import endings
from ravi_django.runs.submit import submit_once

log = logging.getLogger("ravi.worker")

LOOK_S = 1.0  # how often `Runtime.result` reads the row of a run
RELEASE_S = 3.0  # for leases to be released when the process ends


class Worker:
    """Runs an Engine on its own thread. May be called from any thread."""

    def __init__(self) -> None:
        self._ready: Future[Engine] = Future()
        self._loop = asyncio.SelectorEventLoop()  # not the site's policy: `lease/paths.py` reads its queue
        self._keeper: Future[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="ravi-loop", daemon=True)
        self._thread.start()
        self.engine = self._ready.result(timeout=60)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _start(self) -> None:
        try:
            self._ready.set_result(Engine())
        except BaseException as error:
            self._ready.set_exception(error)
            raise

    def hint(self, run_id: UUID | str) -> None:
        """Try for a run's lease in the background."""
        self._loop.call_soon_threadsafe(self.engine.hint, run_id)

    def look(self) -> None:
        """Look for any claimable run."""
        self._loop.call_soon_threadsafe(self.engine.look)

    def cancel(self, run_id: UUID) -> None:
        """Cancel a run that is driven here."""
        self._loop.call_soon_threadsafe(self.engine.cancel_run, run_id)

    def keep_looking(self, *, sweeping: bool = False) -> None:
        """Look every RAVI["SWEEP_S"] seconds: no hint arrives while the broker is away, and Celery takes up to half a
        minute to reconnect. `sweeping` sweeps too, without beat."""
        self._keeper = asyncio.run_coroutine_threadsafe(keep(self.engine, sweeping=sweeping), self._loop)

    def stop_claiming(self) -> None:
        self.engine.draining = True

    def close(self, drain_s: float | None = None, timeout_s: float | None = None) -> None:
        """Drain for `drain_s` seconds (None: DRAIN_S), then end the loop and the thread; at most `timeout_s`."""
        if not self._thread.is_alive():
            return
        if self._keeper is not None:
            self._keeper.cancel()
        background_tasks.stop()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self.engine.close(drain_s), self._loop).result(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


def start_line(engine: Engine, source: str = "no broker") -> str:
    """What an operator reads at the start of a worker. Reads the database: not for the event loop."""
    base = connection.settings_dict
    host = f" at {base['HOST']}" if base.get("HOST") else ""
    return (
        f"ravi_django {version('ravi-django')}: worker {engine.name}; {source}; agents: {listed(specs.known_agents())}"
        f"; {conf.MAX_RUNS} runs at once; lease {conf.LEASE_S:g} s; {connection.vendor} {base['NAME']}{host}"
    )


_worker: Worker | None = None
_closes_at_exit = False
_lock = threading.Lock()


def get_worker() -> Worker:
    """This process's worker; started by the first call. Its leases are released when the process ends."""
    global _worker, _closes_at_exit
    with _lock:
        if _worker is None:
            _worker = Worker()
            hints.register_cancel(_worker.cancel)
            if not _closes_at_exit:  # atexit comes too late: from here on code may start no thread, and would fail
                threading._register_atexit(close_worker, drain_s=0, timeout_s=RELEASE_S)  # type: ignore[attr-defined]
                _closes_at_exit = True
            if conf.ENGINE == "inline":  # no other process sweeps
                _worker.keep_looking(sweeping=True)
        return _worker


def has_worker() -> bool:
    """Whether this process's worker has been started."""
    return _worker is not None


def close_worker(drain_s: float | None = None, timeout_s: float | None = None) -> None:
    """Drain this process's worker, if it has one; see `Worker.close`."""
    global _worker
    with _lock:
        worker, _worker = _worker, None
        hints.register_cancel(None)
    if worker is not None:
        worker.close(drain_s, timeout_s)


def _after_fork() -> None:
    """Threads, loops and connections belong to the parent."""
    global _worker, _lock
    _worker, _lock = None, threading.Lock()
    hints.register_cancel(None)
    buffer.forget_buffers()
    threads.forget_readers()


os.register_at_fork(after_in_child=_after_fork)

keeper_log = logging.getLogger("ravi.keeper")


async def keep(engine: Engine, poll_s: float | None = None, *, sweeping: bool = True) -> None:
    """Until the engine drains, look for claimable runs every `poll_s` seconds (None: SWEEP_S), and sweep every
    SWEEP_S."""

    def hint_all(run_ids: list[UUID]) -> None:
        for run_id in run_ids:
            engine.loop.call_soon_threadsafe(engine.hint, run_id)

    last = float("-inf")
    while not engine.draining:
        try:
            if sweeping and time.monotonic() - last >= conf.SWEEP_S:
                await engine.database.call(sweep.sweep, hint_all)
                last = time.monotonic()
            engine.look()
        except Exception as error:
            keeper_log.warning("could not sweep: %s", error, extra={"action": "sweep.failed"})
        await asyncio.sleep(poll_s or conf.SWEEP_S)


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
        background_tasks.stop()
        await self.engine.close()

    async def register(self, agent: Agent) -> AgentId:
        """Make an agent known in this process, in place of the site's at its address."""
        return registry.register(agent, replace=True).id

    async def submit(self, target: Agent | AgentId | str, message: Message | str | list[Any], **options: Any) -> str:
        """`ravi_django.submit` on this runtime; returns the run's id."""
        loop = asyncio.get_running_loop()

        def here(run_id: UUID | str) -> None:
            loop.call_soon_threadsafe(self.engine.hint, run_id)

        new_id = uuid7()  # a call that is repeated after a lost connection finds its own run
        run, _ = await self.engine.database.call(submit_once, target, message, send=here, run_id=new_id, **options)
        return str(run.id)

    def events(self, run: Any, after: int = 0, *, user: Any = None) -> AsyncGenerator[StreamEvent]:
        """The events of a run (its id or row) and those below it, as `run.aevents()`. Of TopicId("agent.stream", key)
        the text of all runs of that agent, from now on."""
        return following.aevents(run, after, user=user)

    async def stream(self, target: Agent | AgentId | str, message: Any, **options: Any) -> AsyncGenerator[StreamEvent]:
        """`submit`, then the events of the run: with `user=` those that this user may see."""
        run_id = await self.submit(target, message, **options)
        async with contextlib.aclosing(self.events(run_id, user=options.get("user"))) as events:
            async for event in events:
                yield event

    async def answer(self, request: Any, text: str = "", *, action: str = "answer", **fields: Any) -> str:
        """`ravi_django.answer` a request: its id, its row or its event. Returns the run's id."""
        run_id = await answers.aanswer(request, action, text=text, **fields)
        self.engine.hint(run_id)
        return str(run_id)

    async def cancel(self, run: Run | UUID | str, reason: str = "cancelled by the site's code") -> None:
        """Cancel a run and those below it. Raises NotFoundError, and IllegalTransitionError when it has ended."""
        row = await self.engine.database.call(following.find, run)
        await self.engine.database.call(endings.cancel, row.id, reason)
        self.engine.cancel_run(row.id)

    async def result(
        self, run: Run | UUID | str, result_type: Any = None, *, timeout: float | timedelta | None = None
    ) -> Any:
        """Wait for a run's end and return its output, as `Run.result` does.

        Raises NotFoundError, RunFailedError when it failed, was cancelled or is blocked, TimeoutError after `timeout`
        seconds.
        """
        results.check_type(result_type)
        limit = seconds_of(timeout)
        give_up = None if limit is None else time.monotonic() + limit
        key, row = run_id_of(run), None
        looks = not self.engine.is_here(key)  # else the end of the lease here says how the run ended
        while True:
            lease_end = self.engine.lease_end(key)
            try:
                if looks and (row := await self.engine.database.call(_end_of, key)) is None:
                    raise NotFoundError(f"there is no run {key}")
                if row is not None and row.status in (*TERMINAL, Status.BLOCKED):
                    if specs.is_type_here(row):
                        return results.value_of(row, result_type)
                    return await self.engine.database.call(results.value_of, row, result_type)
                left = math.inf if give_up is None else give_up - time.monotonic()
                if looks and left <= 0:
                    raise TimeoutError(f"run {key} is {row and row.status} after {limit:g} s")
                await asyncio.wait([lease_end], timeout=max(0.0, min(left, LOOK_S)))
                row = lease_end.result() if lease_end.done() else None
                looks = row is None
            finally:
                lease_end.cancel()


def _end_of(run_id: UUID) -> Run | None:
    return Run.objects.filter(id=run_id).first()
