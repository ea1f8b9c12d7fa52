"""The publisher takes frames from the agents to the buffer: in order, none twice, none lost without saying so."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis

from project.services import Valkey
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, TextDelta, TransientError
from ravi_django.models import Blob, Run, Status
from ravi_django.runtime import events, publish, store, sweeper
from ravi_django.runtime.buffer_valkey import ValkeyBuffer
from ravi_django.runtime.entries import Entry, blob_value
from ravi_django.runtime.frames import Frame, Source, delta, durable, stream_done
from ravi_django.runtime.publish import Publisher
from ravi_django.testing import ScriptedModel
from tests.support.runs import code, drive, leased, make_run, until

pytestmark = pytest.mark.django_db(transaction=True)


async def ask(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def types_of(run, after=0):
    return [frame["type"] for frame in events.page(run.tree_id, after)[0]]


def numbers_of(run, after=0):
    return [frame["seq"] for frame in events.page(run.tree_id, after)[0]]


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
        publisher.emit(delta(source, "text.delta", text, call=call, attempt="1"))
    publisher.emit(delta(source, "reasoning.delta", "g", call="1", attempt="1"))
    publisher.emit(delta(source, "reasoning.delta", "h", call="1", attempt="2"))
    until(lambda: buffer.tries)
    buffer.there.set()
    publisher.close()

    assert "".join(frame.data["text"] for frame in buffer.found) == "abcdefgh"
    assert len(buffer.found) <= 6  # one more than the runs of the same call, when a flush came in between


def test_frames_wait_in_order_while_the_buffer_is_away(held):
    buffer, publisher = held
    run = leased().run
    publisher.open(run)
    source = Source.of(run)

    for number in range(50):
        publisher.emit(Frame(source, "progress", {"number": number}))
        if number == 25:
            until(lambda: buffer.tries)
    buffer.there.set()
    publisher.close()

    assert [frame.data["number"] for frame in buffer.found] == list(range(50))


def test_of_too_many_frames_the_durable_ones_are_kept(held, monkeypatch):
    monkeypatch.setattr(publish, "MAX_WAITING", 3)
    buffer, publisher = held
    run = leased().run
    publisher.open(run)
    source = Source.of(run)

    for number in range(10):
        publisher.emit(Frame(source, "progress", {"number": number}))
    publisher.emit(Frame(source, "completion", {"number": "kept"}, key="k"))
    buffer.there.set()
    publisher.close()

    assert [frame.data["number"] for frame in buffer.found] == [0, 1, 2, "kept"]


def test_frames_of_a_tree_that_was_not_opened_are_dropped(held):
    buffer, publisher = held
    buffer.there.set()

    publisher.emit(Frame(Source.of(leased().run), "progress", {}))
    publisher.close()

    assert buffer.found == []


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
    run = leased().run
    publisher.open(run)
    source = Source.of(run)
    publisher.emit(Frame(source, "progress", {"number": 0}))
    until(lambda: numbers_of(run) == [1])
    empty(valkey_url)

    for number in (1, 2):
        publisher.emit(Frame(source, "progress", {"number": number}))
        until(lambda number=number: numbers_of(run)[-1:] == [1001 + number])

    gap, *others = events.page(run.id)[0]
    assert (gap["seq"], gap["type"], gap["from"], gap["to"]) == (1001, "stream.gap", 1, 1000)
    assert [(frame["seq"], frame["number"]) for frame in others] == [(1002, 1), (1003, 2)]
    assert gap["snapshot"]["status"] == Status.RUNNING
    assert Run.objects.get(id=run.id).event_mark > 1003


def test_the_gaps_snapshot_has_the_durable_frames_so_far(publisher, valkey_url):
    lease = leased()
    run = lease.run
    publisher.open(run)
    store.append(lease, [Entry("run.started", "@started"), Entry("tool.call", "1", "t", result={"content": []})])
    publisher.emit(Frame(Source.of(run), "progress", {"number": 0}))
    until(lambda: numbers_of(run) == [1])
    empty(valkey_url)

    publisher.emit(Frame(Source.of(run), "progress", {"number": 1}))
    until(lambda: len(numbers_of(run)) == 2)

    gap = events.page(run.id)[0][0]
    assert [frame["step"] for frame in gap["snapshot"]["frames"]] == ["started", "tool_result"]


def test_a_reached_mark_is_raised_on_the_row_and_leaves_no_gap(publisher, monkeypatch):
    monkeypatch.setattr(publish, "RESERVE", 5)
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


def test_a_zombies_frames_are_refused(publisher, clock):
    run = make_run()
    old = leased(run, "w1").run
    publisher.open(old)
    clock.advance(conf.LEASE_S + 1)
    new = leased(run, "w2").run
    publisher.emit(Frame(Source.of(old), "progress", {"from": "old"}))
    publisher.emit(Frame(Source.of(new), "progress", {"from": "new"}))
    until(lambda: len(numbers_of(run)) == 2)

    publisher.emit(Frame(Source.of(old), "progress", {"from": "zombie"}))
    publisher.emit(Frame(Source.of(new), "progress", {"from": "new again"}))

    until(lambda: len(numbers_of(run)) == 3)
    assert [frame["from"] for frame in events.page(run.id)[0]] == ["old", "new", "new again"]


# ----------------------------------------------------------------------------------------- the end of a stream


def test_a_run_streams_its_steps_and_ends_with_done():
    code(ask, model=ScriptedModel(["hello there"], chunk="words"))

    run = drive(make_run())

    found, done = events.page(run.id)
    assert done
    assert [frame["seq"] for frame in found] == list(range(1, len(found) + 1))
    steps = [frame["step"] for frame in found if frame["type"] == "progress"]
    assert steps == ["started", "thinking", "done"]
    assert "".join(frame["text"] for frame in found if frame["type"] == "text.delta") == "hello there"
    assert found[-1] == {**found[-1], "type": "stream.done", "reason": "completed", "run": str(run.id), "parent": None}
    assert types_of(run).count("stream.done") == 1


def test_the_ended_stream_is_kept_without_its_single_tokens(valkey_url, settings):
    settings.RAVI = {**settings.RAVI, "STREAM_FLUSH_S": 0.001}
    model = ScriptedModel(["one two three four"], chunk="words")
    code(ask, model=model)
    run = drive(make_run())
    live = events.page(run.id)[0]

    empty(valkey_url)
    kept, done = events.page(run.id)

    assert done
    assert run.published_at is not None
    text = next(frame for frame in kept if frame["type"] == "text.delta")
    singles = [frame for frame in live if frame["type"] == "text.delta"]
    assert text["text"] == "one two three four"
    assert (text.get("from_seq", text["seq"]), text["seq"]) == (singles[0]["seq"], singles[-1]["seq"])
    assert [frame for frame in kept if frame is not text] == [frame for frame in live if frame not in singles]
    assert events.page(run.id, after=kept[-2]["seq"]) == ([kept[-1]], True)
    assert events.page(run.id, after=kept[-1]["seq"]) == ([], True)
    assert events.page(run.id, limit=2)[0] == kept[:2]


def test_the_archive_is_one_compressed_blob():
    code(ask, model=ScriptedModel(["hello"]))

    run = drive(make_run())

    blob = Blob.objects.get(id=run.archive_id)
    assert blob.encoding == "json+zlib"
    assert blob_value(blob)[-1]["type"] == "stream.done"


def unpublished(run):
    """As after a worker that died between its last commit and its last frame."""
    Run.objects.filter(id=run.id).update(published_at=None, archive=None)
    run.refresh_from_db()


def test_the_sweep_gives_an_ended_stream_its_done_exactly_once(clock, valkey_url):
    lease = leased()
    run = lease.run
    publisher = Publisher(ValkeyBuffer(valkey_url))
    publisher.open(run)
    entries = [Entry("run.started", "@started"), Entry("run.completed", "@completed.1")]
    store.finish(lease, Status.COMPLETED, entries, output="x")
    publisher.emit(*durable(Source.of(run, 1), entries[0], 1))  # the last of what it sent
    publisher.close()
    assert types_of(run) == ["progress"]
    clock.advance(60)

    for _ in range(2):
        sweeper.sweep(lambda run_ids: None)
        unpublished(run)
    sweeper.sweep(lambda run_ids: None)

    found, done = events.page(run.id)
    assert [(frame["seq"], frame["type"], frame.get("step")) for frame in found] == [
        (1, "progress", "started"),
        (2, "progress", "done"),
        (3, "stream.done", None),
    ]
    assert done


def test_a_worker_and_the_sweep_that_both_publish_the_end_give_it_once(clock):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    before = events.page(run.id)[0]
    unpublished(run)
    clock.advance(60)

    swept = sweeper.sweep(lambda run_ids: None)

    assert swept.published == 1
    assert [(frame["seq"], frame["type"]) for frame in events.page(run.id)[0]] == [
        (frame["seq"], frame["type"]) for frame in before
    ]
    run.refresh_from_db()
    assert run.published_at is not None


def test_a_stream_that_was_lost_before_it_was_archived_ends_behind_a_gap(clock, valkey_url):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    unpublished(run)
    empty(valkey_url)
    clock.advance(60)

    sweeper.sweep(lambda run_ids: None)

    found, done = events.page(run.id)
    assert done
    first = found[0]["seq"]
    assert found[0]["type"] == "stream.gap"
    assert found[0]["to"] == first - 1 >= 1000
    assert [frame["seq"] for frame in found] == list(range(first, first + len(found)))
    assert found[-1]["type"] == "stream.done"


def test_a_run_cancelled_before_it_began_has_a_stream_that_ends(clock):
    run = make_run()
    store.request_cancel(run.id, "no")
    clock.advance(60)

    sweeper.sweep(lambda run_ids: None)

    found, done = events.page(run.id)
    assert done
    assert [frame["type"] for frame in found] == ["progress", "error", "stream.done"]
    assert [frame["seq"] for frame in found] == [1, 2, 3]


def test_what_a_dead_worker_had_recorded_is_published_by_the_next(clock):
    async def twice(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", "one")])
        return (await ctx.llm([ChatMessage.of("user", "two")])).text

    code(twice, model=ScriptedModel(["hello"]))
    run = make_run()

    def mute(engine):
        engine.publisher.emit = lambda *frames: None

    drive(run, dies=2, setup=mute)
    clock.advance(conf.LEASE_S + 1)
    drive(run)

    found, done = events.page(run.id)
    assert done
    numbers = [frame["seq"] for frame in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [frame["type"] for frame in found if frame["type"] in ("completion", "stream.done")] == [
        "completion",
        "completion",
        "stream.done",
    ]


def test_a_retried_call_replaces_its_partial_text(clock):
    class Breaking(ScriptedModel):
        async def stream(self, messages, options, meta):
            if not self.calls:
                self.calls.append(1)
                yield TextDelta(text="hel")
                raise TransientError("connection lost")
            async for event in super().stream(messages, options, meta):
                yield event

    code(ask, model=Breaking(["hello"]))
    run = drive(make_run())
    clock.advance(60)
    drive(run)

    found = [frame for frame in events.page(run.id)[0] if frame["type"] == "text.delta"]
    assert [(frame["text"], frame["call"], frame["attempt"]) for frame in found] == [
        ("hel", "1", "1"),
        ("hello", "1", "2"),
    ]


def test_the_last_frame_of_each_end_has_a_key_of_its_own():
    source = Source.of(leased().run)

    assert stream_done(source, "failed").key == stream_done(source, "completed").key
    assert stream_done(source, "failed").key != durable(source, Entry("run.completed", "@completed.1"), 1)[0].key
