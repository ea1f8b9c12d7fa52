"""Leases are renewed from a thread of their own, for all runs of a process at once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest
from django.db import transaction

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.models import Run
from ravi_django.runtime import store
from ravi_django.runtime.engine import Engine
from tests.support.runs import auntil, code, in_background, leased, make_run, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


def driven(check):
    """Run `check(engine, active)` while a run's tool call is open."""

    async def main():
        began, gate = asyncio.Event(), asyncio.Event()

        @tool(timeout=30)
        async def hold() -> str:
            """Hold."""
            began.set()
            await gate.wait()
            return ""

        async def story(ctx, inbox):
            return (await ctx.tool("hold")).text

        code(story, tools=[hold])
        engine = Engine()
        try:
            driving = engine.hint(run.id)
            await asyncio.wait_for(began.wait(), 60)
            await check(engine, engine.active[run.id])
            gate.set()
            await asyncio.wait_for(driving, 60)
        finally:
            await engine.close(drain_s=0.5)

    run = make_run()
    asyncio.run(main())
    run.refresh_from_db()
    return run


async def beat(engine):
    await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(60))


def test_a_beat_renews_the_lease_and_the_workers_trust_in_it(clock):
    async def check(engine, active):
        clock.advance(20)
        active.effects.renewed_at = time.monotonic() - 25
        before = time.monotonic()
        await beat(engine)
        assert active.effects.renewed_at >= before
        clock.advance(20)

    run = driven(check)

    assert (run.status, run.lease_epoch) == ("completed", 1)


def test_a_busy_event_loop_does_not_lose_the_lease(clock):
    async def check(engine, active):
        clock.advance(20)
        beaten = in_background(engine.heartbeat.beat)
        beaten.result(60)  # the loop stands still meanwhile
        clock.advance(20)

    assert driven(check).lease_epoch == 1


def test_a_loop_that_stands_still_for_two_leases_is_let_go_with_its_stack(clock, caplog, monkeypatch):
    async def check(engine, active):
        engine.heartbeat._ticked = time.monotonic() - 3 * conf.LEASE_S
        expires = Run.objects.values_list("lease_expires_at", flat=True)
        before = await asyncio.to_thread(lambda: in_background(expires.get).result(60))
        clock.advance(20)
        with caplog.at_level(logging.ERROR, "ravi.heartbeat"):
            in_background(engine.heartbeat.beat).result(60)
        after = await asyncio.to_thread(lambda: in_background(expires.get).result(60))
        assert before == after
        engine.heartbeat._ticked = time.monotonic()

    driven(check)

    assert "the event loop has not moved" in caplog.text
    assert "test_heartbeat.py" in caplog.text


def test_a_beat_that_fails_is_logged_and_repeated_at_once(caplog, monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "LEASE_S": 2000, "HEARTBEAT_S": 1000}
    beats = threading.Event()
    failures = []

    def worker_seen(name, runs):
        if not failures:
            failures.append(1)
            raise ValueError("no database")
        beats.set()

    monkeypatch.setattr(store, "worker_seen", worker_seen)

    async def check(engine, active):
        await auntil(beats.is_set)

    assert driven(check).status == "completed"
    assert "heartbeat failed" in caplog.text


@on_postgresql
def test_a_row_that_somebody_else_holds_does_not_cost_the_others_their_lease(clock):
    held, free = make_run(), make_run()
    leases = [(leased(run, "w").run_id, 1) for run in (held, free)]
    clock.advance(20)

    with transaction.atomic():
        Run.objects.select_for_update().get(id=held.id)
        verdicts = in_background(store.heartbeat, "w", leases).result(60)

    assert verdicts == {held.id: "unknown", free.id: "ok"}
    clock.advance(20)
    assert store.claim(free.id, "other") is None
    assert store.claim(held.id, "other") is not None
