"""Drives of one process share a loop and connections."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

from ravi_django import register
from ravi_django.conf import conf
from ravi_django.testing import arun_until_idle, run_until_idle, warm
from tests.support import runs, world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, in_background, make_run, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


@pytest.fixture(autouse=True)
def _agent(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")

    async def answer(ctx: Any, inbox: Any) -> str:
        return str(id(asyncio.get_running_loop()))

    code(answer)


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Connections that a test opens."""
    warm.close()
    found: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        found.append(connection)

    connection_created.connect(note)
    yield found
    connection_created.disconnect(note)


def drive() -> str | None:
    run = make_run()
    assert run_until_idle() == 1
    run.refresh_from_db()
    return run.output


def test_drives_share_a_loop_and_a_few_connections(opened):
    assert len({drive() for _ in range(10)}) == 1
    assert len(opened) <= conf.DB_THREADS + 1  # the threads', and the loop's
    # async drives share the connections on loops of their own
    for _ in range(5):
        make_run()
        assert asyncio.run(arun_until_idle()) == 1
        drive()
    assert len(opened) <= conf.DB_THREADS + 1


def test_a_drive_during_another_has_a_loop_of_its_own():
    loops = []

    async def end(ctx, inbox):
        loops.append(asyncio.get_running_loop())

    async def wait(ctx, inbox):
        loops.append(asyncio.get_running_loop())
        await asyncio.to_thread(lambda: in_background(runs.drive, inner).result(BOUND_S))

    register(CodeAgent(end), replace=True)
    register(CodeAgent(wait, key="outer"))
    inner = make_run()
    runs.drive(make_run("test/outer"))
    assert len(set(loops)) == 2


def test_a_drive_that_a_signal_breaks_off_leaves_nothing_to_the_next(opened):
    ended = []

    def timed_out(*_):
        raise TimeoutError("as pytest-timeout does")

    async def hang(ctx, inbox):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    register(CodeAgent(hang, key="hanging"))
    before = signal.signal(signal.SIGUSR1, timed_out)
    try:
        with pytest.raises(TimeoutError, match="as pytest-timeout does"):
            runs.drive(make_run("test/hanging"))
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert ended == [1]
    for _ in range(5):
        drive()
    assert len(opened) <= conf.DB_THREADS + 1


def test_nobody_closes_the_connections_of_a_drive():
    async def close(ctx, inbox):
        warm.close()

    code(close)
    run = make_run()
    run_until_idle()
    run.refresh_from_db()
    assert "an engine is running" in run.error["message"]


@pytest.mark.parametrize("name", warm.POOL_SETTINGS)
def test_another_setting_gets_connections_of_its_own(name, opened, settings):
    drive()
    opened.clear()
    values = {"ENGINE": "inline", "LEASE_S": 20.0, "HEARTBEAT_S": 5.0, "DB_THREADS": 2}
    settings.RAVI = {**settings.RAVI, name: values[name]}
    assert getattr(conf, name) == values[name]
    drive()
    assert opened


def test_a_forked_child_does_not_use_its_parents(opened):
    drive()
    connections.close_all()
    opened.clear()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            drive()
            status = 0 if len(opened) > 1 else 2
            connections.close_all()
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert drive() is not None
    assert len(opened) <= conf.DB_THREADS + 1  # none was broken by the child


def test_closing_ends_its_threads_and_the_next_drive_makes_them_anew(opened):
    drive()
    warm.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ravi-db")]
    opened.clear()
    assert drive() is not None and opened
