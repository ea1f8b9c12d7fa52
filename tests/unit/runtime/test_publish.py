"""The publisher takes frames from the agents to the buffer: in order, none twice, none lost without saying so."""

import asyncio
import math
import threading
from pathlib import Path

import pytest
import redis

from project.services import Valkey
from ravi_django.kernel import ChatMessage
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, leased, make_run, on_postgresql, uncommitted, until
from tests.support.world import DatabaseBuffer, Entry, Frame, Publisher, Source, ValkeyBuffer, frames_delta

pytestmark = pytest.mark.django_db(transaction=True)


def types_of(run, after=0):
    return [frame["type"] for frame in world.events_page(run.tree_id, after)[0]]


def numbers_of(run, after=0):
    return [frame["seq"] for frame in world.events_page(run.tree_id, after)[0]]


class HeldBuffer:
    """A buffer that can be away."""

    def __init__(self):
        self.there = threading.Event()
        self.tries = 0
        self.found = []

    def append(self, batches):
        self.tries += 1
        if not self.there.is_set():
            raise ConnectionError("the buffer is away")
        for one in batches:
            self.found += one.frames
        return [list(range(len(one.frames))) for one in batches]


@pytest.fixture
def held(settings):
    buffer = HeldBuffer()
    publisher = Publisher(buffer)
    yield buffer, publisher
    buffer.there.set()
    publisher.close()


def test_neighbouring_deltas_of_one_call_become_one_frame(held):
    buffer, publisher = held
    run = leased().run
    publisher.open(run)
    source = Source.of(run)

    for call, text in [("1", "a"), ("1", "b"), ("1", "c"), ("2", "d"), ("1", "e"), ("1", "f")]:
        publisher.emit(frames_delta(source, "text.delta", text, call=call, attempt="1"))
    publisher.emit(frames_delta(source, "reasoning.delta", "g", call="1", attempt="1"))
    publisher.emit(frames_delta(source, "reasoning.delta", "h", call="1", attempt="2"))
    until(lambda: buffer.tries)
    buffer.there.set()
    publisher.close()

    assert "".join(frame.data["text"] for frame in buffer.found) == "abcdefgh"
    assert len(buffer.found) <= 6  # one more than the runs of the same call, when a flush came in between


def test_of_too_many_frames_the_durable_ones_are_made_again_from_the_journal(held, monkeypatch):
    world.patch(monkeypatch, "MAX_WAITING", 3)
    world.patch(monkeypatch, "MAX_PAUSE_S", 0.01)
    buffer, publisher = held
    lease = leased()
    publisher.open(lease.run)
    rows = [Entry("tool.call", str(number), "t", result={"content": []}) for number in range(9)]
    first = world.append(lease, rows)

    frames = [
        frame for seq, row in enumerate(rows, first) for frame in world.frames_durable(Source.of(lease.run), row, seq)
    ]
    publisher.emit(*frames)
    until(lambda: buffer.tries)
    buffer.there.set()

    until(lambda: len(buffer.found) >= 12)
    assert [frame.key for frame in buffer.found] == [frame.key for frame in [*frames[:3], *frames]]


def test_a_valkey_that_comes_back_gets_everything_in_order(tmp_path: Path):
    with Valkey(tmp_path / "valkey", fast=True) as valkey:
        buffer = ValkeyBuffer(valkey.url)
        run = leased().run
        valkey.kill()
        publisher = Publisher(buffer)
        publisher.open(run)
        publisher.emit(*(Frame(Source.of(run), "progress", {"number": number}) for number in range(5)))
        valkey.start()
        publisher.emit(*(Frame(Source.of(run), "progress", {"number": number}) for number in range(5, 10)))

        until(lambda: len(buffer.read(str(run.id), 0, 100) or []) == 10)
        publisher.close()

        found = buffer.read(str(run.id), 0, 100)
        assert [(frame["seq"], frame["number"]) for frame in found] == [(number + 1, number) for number in range(10)]


@pytest.fixture
def publisher(valkey_url):
    publisher = Publisher(ValkeyBuffer(valkey_url))
    yield publisher
    publisher.close()


def empty(url):
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def test_a_lost_buffer_is_announced_by_one_gap_and_numbered_on_above_the_mark(publisher, valkey_url):
    lease = leased()
    run = lease.run
    publisher.open(run)
    world.append(lease, [Entry("run.started", "@started"), Entry("tool.call", "1", "t", result={"content": []})])
    source = Source.of(run)
    publisher.emit(Frame(source, "progress", {"number": 0}))
    until(lambda: numbers_of(run) == [1])
    empty(valkey_url)

    for number in (1, 2):
        publisher.emit(Frame(source, "progress", {"number": number}))
        until(lambda number=number: numbers_of(run)[-1:] == [1001 + number])

    gap, *others = world.events_page(run.id)[0]
    assert (gap["seq"], gap["type"], gap["from"], gap["to"]) == (1001, "stream.gap", 1, 1000)
    assert [(frame["seq"], frame["number"]) for frame in others] == [(1002, 1), (1003, 2)]
    assert gap["snapshot"]["status"] == Status.RUNNING
    assert [frame["step"] for frame in gap["snapshot"]["frames"]] == ["started", "tool_result"]
    assert Run.objects.get(id=run.id).event_mark > 1003


def test_a_lease_that_ends_before_the_first_flush_leaves_no_gap(publisher, monkeypatch):
    monkeypatch.setattr(publisher, "flush", lambda: None)  # not yet
    lease = leased()
    publisher.open(lease.run)
    publisher.emit(frames_delta(Source.of(lease.run), "text.delta", "a", call="1", attempt="1"))
    world.requeue(lease)
    again = leased(lease.run)
    publisher.open(again.run)
    publisher.emit(frames_delta(Source.of(again.run), "text.delta", "b", call="2", attempt="2"))
    monkeypatch.undo()

    publisher.flush()

    assert types_of(lease.run) == ["text.delta", "text.delta"]
    assert numbers_of(lease.run) == [1, 2]


def test_a_lease_that_goes_to_another_process_has_sent_its_frames(monkeypatch):
    """The next lease's frames come behind them, and nobody takes its first ones for lost."""
    world.patch(monkeypatch, "FLUSH_S", 60.0)
    out = []
    suspend = world.suspend

    def suspending(lease, *args, **kwargs):
        out.append(types_of(lease.run)[-1:])
        return suspend(lease, *args, **kwargs)

    async def story(ctx, inbox):
        await ctx.sleep_until_signal("go")
        await ctx.llm([ChatMessage.of("user", "hi")])
        await ctx.sleep_until_signal("on")

    other = leased().run

    def flushed_just_now(engine):
        engine.publisher.open(other)
        engine.publisher.emit(Frame(Source.of(other), "progress", {"number": 0}))
        until(lambda: world.get_buffer().read(str(other.id), 0, 1))

    world.patch(monkeypatch, "suspend", suspending)
    code(story, model=ScriptedModel(["hello"]))
    run = drive(make_run(), setup=flushed_just_now)
    world.send_signal(run.id, "go", 1)
    drive(run, setup=flushed_just_now)

    assert out == [["progress"], ["completion"]]


def test_nobody_waits_long_for_a_buffer_that_is_away_nor_for_frames_of_no_tree(held):
    def sent(run, timeout):
        asyncio.run(asyncio.wait_for(publisher.sent(str(run.id), timeout=timeout), BOUND_S))

    buffer, publisher = held
    run, unopened = leased().run, leased().run
    publisher.open(run)
    sent(run, math.inf)  # it has nothing to send
    publisher.emit(Frame(Source.of(run), "progress", {"number": 0}))
    publisher.emit(Frame(Source.of(unopened), "progress", {}))

    sent(run, 0.05)

    assert not buffer.found
    buffer.there.set()
    sent(run, math.inf)
    assert [frame.data for frame in buffer.found] == [{"number": 0}]


def test_a_reached_mark_is_raised_on_the_row_and_leaves_no_gap(publisher, monkeypatch):
    world.patch(monkeypatch, "PUBLISH_RESERVE", 5)
    run = make_run()
    Run.objects.filter(id=run.id).update(event_mark=3)
    run = leased(run).run
    publisher.open(run)

    publisher.emit(*(Frame(Source.of(run), "progress", {"number": number}) for number in range(3)))
    until(lambda: len(numbers_of(run)) == 3)
    publisher.emit(*(Frame(Source.of(run), "progress", {"number": number}) for number in range(3, 20)))

    until(lambda: len(numbers_of(run)) == 20)
    assert numbers_of(run) == list(range(1, 21))
    assert Run.objects.get(id=run.id).event_mark >= 20


def test_frames_of_a_deleted_tree_are_not_kept(publisher):
    run = leased(make_run(event_mark=0)).run
    publisher.open(run)
    Run.objects.filter(id=run.id).delete()

    publisher.emit(Frame(Source.of(run), "progress", {}))

    asyncio.run(asyncio.wait_for(publisher.sent(str(run.id), timeout=math.inf), BOUND_S))


@on_postgresql
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("kind", [ValkeyBuffer, DatabaseBuffer])
def test_a_tree_whose_row_is_locked_holds_up_no_other(kind, ended, valkey_url, monkeypatch):
    world.patch(monkeypatch, "PUBLISH_RESERVE", 5)
    world.patch(monkeypatch, "ARCHIVE_S", 0.0)
    buffer = kind(valkey_url) if kind is ValkeyBuffer else kind()
    locked, other = leased(make_run(event_mark=3)), leased().run
    source = Source.of(locked.run)
    if ended:
        world.finish(locked, Status.COMPLETED, [])
    publisher = Publisher(buffer)

    with uncommitted(lambda: Run.objects.filter(id=locked.run_id).update(hints=1)):
        for run in (locked.run, other):
            publisher.open(run)
        first = [world.stream_done(source, "completed")] if ended else []
        publisher.emit(*first, *(Frame(source, "progress", {}) for _ in range(10)))
        for number in range(1, 5):
            publisher.emit(Frame(Source.of(other), "progress", {}))
            until(lambda number=number: len(buffer.read(str(other.id), 0, 100) or []) == number)
    until(lambda: ended or len(buffer.read(str(locked.run_id), 0, 100) or []) == 10)
    publisher.close()


@pytest.mark.parametrize("kind", [ValkeyBuffer, DatabaseBuffer])
def test_a_flush_whose_answer_is_lost_doubles_no_tokens(kind, valkey_url, monkeypatch):
    world.patch(monkeypatch, "MAX_PAUSE_S", 0.01)
    buffer = kind(valkey_url) if kind is ValkeyBuffer else kind()
    append, lost = buffer.append, []

    def losing(batches):
        found = append(batches)
        if not lost:
            lost.append(found)
            raise ConnectionError("the answer is lost")
        return found

    monkeypatch.setattr(buffer, "append", losing)
    run = leased().run
    publisher = Publisher(buffer)
    publisher.open(run)
    for number, text in enumerate(["Hello", " world", "!"]):
        publisher.emit(frames_delta(Source.of(run), "text.delta", text, call="1", attempt="1"))
        until(lambda number=number: lost and (number == 0 or len(buffer.read(str(run.id), 0, 9)) == number + 1))
    publisher.close()

    assert [frame["text"] for frame in buffer.read(str(run.id), 0, 9)] == ["Hello", " world", "!"]
