"""The database threads: few, with connections of their own, and patient for a bounded time."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.checks import ERROR, run_checks
from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections, router, transaction
from psycopg import IsolationLevel

from ravi_django import submit
from ravi_django.conf import conf
from ravi_django.models import HumanRequest, Run, Session, Status
from ravi_django.testing import run_until_idle
from tests.support import template, world
from tests.support.cases import case
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import code, end_backend, in_background, make_run, on_postgresql, until
from tests.support.world import DatabaseThreads, with_retry

pytestmark = pytest.mark.django_db(transaction=True)


def on_threads(story, size=4):
    async def main():
        threads = DatabaseThreads(size)
        try:
            return await story(threads)
        finally:
            await asyncio.to_thread(threads.close)

    return asyncio.run(main())


@pytest.mark.sqlite
def test_a_call_gives_back_what_the_function_returns_or_raises():
    make_run()

    async def story(threads):
        with pytest.raises(ZeroDivisionError):
            await threads.call(lambda: 1 / 0)
        return await threads.call(Run.objects.count)

    assert on_threads(story) == 1


def test_a_hundred_calls_share_a_few_threads_and_closing_ends_their_connections():
    seen, wrappers = set(), []

    def look():
        seen.add((threading.current_thread().name, id(connections["default"])))
        wrappers.append(connections["default"])
        return Run.objects.count()

    async def story(threads):
        await asyncio.gather(*(threads.call(look) for _ in range(100)))

    on_threads(story, size=3)
    assert 1 <= len(seen) <= 3
    assert all(wrapper.connection is None for wrapper in wrappers)


CLOSED = "the threads ravi-db are closed, and one hangs in a call"


def test_closing_leaves_a_thread_that_hangs_and_ends_the_waits_for_it(monkeypatch):
    world.patch(monkeypatch, "CLOSE_S", 0.1)
    go, begun, closed = threading.Event(), threading.Event(), []

    def hang():
        begun.set()
        go.wait()
        closed.append(connections["default"])

    async def story():
        threads = DatabaseThreads(1)
        calls = [asyncio.ensure_future(threads.see_through(function)) for function in (hang, Run.objects.count)]
        await asyncio.to_thread(begun.wait)
        await asyncio.to_thread(threads.close)
        for call in calls:
            call.cancel()  # as the end of the loop does
        assert {str(error) for _, error, _ in await asyncio.gather(*calls)} == {CLOSED}

    try:
        in_background(asyncio.run, story()).result(BOUND_S)
    finally:
        go.set()
    until(lambda: closed and closed[0].connection is None)


def test_a_thread_that_the_system_refuses_is_made_for_the_next_call(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    async def story(threads):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
            patch.setattr(threading.Thread, "start", refuse)
            await threads.call(Run.objects.count)
        return await threads.call(Run.objects.count)

    assert on_threads(story, size=1) == 0


def test_a_write_is_seen_through_when_its_caller_is_cancelled():
    gate, done = threading.Event(), []

    def write():
        gate.wait(seconds(10))
        done.append(1)
        return "written"

    async def story(threads):
        writing = asyncio.create_task(threads.see_through(write))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.sleep(0)
        assert not writing.done()
        gate.set()
        await asyncio.wait([writing], timeout=seconds(10))
        return writing

    writing = on_threads(story, size=1)
    assert writing.done()
    assert done == [1]


@pytest.fixture
def no_pauses(monkeypatch):
    """Time that passes by itself when somebody sleeps."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_a_lock_that_is_not_had_is_asked_for_again_and_nothing_else(no_pauses):
    tries = []

    def call(error, failures):
        def function():
            tries.append(1)
            if len(tries) <= failures:
                raise error
            return "had"

        tries.clear()
        return with_retry(function)

    Run.objects.count()  # the connection works
    for words in ("canceling statement due to lock timeout", "database is locked", "deadlock detected"):
        with case(words):
            assert call(OperationalError(words), 3) == "had"
    for error in (OperationalError("syntax error"), ValueError("no"), InterfaceError("no")):
        with case(error), pytest.raises(type(error)):
            call(error, 1)
        assert len(tries) == 1


def test_patience_is_bounded(no_pauses):
    def locked():
        raise OperationalError("database is locked")

    with pytest.raises(OperationalError):
        with_retry(locked)

    assert no_pauses[0] <= world.DATABASE_RETRY_S


@on_postgresql
def test_its_connections_wait_for_locks_less_long_than_a_heartbeat():
    def limits():
        with connection.cursor() as cursor:
            names = "lock_timeout", "statement_timeout"
            cursor.execute("SELECT current_setting(%s)::interval, current_setting(%s)::interval", names)
            return cursor.fetchone()

    async def story(threads):
        return await threads.call(limits)

    lock, statement = on_threads(story)
    assert timedelta(0) < lock == statement < timedelta(seconds=conf.HEARTBEAT_S)
    assert limits() == (timedelta(0), timedelta(0))


@on_postgresql
def test_a_thread_that_falls_asleep_in_a_transaction_does_not_keep_its_rows(settings):
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 0.3}
    run = make_run()
    awake = threading.Event()

    def asleep():
        try:
            with transaction.atomic():
                Run.objects.select_for_update().get(id=run.id)
                awake.wait(seconds(20))
                Run.objects.filter(id=run.id).update(crashes=7)
        except DatabaseError:
            return "too late"

    async def story(threads):
        sleeping = asyncio.ensure_future(threads.call(asleep))
        try:
            await asyncio.to_thread(lambda: in_background(locked, run.id).result(BOUND_S))
        finally:
            awake.set()
        return await sleeping

    assert on_threads(story) == "too late"
    assert Run.objects.get(id=run.id).crashes == 0


def locked(run_id):
    def try_it():
        with transaction.atomic():
            return bool(Run.objects.select_for_update(skip_locked=True).filter(id=run_id).first())

    until(lambda: not try_it())  # first the sleeper has it
    until(try_it)


@on_postgresql
@pytest.mark.parametrize(
    "options",
    [
        {"options": "-c default_transaction_isolation=serializable -c default_transaction_read_only=on"},
        {"isolation_level": IsolationLevel.SERIALIZABLE},
    ],
    ids=["of the database", "of the site"],
)
def test_its_transactions_are_read_committed_whatever_the_default(options, monkeypatch):
    connection.ensure_connection()
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    def statement():
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')")
            return cursor.fetchone()

    def in_transaction():
        with transaction.atomic():
            return statement()

    async def story(threads):
        return [await threads.call(statement), await threads.call(in_transaction)]

    assert on_threads(story, size=1) == [("read committed", "off")] * 2


# -------------------------------------- a write whose connection is of no use any more is made on a new one


def plain() -> None:
    Session.objects.create(title="kept")


def atomic() -> None:
    with transaction.atomic():
        plain()


def demoted() -> None:
    """Its server is a standby now: it answers, and refuses every write."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")


@on_postgresql
@pytest.mark.parametrize("write", [plain, atomic])
@pytest.mark.parametrize("lose", [end_backend, demoted])
def test_a_lost_connection_is_replaced(lose: Callable[[], None], write: Callable[[], None]) -> None:
    def lose_and_write() -> None:
        connection.ensure_connection()
        lose()
        with_retry(write)

    in_background(lose_and_write).result(BOUND_S)
    assert Session.objects.filter(title="kept").count() == 1


# ------------------------------------------------------------------------------------------------------ which database


class PrimaryReplicaRouter:
    """As Django's documentation has it, with one replica."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, one, other, **hints):
        return True


@pytest.fixture
def stale_replica(monkeypatch, tmp_path):
    """A replica that has not received a row."""
    site = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(template.sqlite(tmp_path / "replica.sqlite3"))}
    databases = connections.configure_settings({"default": site, "replica": site})
    monkeypatch.setitem(connections.settings, "replica", databases["replica"])
    monkeypatch.setattr(router, "routers", [*router.routers, PrimaryReplicaRouter()])
    yield
    connections["replica"].close()
    del connections["replica"]


def test_a_router_that_reads_from_a_stale_replica_loses_no_wake_up(stale_replica):
    async def story(ctx, inbox):
        return (await ctx.ask_human("Which colour?", ["red", "blue"]))["text"]

    code(story)
    with transaction.atomic():
        run = submit("test/code", "hi")
    run_until_idle()
    world.answer(HumanRequest.objects.get(run_id=run.id).id, text="blue")
    run_until_idle()
    run = Run.objects.get(id=run.id)
    assert (run.status, run.output, run.journal.exists()) == (Status.COMPLETED, "blue", True)


@pytest.mark.parametrize(("alias", "problem"), [("other", "ravi.E022"), ("replica", "ravi.E023")])
def test_a_database_that_cannot_hold_the_rows_is_an_error(settings, monkeypatch, alias, problem):
    monkeypatch.setitem(settings.DATABASES, "replica", {})
    settings.RAVI = {**settings.RAVI, "DATABASE": alias}
    assert [found.id for found in run_checks(tags=["ravi"])] == [problem]


def with_mysql(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "mysql")


def with_psycopg_2(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    monkeypatch.setattr("django.db.backends.postgresql.base.psycopg_version", lambda: (2, 9, 10))


def without_time_zones(settings, monkeypatch):
    settings.USE_TZ = False


@pytest.mark.parametrize(
    ("site", "problem"), [(with_mysql, "ravi.E025"), (with_psycopg_2, "ravi.E026"), (without_time_zones, "ravi.E027")]
)
def test_a_database_that_would_lose_runs_is_an_error(settings, monkeypatch, site, problem):
    site(settings, monkeypatch)
    assert [(found.id, found.level) for found in run_checks(tags=["ravi"])] == [(problem, ERROR)]
