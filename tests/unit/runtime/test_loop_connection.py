"""The loop's own connection: appends go over it while it is free, and to the threads whenever it is not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from django.db import DatabaseError, DataError, connection, transaction

from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, LeaseLostError
from ravi_django.models import JournalEntry, Run, Turn
from ravi_django.runtime import wire
from ravi_django.runtime.database import DatabaseThreads
from ravi_django.runtime.effects import append_repeatable
from ravi_django.runtime.entries import Entry, NewTurn
from tests.support.runs import auntil, in_background, leased, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


class Threads(DatabaseThreads):
    """Counts what the threads have to do."""

    given = 0

    def _give(self, call):
        self.given += 1
        super()._give(call)

    async def append(self, lease, *entries, turns=()):
        first, error, _ = await self.see_through(append_repeatable, lease, list(entries), list(turns))
        if error is not None:
            raise error
        return first


@asynccontextmanager
async def connected():
    threads = Threads(4)
    try:
        lease = await threads.call(leased)
        await threads.append(lease, effect("first"))  # opens it
        await auntil(lambda: threads._wire.ready)
        threads.given = 0
        yield threads, lease
    finally:
        threads.leave_loop()
        await asyncio.to_thread(threads.close)


def effect(path, **fields):
    return Entry("tool.call", path, "t", **{"result": {"n": 1}, **fields})


def rows():
    return list(JournalEntry.objects.order_by("seq").values_list("seq", "path"))


def run_story(story):
    async def main():
        async with connected() as (threads, lease):
            await story(threads, lease)

    asyncio.run(main())


def test_an_append_goes_over_it_and_writes_what_the_threads_would():
    async def story(threads, lease):
        turn = NewTurn(lease.run.session_id, "test/code", ChatMessage.of("user", "hallo wörld"))
        assert await threads.append(lease, effect("a"), effect("b", result={"text": "é" * 10_000}), turns=[turn]) == 2
        assert await threads.append(lease, effect("c")) == 4
        assert threads.given == 0

    run_story(story)

    assert rows() == [(1, "first"), (2, "a"), (3, "b"), (4, "c")]
    assert JournalEntry.objects.get(path="b").result == {"text": "é" * 10_000}
    assert Turn.objects.get().content[0]["text"] == "hallo wörld"


def test_a_lost_lease_is_lost_here_too():
    async def story(threads, lease):
        await threads.call(Run.objects.filter(id=lease.run_id).update, lease_epoch=9)
        with pytest.raises(LeaseLostError):
            await threads.append(lease, effect("a"))
        assert threads.given == 1  # the update

    run_story(story)

    assert rows() == [(1, "first")]


def test_appends_at_once_share_it_with_the_threads():
    async def story(threads, lease):
        others = [await threads.call(leased) for _ in range(5)]
        threads.given = 0
        firsts = await asyncio.gather(*(threads.append(one, effect("a")) for one in others))
        assert firsts == [1] * 5
        assert threads.given == 4

    run_story(story)


def test_one_that_waits_for_a_lock_holds_up_nobody_and_not_the_loop():
    async def story(threads, lease):
        other = await threads.call(leased)
        held = asyncio.Event()
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def hold():
            with transaction.atomic():
                Run.objects.select_for_update().get(id=lease.run_id)
                loop.call_soon_threadsafe(held.set)
                asyncio.run_coroutine_threadsafe(done.wait(), loop).result(60)

        holding = in_background(hold)
        await held.wait()
        waiting = asyncio.create_task(threads.append(lease, effect("late")))
        await asyncio.sleep(0)
        assert not threads._wire.ready

        assert await threads.append(other, effect("a")) == 1
        assert not waiting.done()
        done.set()
        assert await waiting == 2
        await asyncio.to_thread(holding.result, 10)

    run_story(story)


def test_its_connection_waits_for_locks_less_long_than_a_lease_lives():
    async def story(threads, lease):
        shown = threads._wire._wrapper.connection.execute("SHOW lock_timeout").fetchone()[0]
        assert shown == f"{int(conf.HEARTBEAT_S * 900) // 1000}s"

    run_story(story)


def test_appends_of_any_shape_leave_few_prepared_statements():
    async def story(threads, lease):
        for count in range(1, wire.SHAPES + 10):
            await threads.append(lease, *(effect(f"{count}.{n}") for n in range(count)))
        assert threads.given == 0
        found = threads._wire._wrapper.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert found == (wire.SHAPES,)

    run_story(story)

    assert [seq for seq, _ in rows()] == list(range(1, 2 + sum(range(wire.SHAPES + 10))))


def test_a_value_too_big_for_a_row_is_left_to_the_threads():
    async def story(threads, lease):
        await threads.append(lease, effect("big", result={"text": "x" * (conf.INLINE_BYTES + 1)}))
        assert threads.given == 1

    run_story(story)

    assert set(JournalEntry.objects.get(path="big").result) == {"$blob", "size"}


def test_what_the_server_refuses_is_raised_as_by_the_threads():
    async def story(threads, lease):
        with pytest.raises(DataError):
            await threads.append(lease, effect("a", attempt=2**40))
        assert threads.given == 1
        assert await threads.append(lease, effect("b")) == 2

    run_story(story)


@pytest.mark.parametrize("written", [False, True], ids=["before it was written", "after it was written"])
def test_an_append_is_written_once_when_the_connection_breaks_under_it(written):
    async def story(threads, lease):
        its = threads._wire
        pid = its._wrapper.connection.info.backend_pid
        if written:  # the answer is lost on the way
            its._answered = lambda result: its._break(ConnectionError("lost"))
        else:
            await threads.call(terminate, pid)
            threads.given = 0
        assert await threads.append(lease, effect("a")) == 2
        assert threads.given >= 1
        assert not its.ready

    run_story(story)

    assert rows() == [(1, "first"), (2, "a")]


def test_a_commit_that_fails_behind_its_statement_is_no_success():
    async def story(threads, lease):
        await threads.call(execute, REFUSING)
        with pytest.raises(DatabaseError, match="refused at the commit"):
            await threads.append(lease, effect("refused"))
        assert await threads.append(lease, effect("a")) == 2

    try:
        run_story(story)
    finally:
        execute("DROP FUNCTION refuse CASCADE")

    assert rows() == [(1, "first"), (2, "a")]


REFUSING = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE data_exception USING MESSAGE = 'refused at the commit'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON ravi_journalentry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.path = 'refused') EXECUTE FUNCTION refuse()"""


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def terminate(pid):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_after_a_rest_it_is_there_again(monkeypatch):
    monkeypatch.setattr(wire, "REST_S", 0.0)

    async def story(threads, lease):
        await threads.call(terminate, threads._wire._wrapper.connection.info.backend_pid)
        await auntil(lambda: not threads._wire.ready)
        await threads.append(lease, effect("a"))
        await auntil(lambda: threads._wire.ready)
        threads.given = 0
        await threads.append(lease, effect("b"))
        assert threads.given == 0

    run_story(story)

    assert rows() == [(1, "first"), (2, "a"), (3, "b")]


def test_closing_leaves_no_connection_and_finishes_what_is_under_way():
    async def story(threads, lease):
        wrapper = threads._wire._wrapper
        under_way = asyncio.create_task(threads.append(lease, effect("a")))
        await asyncio.sleep(0)
        threads.leave_loop()
        assert wrapper.connection is None
        assert await under_way == 2
        assert await threads.append(lease, effect("b")) == 3

    run_story(story)

    assert rows() == [(1, "first"), (2, "a"), (3, "b")]
