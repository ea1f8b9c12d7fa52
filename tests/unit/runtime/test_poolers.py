"""Workers behind a pooler: they work, and the pool's other clients notice nothing."""

import asyncio
from contextlib import contextmanager, nullcontext

import psycopg
import pytest
from django.core import checks
from django.db import OperationalError, connections

from ravi_django import tool
from ravi_django.db import connection, is_shared, transaction
from ravi_django.management.diagnosis import database
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.pgbouncer import pgbouncer
from tests.support.runs import auntil, code, in_background, leased, make_run, on_postgresql, uncommitted
from tests.support.world import Appender, DatabaseThreads, Engine, Entry, Statement

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
OURS = ("9s", "9s", "9s", "read committed", "off")
NO_CURSORS = "connection: web: a pooler in transaction mode loses the cursors of iterator()"
SHOWN = f"""SELECT {", ".join(f"current_setting('{name}')" for name in LIMITS)},
    current_setting('transaction_isolation'), current_setting('transaction_read_only')"""


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
            return engine.appender.connections[0].is_idle
        finally:
            await engine.close(drain_s=1)

    ready = asyncio.run(main())
    for run in runs:
        run.refresh_from_db()
    assert [run.status for run in runs] == [Status.COMPLETED] * len(runs)
    return ready


@contextmanager
def behind_pgbouncer(monkeypatch):
    """Whoever connects from here on; yields the settings of a client that is no part of the site."""
    site = connections.settings["default"]
    with pgbouncer({**site, "NAME": connections["default"].settings_dict["NAME"]}) as port:
        for name, value in (("HOST", "127.0.0.1"), ("PORT", str(port))):
            monkeypatch.setitem(site, name, value)
        yield {"host": "127.0.0.1", "port": port, "user": site["USER"], "dbname": site["NAME"]}


@pytest.fixture
def direct(monkeypatch, settings):
    """The alias of the tests' PostgreSQL itself."""
    monkeypatch.setitem(connections.settings, "direct", {**connections["default"].settings_dict})
    settings.RAVI = {**settings.RAVI, "DATABASE_DIRECT": "direct"}


def on_a_thread(function):
    async def main():
        threads = DatabaseThreads(1)
        try:
            return await threads.call(function)
        finally:
            await asyncio.to_thread(threads.close)

    return asyncio.run(main())


def found():
    return in_background(lambda: [(finding.level, finding.what) for finding in database()][1:]).result(BOUND_S)


def test_behind_pgbouncer(monkeypatch):
    code(story, tools=[step])
    runs = [make_run() for _ in range(6)]

    with behind_pgbouncer(monkeypatch) as client:
        driven(runs)
        clients = [psycopg.connect(**client, autocommit=False) for _ in range(3)]
        for one in clients:  # each has a server process of the pool
            assert [one.execute(f"SHOW {name}").fetchone()[0] for name in LIMITS] == ["0", "0", "0"]
        for one in clients:
            one.close()
        ways = [("ok", f"connection: {kind}: behind a pooler") for kind in ("web", "threads", "heartbeat", "loop")]
        assert found() == [*ways, ("warning", NO_CURSORS)]
        monkeypatch.setitem(connections.settings["default"], "DISABLE_SERVER_SIDE_CURSORS", True)
        assert found() == ways


def test_behind_pgbouncer_a_database_thread_has_its_limits_in_each_transaction(monkeypatch):
    def shown():
        with connection.cursor() as cursor:
            cursor.execute(SHOWN)
            return cursor.fetchone()

    def three_ways():
        with transaction.atomic():
            inside = shown()
        return [inside, shown(), world.postgres_execute(SHOWN, [])[0]]

    with behind_pgbouncer(monkeypatch):
        monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"isolation_level": 4})
        assert on_a_thread(three_ways) == [OURS] * 3


def test_behind_pgbouncer_the_loop_appends_with_limits_in_each_transaction(monkeypatch):
    async def main():
        appender = Appender(DatabaseThreads(1))
        (its,) = appender.connections
        try:
            lease = await appender.database.call(leased)

            async def append(path):
                return (await appender.append(lease, [Entry("log", path)], []))[0]

            await append("opens it")
            await auntil(lambda: its.is_idle)
            with monkeypatch.context() as patch:
                patch.setattr(appender.database, "see_through", None)  # the threads are not needed any more
                refused = Statement("SELECT %s::int", ["no number"], lambda row: 0)
                assert (await its.execute(refused))[0] is None  # and the connection stays
                seqs = [await append(str(number)) for number in range(9)]
                prepared = Statement("SELECT count(*) FROM pg_prepared_statements", [], lambda row: 0)
                assert (await its.execute(prepared))[0] == (0,)  # which the pooler's other clients would meet
            with uncommitted(lambda: Run.objects.select_for_update().get(id=lease.run_id)):
                writing = asyncio.create_task(appender.append(lease, [Entry("log", "cancelled")], []))
                await asyncio.sleep(0.05)
                writing.cancel()
                await asyncio.sleep(0.05)
            seqs.append(await writing)
            return (await its.execute(Statement(SHOWN, [], lambda row: 0)))[0], seqs
        finally:
            appender.close()
            await asyncio.to_thread(appender.database.close)

    with behind_pgbouncer(monkeypatch):
        assert asyncio.run(main()) == (OURS, [*range(2, 11), (11, None, True)])


@pytest.mark.parametrize("pooler", [nullcontext, behind_pgbouncer], ids=["direct", "behind a pooler"])
@pytest.mark.parametrize(("chosen", "committed"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_a_worker_commits_to_disk_where_the_database_does_not_ask_for_it(monkeypatch, pooler, chosen, committed):
    """A crash of the server loses a commit that was not: the journal would lack an effect that has happened."""
    code(story, tools=[step])
    runs = [make_run() for _ in range(3)]
    name = connection.settings_dict["NAME"]
    try:
        execute(f"{NOTING}; ALTER DATABASE {name} SET synchronous_commit = {chosen}")
        with pooler(monkeypatch):
            driven(runs)
        assert world.postgres_execute("SELECT DISTINCT chosen FROM noted", []) == [(committed,)]
    finally:
        execute(f"ALTER DATABASE {name} RESET synchronous_commit; DROP FUNCTION note CASCADE; DROP TABLE noted")


def test_the_doctor_finds_a_standby_and_commits_that_may_be_lost():
    name = connection.settings_dict["NAME"]
    standby = f"""CREATE FUNCTION pg_is_in_recovery() RETURNS boolean RETURN true;
        ALTER DATABASE {name} SET search_path = public, pg_catalog"""
    try:
        for change, level, words in (
            (f"ALTER DATABASE {name} SET synchronous_commit = off", "warning", "a crash of PostgreSQL loses the last"),
            (
                f"ALTER DATABASE {name} SET synchronous_commit = local",
                "warning",
                "synchronous standby may lose the last",
            ),
            (f"{standby}; ALTER DATABASE {name} RESET synchronous_commit", "error", "it is a standby, which refuses"),
        ):
            execute(change)
            first, *others = found()
            assert (first[0], words in first[1], {level for level, _ in others}) == (level, True, {"ok"})
    finally:
        execute(f"ALTER DATABASE {name} RESET ALL; DROP FUNCTION IF EXISTS public.pg_is_in_recovery()")
    assert {level for level, _ in found()} == {"ok"}


NOTING = """CREATE TABLE noted (chosen text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE TRIGGER note BEFORE INSERT ON ravi_journalentry FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note BEFORE UPDATE ON ravi_run FOR EACH ROW EXECUTE FUNCTION note()"""


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_behind_pgbouncer_what_a_statement_is_refused_leaves_its_connection_usable(monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 0.3}
    run = make_run()

    def write():
        with pytest.raises(OperationalError, match="timeout"):
            world.postgres_execute("UPDATE ravi_run SET crashes = 7 WHERE id = %s::uuid RETURNING 1", [str(run.id)])
        return world.postgres_execute("SELECT 1", [])

    with behind_pgbouncer(monkeypatch), uncommitted(lambda: Run.objects.select_for_update().get(id=run.id)):
        assert on_a_thread(write) == [(1,)]


def test_workers_go_past_the_pooler_by_database_direct(monkeypatch, direct):
    code(story, tools=[step])
    runs = [make_run() for _ in range(2)]

    with behind_pgbouncer(monkeypatch):
        assert driven(runs)  # the loop has a connection too
        assert on_a_thread(lambda: world.postgres_execute("SHOW lock_timeout", [])) == [("9s",)]
        kinds = ("threads", "heartbeat", "loop")
        ways = [("ok", f"connection: {kind}: direct, by RAVI['DATABASE_DIRECT']") for kind in kinds]
        assert found() == [("ok", "connection: web: behind a pooler"), *ways, ("warning", NO_CURSORS)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (None, "which is not an alias in DATABASES"),
        ({"ENGINE": "django.db.backends.sqlite3"}, "both have to be PostgreSQL"),
        ({"NAME": "postgres"}, "another database of the same server"),
    ],
)
def test_a_direct_alias_that_cannot_be_right_is_an_error(changes, problem, direct, monkeypatch):
    if changes is None:
        monkeypatch.delitem(connections.settings, "direct")
    else:
        monkeypatch.setitem(connections.settings, "direct", {**connections.settings["direct"], **changes})

    said = in_background(lambda: checks.run_checks(tags=["ravi"])).result(BOUND_S)
    (error,) = [one for one in said if one.id == "ravi.E024"]
    assert problem in error.msg
    if changes == {"NAME": "postgres"}:  # the doctor says so too
        words = "connection: RAVI['DATABASE_DIRECT'] is 'direct', which reaches another database"
        assert found()[-1] == ("error", words)


def test_with_djangos_pool(monkeypatch):
    code(story, tools=[step])
    runs = [make_run() for _ in range(6)]
    site = connections.settings["default"]
    monkeypatch.setitem(site, "OPTIONS", {**site["OPTIONS"], "pool": {"min_size": 1, "max_size": 6}})

    assert driven(runs)  # past the pool, with a connection of the loop

    other = connections["default"].copy()
    pool = other.pool
    pool.open()
    try:
        held = [pool.getconn() for _ in range(pool.max_size)]  # none is lost
        for raw in held:
            assert [raw.execute(f"SHOW {name}").fetchone()[0] for name in LIMITS] == ["0", "0", "0"]
            pool.putconn(raw)
        assert found()[:2] == [("ok", "connection: web: from Django's pool"), ("ok", "connection: threads: direct")]
    finally:
        other.close_pool()


def test_a_backend_that_is_gone_when_a_pooler_is_looked_for_is_an_error_of_django():
    mine = connections[connection.alias].copy()
    mine.connect()
    vars(mine.connection).pop("ravi_shared", None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [mine.connection.info.backend_pid])

    with pytest.raises(OperationalError):
        is_shared(mine)
    mine.close()
