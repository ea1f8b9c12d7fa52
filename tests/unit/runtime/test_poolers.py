"""Workers behind a pooler: they work, and the pool's other clients notice nothing."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from django.db import connections

from ravi_django import tool
from ravi_django.models import Status
from ravi_django.runtime.engine import Engine
from tests.support.pgbouncer import pgbouncer
from tests.support.runs import code, make_run, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


@tool
def step(number: int) -> str:
    """Step."""
    return str(number)


async def story(ctx, inbox):
    results = await asyncio.gather(*(ctx.tool("step", number=number) for number in range(20)))
    return " ".join(result.text for result in results)


def driven(runs):
    async def main():
        engine = Engine()
        try:
            await asyncio.gather(*(engine.drive(run.id) for run in runs))
            return engine.database._wire.ready
        finally:
            await engine.close(drain_s=1)

    ready = asyncio.run(main())
    for run in runs:
        run.refresh_from_db()
    assert [run.status for run in runs] == [Status.COMPLETED] * len(runs)
    return ready


def test_behind_pgbouncer(monkeypatch):
    code(story, tools=[step])
    runs = [make_run() for _ in range(6)]
    site = connections.settings["default"]

    with pgbouncer({**site, "NAME": connections["default"].settings_dict["NAME"]}) as port:
        for name, value in (("HOST", "127.0.0.1"), ("PORT", str(port))):
            monkeypatch.setitem(site, name, value)
        assert not driven(runs)  # and the loop has no connection of its own
        clients = [
            psycopg.connect(host="127.0.0.1", port=port, user=site["USER"], dbname=site["NAME"], autocommit=False)
            for _ in range(3)
        ]
        for client in clients:  # each has a server process of the pool
            assert [client.execute(f"SHOW {name}").fetchone()[0] for name in LIMITS] == ["0", "0", "0"]
        for client in clients:
            client.close()


def test_with_djangos_pool(monkeypatch):
    code(story, tools=[step])
    runs = [make_run() for _ in range(6)]
    site = connections.settings["default"]
    monkeypatch.setitem(site, "OPTIONS", {**site["OPTIONS"], "pool": {"min_size": 1, "max_size": 6}})

    assert not driven(runs)

    other = connections["default"].copy()
    pool = other.pool
    try:
        held = [pool.getconn() for _ in range(pool.max_size)]  # none is lost
        for raw in held:
            assert [raw.execute(f"SHOW {name}").fetchone()[0] for name in LIMITS] == ["0", "0", "0"]
            pool.putconn(raw)
    finally:
        other.close_pool()
