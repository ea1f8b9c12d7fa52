"""Leases are renewed from a thread of their own, for all runs of a process at once."""

import asyncio
import logging
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import pytest
from django.db import connection, transaction

from ravi_django import signal, tool
from ravi_django.conf import conf
from ravi_django.models import Run
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import (
    auntil,
    claim_next,
    code,
    in_background,
    leased,
    make_run,
    on_postgresql,
    uncommitted,
    until,
)
from tests.support.tool_calls import calling
from tests.support.world import Engine, Entry

pytestmark = pytest.mark.django_db(transaction=True)


def driven(check, count=1):
    """Run `check(engine, active, …)` while a tool call of each of so many runs is open; returns the first run."""

    began, gate = [], asyncio.Event()

    @tool(timeout=30)
    async def hold() -> str:
        """Hold."""
        began.append(1)
        await gate.wait()
        return ""

    code(calling("hold"), tools=[hold])

    async def main():
        engine = Engine()
        try:
            driving = asyncio.gather(*(engine.hint(run.id) for run in runs))
            await auntil(lambda: len(began) == count)
            await check(engine, *(engine.active[run.id] for run in runs))
            gate.set()
            await asyncio.wait_for(driving, BOUND_S)
        finally:
            await engine.close(drain_s=0.5)

    runs = [make_run() for _ in range(count)]
    asyncio.run(main())
    runs[0].refresh_from_db()
    return runs[0]


async def beat(engine):
    await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(BOUND_S))


def test_a_beat_renews_the_lease_and_the_workers_trust_in_it(clock):
    async def check(engine, active):
        clock.advance(20)
        active.recorder.state.renewed_at = time.monotonic() - 25
        before = time.monotonic()
        await beat(engine)
        assert active.recorder.state.renewed_at >= before
        clock.advance(20)
        in_background(engine.heartbeat.beat).result(BOUND_S)  # the loop stands still meanwhile
        clock.advance(20)

    run = driven(check)
    assert (run.status, run.lease_epoch) == ("completed", 1)


def test_a_loop_that_stands_still_for_two_leases_is_let_go_with_its_stack(clock, caplog, monkeypatch):
    async def check(engine, active):
        engine.heartbeat._ticked = time.monotonic() - 3 * conf.LEASE_S
        expires = Run.objects.values_list("lease_expires_at", flat=True)
        before = await asyncio.to_thread(lambda: in_background(expires.get).result(BOUND_S))
        clock.advance(20)
        with caplog.at_level(logging.ERROR, "ravi.heartbeat"):
            in_background(engine.heartbeat.beat).result(BOUND_S)
        after = await asyncio.to_thread(lambda: in_background(expires.get).result(BOUND_S))
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

    world.patch(monkeypatch, "worker_seen", worker_seen)

    async def main():
        engine = Engine()
        try:
            await auntil(beats.is_set)
        finally:
            await engine.close(drain_s=0)

    asyncio.run(main())
    assert "heartbeat failed" in caplog.text


@on_postgresql
def test_a_row_that_somebody_else_holds_does_not_cost_the_others_their_lease(clock):
    held, free = make_run(), make_run()
    both = [(leased(run, "w").run_id, 1) for run in (held, free)]
    clock.advance(20)
    with transaction.atomic():
        Run.objects.select_for_update().get(id=held.id)
        verdicts = in_background(world.heartbeat, "w", both).result(BOUND_S)
    assert verdicts == {held.id: "unknown", free.id: "ok"}
    clock.advance(20)
    assert world.claim(free.id, "other") is None
    assert world.claim(held.id, "other") is not None


@on_postgresql
def test_a_run_that_works_without_pause_keeps_its_lease_however_slow_commits_are(monkeypatch):
    world.patch(monkeypatch, "LEASES_LOCK_S", 30.0)
    lease, over = leased(owner="w"), threading.Event()

    def work():
        while not over.is_set():
            world.append(lease, [Entry("log", str(uuid4()))])

    with slow_commits(5):
        working = in_background(work)
        try:
            verdicts = [in_background(world.heartbeat, "w", [(lease.run_id, 1)]).result(BOUND_S) for _ in range(20)]
        finally:
            over.set()
        working.result(BOUND_S)

    assert verdicts == [{lease.run_id: "ok"}] * 20


@contextmanager
def slow_commits(ms):
    with connection.cursor() as cursor:
        cursor.execute(
            f"""CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep({ms / 1000}); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER take_time AFTER INSERT ON ravi_journalentry DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION take_time()"""
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION take_time CASCADE")


@on_postgresql
def test_a_long_transaction_that_has_signalled_runs_keeps_nobody_from_them():
    working, waiting = leased(owner="w"), make_run()
    with uncommitted(lambda: [signal(run_id, "go") for run_id in (working.run_id, waiting.id)]):
        beat = in_background(world.heartbeat, "w", [(working.run_id, 1)]).result(BOUND_S)
        hinted = in_background(world.due_for_hint, 10).result(BOUND_S)
        claimed = in_background(claim_next, "w", ["test/code"]).result(BOUND_S)
    assert beat == {working.run_id: "ok"}
    assert hinted == [waiting.id]
    assert claimed is not None


@on_postgresql
def test_a_row_that_a_beat_does_not_reach_comes_first_in_the_next(settings, monkeypatch, clock):
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 1.0}
    world.patch(monkeypatch, "LEASES_LOCK_S", 0.6)  # more than half of a beat: one row each

    async def check(engine, *active):
        *held, last = [one.lease.run_id for one in active]
        expires = Run.objects.filter(id=last).values_list("lease_expires_at", flat=True)

        def story():
            before = expires.get()
            clock.advance(20)
            with uncommitted(lambda: list(Run.objects.select_for_update().filter(id__in=held))):
                with transaction.atomic():
                    Run.objects.select_for_update().get(id=last)
                    until(blocked_by_me)
                until(lambda: expires.get() > before)

        await asyncio.to_thread(lambda: in_background(story).result(seconds(120)))

    assert driven(check, 3).status == "completed"


def blocked_by_me():
    blocked = "SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS ({blocked})")
        return cursor.fetchone()[0]
