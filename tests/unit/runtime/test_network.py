"""A network that loses connections without a word: each of ours has a deadline."""

import asyncio
import os
import socket

import pytest
from django.db import connection

from ravi_django import tool
from ravi_django.models import JournalEntry, Run
from tests.support.network import Proxy
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import auntil, code, in_background, leased, make_run, on_postgresql
from tests.support.world import Appender, DatabaseThreads, Engine, Entry

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql, pytest.mark.full]

LATE_S = seconds(10)  # a deadline is one second: what takes so long has none


@pytest.fixture
def proxy(settings, monkeypatch):
    """Between the server and whoever connects from here on; the test itself is connected past it."""
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 1.0}
    connection.ensure_connection()
    address = connection.settings_dict
    with Proxy(address["HOST"], int(address["PORT"])) as proxy:
        monkeypatch.setitem(address, "HOST", "127.0.0.1")
        monkeypatch.setitem(address, "PORT", proxy.port)
        yield proxy


def actions(caplog):
    return {getattr(record, "action", "") for record in caplog.records}


def test_an_append_over_a_silent_connection_of_the_loop_is_repeated_by_a_thread(proxy, caplog):
    async def append(appender, lease, path):
        entry = Entry("log", path)
        appending = asyncio.ensure_future(appender.append(lease, [entry], []))
        await asyncio.wait([appending], timeout=LATE_S)  # a cancellation would wait for its end
        assert appending.done(), "an append hangs"
        seq, error, _ = appending.result()
        assert error is None
        return seq

    async def story():
        threads = DatabaseThreads(2)
        appender = Appender(threads)
        (its,) = appender.connections
        try:
            lease = await threads.call(leased)
            await append(appender, lease, "opens it")
            await auntil(lambda: its.is_idle, LATE_S)
            with socket.socket(fileno=os.dup(its._raw.pgconn.socket)) as end:
                proxy.swallow(end.getsockname()[1])
            return [await append(appender, lease, "over it"), await append(appender, lease, "after it")]
        finally:
            proxy.cut()  # so that nothing hangs at what is silent
            appender.close()
            await asyncio.to_thread(threads.close)

    assert asyncio.run(story()) == [2, 3]
    paths = JournalEntry.objects.order_by("seq").values_list("path", flat=True)
    assert list(paths) == ["opens it", "over it", "after it"]
    assert actions(caplog) >= {"db.deadline", "append.repeated"}


def test_a_run_goes_on_when_all_connections_fall_silent(proxy, clock, caplog):
    run = make_run()
    expires = Run.objects.filter(id=run.id).values_list("lease_expires_at", flat=True)

    async def story():
        began, gate = asyncio.Event(), asyncio.Event()

        @tool(timeout=BOUND_S)
        async def hold() -> str:
            """Hold."""
            began.set()
            await gate.wait()
            return ""

        async def agent(ctx, inbox):
            for _ in range(3):
                await ctx.tool("hold")
            return "done"

        code(agent, tools=[hold])
        engine = Engine()
        try:
            driving = asyncio.ensure_future(engine.hint(run.id))
            await asyncio.wait_for(began.wait(), BOUND_S)
            before = await asyncio.to_thread(lambda: in_background(expires.get).result(BOUND_S))
            known = proxy.accepted
            proxy.swallow()
            clock.advance(20)
            await auntil(lambda: proxy.accepted > known, LATE_S)  # it connects anew, and hears nothing there either
            proxy.heal()
            await asyncio.wait_for(auntil_renewed(before), LATE_S)
            gate.set()
            await asyncio.wait([driving], timeout=LATE_S)
            assert driving.done(), "the run hangs"
        finally:
            proxy.heal()
            proxy.cut()
            await engine.close(drain_s=0.5)

    async def auntil_renewed(before):
        while await asyncio.to_thread(lambda: in_background(expires.get).result(BOUND_S)) == before:
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(story(), 2 * BOUND_S))

    run.refresh_from_db()
    assert (run.status, run.output, run.lease_epoch) == ("completed", "done", 1)
    assert "db.deadline" in actions(caplog)
