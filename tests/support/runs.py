"""Runs for the tests of the runtime: agents made of a function, workers that die at a given place."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from project.process import wait_until
from ravi_django import register
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message
from ravi_django.models import HumanRequest, Run, Session, uuid7
from ravi_django.testing import FakeClock, warm
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.world import Engine, Lease, LoopConnection

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs two writers at once")


class CodeAgent:
    """An agent whose code is a function `(ctx, inbox)`."""

    def __init__(
        self, function: Callable[..., Awaitable[Any]], *, key: str = "code", model: Any = None, tools: Any = ()
    ) -> None:
        self.id = AgentId("test", key)
        self.run = function
        self.model = model
        self.tools = list(tools)


def code(function: Callable[..., Awaitable[Any]], *, model: Any = None, tools: Any = ()) -> CodeAgent:
    """Register a function as the agent `test/code`, in place of the one before."""
    agent = CodeAgent(function, model=model, tools=tools)
    register(agent)
    return agent


def message(text: str = "hi", agent: str = "test/code") -> dict[str, Any]:
    said = ChatPayload(message=ChatMessage.of("user", text))
    return Message(target=AgentId.parse(agent), payload=said).model_dump(mode="json")


def make_run(agent: str = "test/code", *, text: str = "hi", session: Session | None = None, **fields: Any) -> Run:
    """A run as `submit` writes it, without a hint."""
    session = session or world.create_session(Session(agent=agent))
    return world.create_run(Run(id=uuid7(), agent=agent, session=session, **fields), message(text, agent))


def leased(run: Run | None = None, owner: str = "worker") -> Lease:
    lease = world.claim((run or make_run()).id, owner)
    assert lease is not None
    return lease


class Died(Exception):
    """The worker is gone: nothing that it does from here on is written."""


def drive(
    run: Run, *, dies: int | str | None = None, written: bool = False, setup: Callable[[Engine], Any] | None = None
) -> Run:
    """One lease of the run by a worker of its own; returns the run as it is then.

    `dies` is the number of the append, from 1, at which the worker dies, or "end": when the agent's code has come to
    its end. `written` lets that append be committed first.
    """
    warm.run(adrive(run, dies=dies, written=written, setup=setup))
    run.refresh_from_db()
    return run


async def adrive(
    run: Run, *, dies: int | str | None = None, written: bool = False, setup: Callable[[Engine], Any] | None = None
) -> None:
    async with warm.engine() as engine:
        if dies is not None:
            _let_die(engine, math.inf if dies == "end" else int(dies), written)
        if setup is not None:
            setup(engine)
        had = await asyncio.wait_for(engine.drive(run.id), BOUND_S)
        assert had, "the run could not be claimed"


def _let_die(engine: Engine, at: float, written: bool) -> None:
    database = engine.database
    call, append = database.call, engine.appender.append
    appends = 0

    async def appending(*args: Any) -> Any:
        nonlocal appends
        appends += 1
        if appends < at:
            return await append(*args)
        if written and appends == at:
            await append(*args)
        raise Died

    async def calling(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is world.settle_write:
            raise Died
        return await call(function, *args, **kwargs)

    database.call, engine.appender.append = calling, appending  # type: ignore[method-assign]


def patch_append(patch: pytest.MonkeyPatch, append: Callable[..., Any]) -> None:
    """Replace `fence.append`, and keep the loop's own connection from appending beside it."""
    world.patch(patch, "fence_append", append)
    patch.setattr(LoopConnection, "is_idle", False)


def take_over(clock: FakeClock, run: Run, **how: Any) -> Run:
    """The next worker's lease, once that of a dead one has expired."""
    clock.advance(conf.LEASE_S + 1)
    return drive(run, **how)


def asked(run: Run) -> HumanRequest:
    """The one open request of a run, which it waits for."""
    request = HumanRequest.objects.get(run=run, status="pending")
    assert run.status == "suspended", (run.status, run.error)
    assert run.waiting_on == [{"kind": "request", "id": str(request.id), "until": None}]
    return request


def in_background(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """On a thread and a database connection of its own."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)
        finally:
            connections.close_all()

    Thread(target=work, daemon=True).start()
    return future


@contextmanager
def uncommitted(write: Callable[[], Any]) -> Iterator[None]:
    """Somebody else's transaction that has written, and commits at the end of the block."""
    written, over = Event(), Event()

    def hold() -> None:
        with transaction.atomic():
            write()
            written.set()
            assert over.wait(BOUND_S)

    future = in_background(hold)
    assert written.wait(BOUND_S), future.result(1)
    try:
        yield
    finally:
        over.set()
        future.result(BOUND_S)


def end_backend() -> None:
    """End this thread's connection at the server."""
    lost = connection.connection.info
    with psycopg.connect(lost.dsn, password=lost.password, autocommit=True) as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 5000)", [lost.backend_pid]).fetchone() == (True,)


# Other tests use other databases of the same server. A lock on a transaction has no database in pg_locks.
LOCKS = "pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()"


def waiting_for_locks() -> int:
    """How many connections to this database wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction keeps the list that it has read
        cursor.execute(f"SELECT count(DISTINCT pid) FROM {LOCKS} AND NOT granted")
        return int(cursor.fetchone()[0])


def somebody_waits_for_a_lock() -> bool:
    return waiting_for_locks() > 0


def until(condition: Callable[[], Any], timeout: float = BOUND_S) -> None:
    assert wait_until(condition, timeout, poll=0.01), "it did not come to that in time"


async def auntil(condition: Callable[[], Any], timeout: float = BOUND_S) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
