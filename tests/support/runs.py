"""Runs for the tests of the runtime: agents made of a function, workers that die at a given place."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from threading import Barrier, Event, Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection, connections, transaction

from project.process import wait_until
from ravi_django import register
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message
from ravi_django.models import HumanRequest, Run, Session, Status, uuid7
from ravi_django.testing import FakeClock, run_until_idle, warm
from tests.support import emptying, world
from tests.support.patience import BOUND_S
from tests.support.world import Engine, Lease, LoopConnection

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs two writers at once")

MOST_DEATHS = 200  # in one story: it should have come to its end by then


class CodeAgent:
    """An agent whose code is a function `(ctx, inbox)`."""

    def __init__(
        self, function: Callable[..., Awaitable[Any]], *, key: str = "code", model: Any = None, tools: Any = ()
    ) -> None:
        self.id = AgentId("test", key)
        self.run = function if iscoroutinefunction(function) else _as_async(function)
        self.model = model
        self.tools = list(tools)


def _as_async(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Of a lambda, which `register` refuses."""

    async def run(ctx: Any, inbox: Any) -> Any:
        returned = function(ctx, inbox)
        return await returned if isawaitable(returned) else returned

    return run


def code(function: Callable[..., Awaitable[Any]], *, model: Any = None, tools: Any = ()) -> CodeAgent:
    """Register a function as the agent `test/code`, in place of the one before."""
    agent = CodeAgent(function, model=model, tools=tools)
    register(agent, replace=True)
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


def claim_next(owner: str, agents: list[str], suspects: bool = True) -> Lease | None:
    """A look by a worker with one free slot."""
    return next(iter(world.claim_batch(owner, agents, 1, suspects)), None)


class Died(Exception):
    """The worker is gone: nothing that it does from here on is written."""


@dataclass
class Death:
    """Of a worker, at commit number `at` of its own: the settling of a lease is a commit too."""

    at: float
    written: bool = False  # the commit is made before it
    at_settling: bool = False  # at the latest, and then before that commit
    commits: int = 0
    rows: list[str] = field(default_factory=list)  # kinds of the rows of that commit
    came: bool = False

    def lost(self, kind: str) -> int:
        """How many rows of that kind were not written: their work is done again."""
        return 0 if self.written else self.rows.count(kind)

    async def commit(self, write: Callable[[], Awaitable[Any]], rows: list[str], *, settles: bool = False) -> Any:
        self.commits += 1
        at_settling = settles and self.at_settling
        if self.commits < self.at and not at_settling and not self.came:
            return await write()
        if not self.came:
            self.came, self.rows = True, rows
            if self.written and not at_settling:
                await write()
        raise Died

    def __str__(self) -> str:
        if not self.came:
            return "no worker died"
        return f"the worker died {'after' if self.written else 'before'} commit {self.at} ({', '.join(self.rows)})"


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


def beside(act: Callable[[Any], Awaitable[Any]], fails: list[Any]) -> Callable[..., Awaitable[Any]]:
    """The code of an agent that starts `act(ctx)`, waits for the signal `go` meanwhile, and fails while `fails` has
    something in it. Returns the result's text."""

    async def story(ctx: Any, inbox: Any) -> Any:
        task = asyncio.ensure_future(act(ctx))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await ctx.sleep_until_signal("go")
        if fails:
            raise ValueError("no")
        return getattr(await task, "text", None)

    return story


async def adrive(
    run: Run, *, dies: int | str | None = None, written: bool = False, setup: Callable[[Engine], Any] | None = None
) -> None:
    death = None if dies is None else Death(math.inf if dies == "end" else int(dies), written, at_settling=True)
    await _adrive(run, death, setup)


async def _adrive(run: Run, death: Death | None, setup: Callable[[Engine], Any] | None) -> None:
    async with warm.engine() as engine:
        if death is not None:
            _let_die(engine, death)
        if setup is not None:
            setup(engine)
        had = await asyncio.wait_for(engine.drive(run.id), BOUND_S)
        assert had, "the run could not be claimed"


def _let_die(engine: Engine, death: Death) -> None:
    call, append, settle = engine.database.call, engine.appender.append, engine._finish

    async def settling(active: Any, outcome: Any) -> None:
        if death.at == math.inf:  # at the end: what waits for a commit has had it
            await active.recorder.flushed()
        await settle(active, outcome)

    async def appending(lease: Lease, entries: Any, turns: Any, *how: Any) -> Any:
        return await death.commit(partial(append, lease, entries, turns, *how), _kinds(entries, turns))

    async def calling(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        write = partial(call, function, *args, **kwargs)
        if function is not world.settle_write:
            return await write()
        return await death.commit(write, [*_kinds(*args[2:]), "settle"], settles=True)

    engine.database.call, engine.appender.append = calling, appending  # type: ignore[method-assign]
    engine._finish = settling  # type: ignore[method-assign]


def _kinds(entries: Any, turns: Any) -> list[str]:
    return [entry.kind for entry in entries] + ["turn"] * len(turns)


def around_append(*, before: Any = None, after: Any = None) -> Callable[[Engine], None]:
    """For `drive(setup=…)`: `before(engine, entries)` and `after(engine, entries)` are awaited around each append."""

    def setup(engine: Engine) -> None:
        append = engine.appender.append

        async def appending(lease: Lease, entries: Any, *how: Any) -> Any:
            if before is not None:
                await before(engine, entries)
            written = await append(lease, entries, *how)
            if after is not None:
                await after(engine, entries)
            return written

        engine.appender.append = appending  # type: ignore[method-assign]

    return setup


def every_death(clock: FakeClock, story: Callable[[Callable[..., Run]], Run]) -> Iterator[tuple[Run, Death]]:
    """Tell a story again and again: a worker dies at its commit 1, 2, 3 …, before and after it, and the next worker
    takes over; until no commit is left to die at. Yields the run of each time, the last one undisturbed.

        for run, death in every_death(clock, lambda drive: drive(make_run())):
            assert run.status == "completed"
            assert len(model.calls) == 1 + death.lost("llm.call")

    `story(drive)` makes all rows and returns the run: those of the time before are deleted, users stay. Its `drive` is
    a lease of which the worker may die, and the take-over; commits are counted over all of them. A story that keeps
    lists empties them. `drive(run, meanwhile=f)` calls `f()` between the death and the take-over. pytest's captured
    output says which death it was.
    """
    for number in range(1, MOST_DEATHS):
        for written in (False, True):
            _begin_anew()
            death = Death(number, written)
            run = story(partial(_outlive, clock, death))
            run.refresh_from_db()
            print(f"{death}:")
            assert death.came or number > 1, "the story commits nothing"
            yield run, death
            if not death.came:
                return
    raise AssertionError(f"the story has more than {MOST_DEATHS} commits")


def _outlive(
    clock: FakeClock,
    death: Death,
    run: Run,
    *,
    setup: Callable[[Engine], Any] | None = None,
    meanwhile: Callable[[], Any] = lambda: None,
) -> Run:
    had_come = death.came
    try:
        warm.run(_adrive(run, None if had_come else death, setup))
        run.refresh_from_db()
        if death.came and not had_come and run.status == Status.RUNNING:
            meanwhile()
            take_over(clock, run, setup=setup)
    except BaseException as error:
        error.add_note(str(death))
        raise
    return run


def _begin_anew() -> None:
    """Without any row of ravi_django, as each test begins."""
    world.bodies_forget()
    world.budgets_forget()
    world.providers_forget()
    world.accounts_forget()
    emptying.empty("ravi_")


def idle(run: Run) -> Run:
    """The run as it is once all that can go on has."""
    run_until_idle()
    run.refresh_from_db()
    return run


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


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Call all of them at the same moment, each on a thread and a connection of its own; what each gives."""
    together = Barrier(len(works))

    def one(work: Callable[[], Any]) -> Any:
        together.wait(BOUND_S)
        return work()

    return [future.result(BOUND_S) for future in [in_background(one, work) for work in works]]


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


def database_url() -> str:
    """Of the database that the test uses, for another process."""
    name = connection.settings_dict["NAME"]
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


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
