"""The loop's own connection: appends go over it while it is free, and to the threads whenever it is not."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from django.db import DatabaseError, DataError, connection
from psycopg import OperationalError

from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, LeaseLostError
from ravi_django.models import JournalEntry, Run, Turn
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, in_background, leased, on_postgresql, uncommitted
from tests.support.world import OWN_CONNECTIONS_SHAPES, Appender, DatabaseThreads, Entry, NewTurn, Statement

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


class Threads(DatabaseThreads):
    """Counts what the threads have to do."""

    given = 0

    def _give(self, call):
        self.given += 1
        super()._give(call)


class Story:
    def __init__(self):
        self.threads = Threads(4)
        self.appender = Appender(self.threads)
        (self.its,) = self.appender.connections

    async def append(self, lease, *entries, turns=()):
        seq, error, _ = await self.appender.append(lease, list(entries), list(turns))
        if error is not None:
            raise error
        return seq

    async def shown(self, sql):
        ((shown,), _) = await self.its.execute(Statement(sql, [], lambda row: 0))
        return shown


@asynccontextmanager
async def connected():
    story = Story()
    try:
        lease = await story.threads.call(leased)
        await opened(story, lease)
        yield story, lease
    finally:
        story.appender.close()
        await asyncio.to_thread(story.threads.close)


def effect(path, **fields):
    return Entry("tool.call", path, "t", **{"result": {"n": 1}, **fields})


def rows():
    return list(JournalEntry.objects.order_by("seq").values_list("seq", "path"))


def run_story(story):
    async def main():
        async with connected() as (my, lease):
            await story(my, lease)

    asyncio.run(main())


async def opened(story, lease, path="opens it"):
    """The connection is there, and the threads have nothing to do yet."""
    await story.append(lease, effect(path))
    await auntil(lambda: story.its.is_idle)
    story.threads.given = 0


def test_an_append_goes_over_it_and_writes_what_the_threads_would():
    async def story(my, lease):
        turn = NewTurn(lease.run.session_id, "test/code", ChatMessage.of("user", "hallo wörld"))
        assert await my.append(lease, effect("a"), effect("b", result={"text": "é" * 10_000}), turns=[turn]) == 2
        assert await my.append(lease, effect("c")) == 4
        assert my.threads.given == 0
        assert await my.shown("SHOW lock_timeout") == f"{int(conf.HEARTBEAT_S * 900) // 1000}s"

    run_story(story)
    assert rows() == [(1, "opens it"), (2, "a"), (3, "b"), (4, "c")]
    assert JournalEntry.objects.get(path="b").result == {"text": "é" * 10_000}
    assert Turn.objects.get().content[0]["text"] == "hallo wörld"


def test_appends_at_once_share_it_with_the_threads():
    async def story(my, lease):
        others = [await my.threads.call(leased) for _ in range(5)]
        my.threads.given = 0
        firsts = await asyncio.gather(*(my.append(one, effect("a")) for one in others))
        assert firsts == [1] * 5
        assert my.threads.given == 4

    run_story(story)


def test_one_that_waits_for_a_lock_holds_up_nobody_and_not_the_loop():
    async def story(my, lease):
        other = await my.threads.call(leased)
        with uncommitted(lambda: Run.objects.select_for_update().get(id=lease.run_id)):
            waiting = asyncio.create_task(my.append(lease, effect("late")))
            await asyncio.sleep(0)
            assert not my.its.is_idle
            assert await my.append(other, effect("a")) == 1
            assert not waiting.done()
        assert await waiting == 2

    run_story(story)


def test_a_cancelled_caller_waits_for_the_end():
    async def story(my, lease):
        with uncommitted(lambda: Run.objects.select_for_update().get(id=lease.run_id)):
            writing = asyncio.create_task(my.appender.append(lease, [effect("a")], []))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.sleep(0)
            assert not writing.done()
        assert await writing == (2, None, True)
        assert my.its.is_idle and not my.threads.given

    run_story(story)
    assert rows() == [(1, "opens it"), (2, "a")]


def test_appends_of_any_shape_leave_few_prepared_statements():
    async def story(my, lease):
        for count in range(1, OWN_CONNECTIONS_SHAPES + 10):
            await my.append(lease, *(effect(f"{count}.{n}") for n in range(count)))
        assert my.threads.given == 0
        kept = await my.shown("SELECT count(*) FROM pg_prepared_statements")
        assert kept == OWN_CONNECTIONS_SHAPES + 1  # the question is one of them, and the oldest goes next

    run_story(story)
    assert [seq for seq, _ in rows()] == list(range(1, 2 + sum(range(OWN_CONNECTIONS_SHAPES + 10))))


def test_a_value_too_big_for_a_row_is_left_to_the_threads(monkeypatch):
    encoding, encode = set(), world.entries_encode

    def noted(value):
        encoding.add(threading.current_thread())
        return encode(value)

    world.patch(monkeypatch, "entries_encode", noted)

    async def story(my, lease):
        encoding.clear()
        await my.append(lease, effect("big", result={"text": "x" * (world.INLINE_BYTES + 1)}))
        assert my.threads.given == 1
        assert threading.current_thread() not in encoding  # a megabyte would keep the loop for 12 ms

    run_story(story)
    assert set(JournalEntry.objects.get(path="big").result) == {"$blob", "size"}


def test_a_plan_that_the_server_has_no_more_costs_the_connection(monkeypatch):
    """Prepared again under its name it could be one that is only out of date: every append would fail once more."""
    world.patch(monkeypatch, "APPENDING_REST_S", 0.0)
    execute(FORGETTING)

    async def story(my, lease):
        await my.append(lease, effect("prepares"))
        await my.shown("SELECT forget()::text")
        await my.append(lease, effect("by a thread"))
        await opened(my, lease, "opens it again")
        await my.append(lease, effect("b"))
        assert my.threads.given == 0

    try:
        run_story(story)
    finally:
        execute("DROP FUNCTION forget")


FORGETTING = """CREATE FUNCTION forget() RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN true; END $$"""


@pytest.mark.parametrize("written", [False, True], ids=["before it was written", "after it was written"])
def test_an_append_is_written_once_when_the_connection_breaks_under_it(written):
    async def story(my, lease):
        its, perform = my.its, my.its._perform
        pid = its._raw.pgconn.backend_pid

        async def lost(statement):
            await perform(statement)
            raise OperationalError("the answer is lost on the way")

        if written:
            its._perform = lost
        else:
            await my.threads.call(execute, "SELECT pg_terminate_backend(%s)", pid)
            my.threads.given = 0
        assert await my.append(lease, effect("a")) == 2
        assert my.threads.given >= 1
        assert not its.is_idle

    run_story(story)
    assert rows() == [(1, "opens it"), (2, "a")]


def test_a_commit_that_fails_behind_its_statement_is_no_success():
    async def story(my, lease):
        await my.threads.call(execute, REFUSING)
        with pytest.raises(DatabaseError, match="refused at the commit"):
            await my.append(lease, effect("refused"))
        my.threads.given = 0
        assert await my.append(lease, effect("a")) == 2
        assert my.threads.given == 0

    try:
        run_story(story)
    finally:
        execute("DROP FUNCTION refuse CASCADE")

    assert rows() == [(1, "opens it"), (2, "a")]


REFUSING = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE data_exception USING MESSAGE = 'refused at the commit'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON ravi_journalentry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.path = 'refused') EXECUTE FUNCTION refuse()"""


def execute(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)


def test_closing_leaves_no_connection_and_finishes_what_is_under_way():
    async def story(my, lease):
        pg = my.its._raw.pgconn
        under_way = asyncio.create_task(my.append(lease, effect("a")))
        await asyncio.sleep(0)
        my.appender.close()
        assert await under_way == 2
        assert pg.status == 1  # CONNECTION_BAD
        assert await my.append(lease, effect("b")) == 3

    run_story(story)
    assert rows() == [(1, "opens it"), (2, "a"), (3, "b")]


@pytest.mark.parametrize("closed", [False, True], ids=["no room at the server", "closed while it is opened"])
def test_a_connection_that_does_not_come_about_is_none(closed):
    async def main():
        my = Story()
        connect = my.its._connect

        def connecting():
            if not closed:
                raise OperationalError("too many clients already")
            my.appender.close()
            connect()

        my.its._connect = connecting
        try:
            lease = await my.threads.call(leased)
            assert await my.append(lease, effect("by a thread")) == 1
            await asyncio.wait_for(my.its._opening, BOUND_S)
            assert not (my.its.is_idle or my.its.is_wanted)  # it rests
            assert await my.append(lease, effect("by a thread too")) == 2
        finally:
            my.appender.close()
            await asyncio.to_thread(my.threads.close)

    asyncio.run(main())
    assert [path for _, path in rows()] == ["by a thread", "by a thread too"]


# ------------------------------------------------------------------------------------------- appends that come together


def test_appends_of_a_lease_that_come_during_a_commit_share_the_next_one(monkeypatch):
    async def story(my, lease):
        statements = counted(monkeypatch, my)
        seqs = await asyncio.gather(*(my.append(lease, effect(name + "1"), effect(name + "2")) for name in "abcde"))
        assert seqs == [2, 4, 6, 8, 10]
        assert statements == [2, 8]

    run_story(story)
    assert [path for _, path in rows()][1:] == [name + number for name in "abcde" for number in "12"]


def test_a_row_that_no_database_can_hold_is_refused_alone(monkeypatch):
    async def story(my, lease):
        appends = (my.append(lease, effect(name)) for name in ("a", "b", "\0", "c"))
        found = await asyncio.gather(*appends, return_exceptions=True)
        assert [type(one) for one in found] == [int, int, DataError, int]

    run_story(story)
    assert sorted(path for _, path in rows()[1:]) == ["a", "b", "c"]


def test_a_repeated_append_hides_no_new_one_that_comes_with_it():
    """The first try was committed, and its answer was lost."""

    async def story(my, lease):
        again = effect("again")
        first = await my.append(lease, again)
        found = await asyncio.gather(*(my.append(lease, one) for one in (effect("x"), again, effect("new"))))
        assert found == [first + 1, first, first + 2]

    run_story(story)
    assert [path for _, path in rows()][1:] == ["again", "x", "new"]


def test_a_lost_lease_refuses_all_that_come_together():
    async def story(my, lease):
        await my.threads.call(Run.objects.filter(id=lease.run_id).update, lease_owner="another")
        found = await asyncio.gather(*(my.append(lease, effect(name)) for name in "abc"), return_exceptions=True)
        assert {type(one) for one in found} == {LeaseLostError}

    run_story(story)
    assert len(rows()) == 1


def test_a_cancelled_caller_waits_for_the_commit_that_it_shares():
    async def story(my, lease):
        first, second = (asyncio.ensure_future(my.appender.append(lease, [effect(name)], [])) for name in "ab")
        await asyncio.sleep(0)
        second.cancel()
        assert [await first, await second] == [(2, None, False), (3, None, True)]

    run_story(story)
    assert [path for _, path in rows()][1:] == ["a", "b"]


def test_appends_that_wait_for_a_commit_end_when_the_threads_are_closed_meanwhile():
    async def story(my, lease):
        with uncommitted(lambda: Run.objects.select_for_update().get(id=lease.run_id)):
            waiting = [asyncio.create_task(my.append(lease, effect(name))) for name in "abcdef"]
            await asyncio.sleep(0)
            await asyncio.to_thread(my.threads.close)
            my.appender.close()  # breaks the commit off, and no thread can repeat it
            for task in waiting:
                task.cancel()  # as the end of the loop does
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(error) for error in found} == {"the threads ravi-db are closed"}

    in_background(run_story, story).result(BOUND_S)


def counted(monkeypatch, my):
    """The number of rows of each append that reaches the database."""
    counts, append = [], my.appender._append

    async def counting(lease, entries, *how):
        counts.append(len(entries))
        return await append(lease, entries, *how)

    monkeypatch.setattr(my.appender, "_append", counting)
    return counts
