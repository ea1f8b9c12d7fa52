"""Both event buffers keep the same promises."""

import asyncio

import pytest
import redis

from project.celery import app
from ravi_django.models import Run
from tests.support import world
from tests.support.runs import BOUND_S, in_background, make_run, on_postgresql
from tests.support.world import Batch, DatabaseBuffer, Frame, Lost, MarkReached, Source, ValkeyBuffer, stream_done

pytestmark = pytest.mark.django_db


def delta(run, text, *, epoch=1):
    return Frame(Source.of(run, epoch), "text.delta", {"text": text, "call": "1", "attempt": str(epoch)})


def durable(run, key, *, epoch=1):
    return Frame(Source.of(run, epoch), "completion", {"content": []}, key=f"{run.id}:{key}")


def batch(run, *found, mark=1000, fresh=True, restart=False):
    return Batch(str(run.tree_id), list(found), mark, fresh=fresh, restart=restart)


def numbers_of(buffer, run, after=0, limit=100):
    return [frame["seq"] for frame in buffer.read(str(run.tree_id), after, limit) or []]


class BufferContract:
    """Give it a `buffer`, and `take_over`: what makes epoch 2 the newest of a run."""

    @pytest.fixture
    def run(self):
        return make_run()

    def take_over(self, run):
        Run.objects.filter(id=run.id).update(lease_epoch=2)

    def test_numbers_rise_by_one_from_one(self, buffer, run):
        first = buffer.append([batch(run, delta(run, "a"), delta(run, "b"))])
        second = buffer.append([batch(run, durable(run, "1"), fresh=False)])
        assert (first, second) == ([[1, 2]], [[3]])
        assert numbers_of(buffer, run) == [1, 2, 3]
        one, other = make_run(), make_run()
        assert not buffer.read(str(one.id), 0, 10)
        both = buffer.append([batch(one, delta(one, "a"), delta(one, "b")), batch(other, delta(other, "c"))])
        assert both == [[1, 2], [1]]

    def test_a_frame_reads_back_with_its_number(self, buffer, run):
        frame = delta(run, "ä☃")
        buffer.append([batch(run, frame)])
        buffer.ping()
        (found,) = buffer.read(str(run.tree_id), 0, 10)
        assert found["ts"] <= frame.body()["ts"]
        assert {**found, "ts": None} == {**frame.body(), "seq": 1, "ts": None}

    def test_a_copy_of_a_durable_frame_is_dropped(self, buffer, run):
        assert buffer.append([batch(run, durable(run, "1"), durable(run, "1"), delta(run, "a"))]) == [[1, 0, 2]]
        again = buffer.append([batch(run, durable(run, "1"), durable(run, "2"), delta(run, "a"), fresh=False)])
        assert again == [[0, 3, 4]]

    def test_of_an_older_epoch_only_what_it_has_recorded_is_taken(self, buffer, run):
        buffer.append([batch(run, delta(run, "old"))])
        self.take_over(run)
        buffer.append([batch(run, delta(run, "new", epoch=2), fresh=False)])
        late = [delta(run, "zombie"), durable(run, "1"), stream_done(Source.of(run, 1), "failed")]
        found = buffer.append([batch(run, *late, delta(run, "new", epoch=2), fresh=False)])
        assert found == [[-1, 3, -1, 4]]
        assert [frame.get("text") for frame in buffer.read(str(run.id), 0, 10)] == ["old", "new", None, "new"]

    def test_behind_the_end_comes_nothing_that_others_still_had(self, buffer, run):
        child = make_run(root=run, parent=run, depth=1)
        end = stream_done(Source.of(run, 0), "completed")
        buffer.append([batch(run, durable(child, "1", epoch=0), end)])
        late = buffer.append([batch(run, delta(child, "late"), durable(child, "2"), end, fresh=False)])
        assert late == [[-1, -1, 0]]
        assert numbers_of(buffer, run) == [1, 2]

    def test_behind_the_end_a_retry_of_the_root_goes_on(self, buffer, run):
        child = make_run(root=run, parent=run, depth=1)
        buffer.append([batch(run, stream_done(Source.of(run, 0), "failed"))])
        self.take_over(run)
        again = buffer.append([batch(run, durable(run, "1", epoch=2), delta(child, "again"), fresh=False)])
        end = stream_done(Source.of(run, 2), "completed")
        ended = buffer.append([batch(run, end, delta(child, "late"), fresh=False)])
        assert (again, ended) == ([[2, 3]], [[4, -1]])

    def test_what_was_refused_leaves_no_key_behind(self, buffer, run):
        child = make_run(root=run, parent=run, depth=1)
        buffer.append([batch(run, stream_done(Source.of(run, 0), "failed"), durable(child, "1"))])
        self.take_over(run)
        assert buffer.append([batch(run, durable(run, "1", epoch=2), durable(child, "1"), fresh=False)]) == [[2, 3]]

    def test_the_epochs_of_the_runs_of_a_tree_are_apart(self, buffer, run):
        child = make_run(parent=run, root=run)
        self.take_over(run)
        buffer.append([batch(run, delta(run, "root", epoch=2))])
        assert buffer.append([batch(run, delta(child, "child", epoch=1), fresh=False)]) == [[2]]

    def test_reading_begins_after_a_number_and_ends_at_a_limit(self, buffer, run):
        buffer.append([batch(run, *(delta(run, str(number)) for number in range(10)))])
        for after, found in ((0, [1, 2, 3, 4]), (4, [5, 6, 7, 8]), (8, [9, 10]), (10, []), (99, [])):
            assert numbers_of(buffer, run, after=after, limit=4) == found

    @on_postgresql
    @pytest.mark.django_db(transaction=True)
    def test_writers_at_once_leave_no_gap_and_lose_nothing(self, buffer, run):
        def write(name):
            return [buffer.append([batch(run, delta(run, f"{name}{n}"), durable(run, f"{n}"))]) for n in range(10)]

        for done in [in_background(write, name) for name in "abcd"]:
            done.result(BOUND_S)

        assert numbers_of(buffer, run) == list(range(1, 51))

    def test_a_reader_is_woken_by_a_frame(self, buffer, run, monkeypatch):
        world.patch(monkeypatch, "BUFFER_VALKEY_POLL_S", 1000.0)

        async def main():
            async with buffer.watch(str(run.tree_id)) as hints:
                waiting = asyncio.create_task(anext(hints))
                while not waiting.done():
                    await asyncio.to_thread(self.publish, buffer, run)
                    await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(main(), BOUND_S))

    def publish(self, buffer, run):
        """From another thread, as the publisher does."""


@pytest.mark.sqlite
class TestDatabaseBuffer(BufferContract):
    @pytest.fixture
    def buffer(self):
        return DatabaseBuffer()

    def test_frames_of_a_run_that_is_gone_are_refused(self, buffer, run):
        gone = delta(run, "x")
        Run.objects.filter(id=run.id).delete()
        assert buffer.append([batch(run, gone)]) == [[-1]]

    def test_only_what_is_before_the_archived_end_goes(self, buffer, run):
        buffer.append([batch(run, delta(run, "a"), stream_done(Source.of(run, 1), "failed"))])
        self.take_over(run)
        buffer.append([batch(run, delta(run, "b", epoch=2), stream_done(Source.of(run, 2), "failed"), fresh=False)])
        for epoch, left in ((1, [2, 3, 4]), (2, [4])):
            buffer.expire({str(run.tree_id): epoch})
            assert numbers_of(buffer, run) == left

    def test_it_is_the_buffer_of_a_site_without_redis(self, settings):
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
        settings.CELERY_BROKER_URL = "memory://"
        assert isinstance(world.get_buffer(), DatabaseBuffer)
        assert world.get_buffer() is world.get_buffer()


class TestValkeyBuffer(BufferContract):
    @pytest.fixture
    def buffer(self, valkey_url):
        return ValkeyBuffer(valkey_url)

    def publish(self, buffer, run):
        buffer.append([batch(run, delta(run, "x"))])

    def test_a_reader_that_is_cancelled_in_the_moment_of_a_hint_goes(self, buffer, run):
        """As when a client goes away just then: for a run that says nothing more it would be kept for days."""

        async def read():
            async with buffer.watch(str(run.tree_id)) as hints:
                async for _ in hints:
                    pass

        async def main(turns):
            reader = asyncio.create_task(read())
            for _ in range(10):
                await asyncio.sleep(0)  # it waits
            (hints,) = buffer._hubs[asyncio.get_running_loop()]._watchers.values()
            for hint in hints:
                hint(b"")
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader], timeout=BOUND_S)
            return reader.cancelled()

        for turns in range(6):
            assert asyncio.run(main(turns)), turns

    def test_a_tree_that_is_gone_is_lost(self, buffer, run):
        assert isinstance(buffer.append([batch(run, delta(run, "a"), fresh=False)])[0], Lost)
        assert numbers_of(buffer, run) == []

    def test_a_lost_tree_is_numbered_on_above_its_mark(self, buffer, run):
        opening = buffer.append([batch(run, delta(run, "gap"), mark=1000, fresh=False, restart=True)])
        after = buffer.append([batch(run, delta(run, "a"), mark=2000, fresh=False)])
        assert (opening, after) == ([[1001]], [[1002]])

    @pytest.mark.parametrize("key", range(3))
    def test_a_tree_that_two_writers_find_lost_has_one_gap(self, buffer, run, valkey_url, key):
        """One of its keys was evicted, then both writers continue."""

        def write(writer, frame, sent, last, mark=9000, restart=False):
            place = {"writer": writer, "first": sent, "last": last}
            return buffer.append([Batch(str(run.id), [frame], mark, fresh=not sent, restart=restart, **place)])[0]

        assert write("a", durable(run, "1"), 0, 0) == [1]
        with redis.Redis.from_url(valkey_url) as client:
            client.delete(f"ravi:{{{run.id}}}:{'msk'[key]}")
        assert buffer.read(str(run.id), 0, 10) is None
        assert isinstance(write("a", delta(run, "a"), 1, 1), Lost)
        for writer, numbers in (("a", [1001]), ("b", [])):
            assert write(writer, delta(run, "gap"), 1, 1, mark=1000, restart=True) == numbers
            assert write(writer, delta(run, writer), 1, 1) == [1002 if numbers else 1003]
        assert [frame["text"] for frame in buffer.read(str(run.id), 0, 10)] == ["gap", "a", "b"]
        assert write("a", delta(run, "c"), 2, 1002) == [1004]

    def test_a_full_server_refuses_a_restart_before_its_first_write(self, buffer, run, valkey_url):
        buffer.append([batch(run, delta(run, "a"), delta(run, "b"))])
        again = batch(run, delta(run, "gap"), mark=2000, fresh=False, restart=True)
        with redis.Redis.from_url(valkey_url) as client:
            client.delete(f"ravi:{{{run.id}}}:k")
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(redis.exceptions.OutOfMemoryError):
                    buffer.append([again])
            finally:
                client.config_set("maxmemory", 0)
            assert client.exists(f"ravi:{{{run.id}}}:m", f"ravi:{{{run.id}}}:s") == 2
        assert buffer.append([again]) == [[2001]]

    def test_no_number_above_the_mark_is_given(self, buffer, run):
        buffer.append([batch(run, delta(run, "a"), delta(run, "b"), mark=3)])
        reached = buffer.append([batch(run, delta(run, "c"), delta(run, "d"), mark=3, fresh=False)])[0]
        assert isinstance(reached, MarkReached)
        assert reached.at == 2
        assert numbers_of(buffer, run) == [1, 2]
        assert buffer.append([batch(run, delta(run, "c"), mark=3, fresh=False)]) == [[3]]

    def test_one_trees_trouble_is_not_the_others(self, buffer, run):
        other = make_run()
        lost, fine = buffer.append([batch(run, delta(run, "a"), fresh=False), batch(other, delta(other, "b"))])
        assert isinstance(lost, Lost)
        assert fine == [1]

    def test_frames_expire_a_day_after_the_last_and_soon_after_the_end(self, buffer, run, valkey_url):
        buffer.append([batch(run, delta(run, "a"), durable(run, "1"))])
        with redis.Redis.from_url(valkey_url) as client:
            keys = client.keys("*")
            assert len(keys) == 3
            assert all(world.FRAMES_TTL_S - 60 < client.ttl(key) <= world.FRAMES_TTL_S for key in keys)
            buffer.expire({str(run.tree_id): 1})
            assert all(world.ENDED_TTL_S - 60 < client.ttl(key) <= world.ENDED_TTL_S for key in keys)

    def test_it_is_the_buffer_of_a_site_with_a_redis_channel_layer(self, settings, valkey_url):
        assert world.stream_url() == valkey_url
        assert isinstance(world.get_buffer(), ValkeyBuffer)


@pytest.mark.parametrize(
    ("layer", "broker", "url"),
    [
        ({"BACKEND": "x.RedisChannelLayer", "CONFIG": {"hosts": ["redis://a/1"]}}, "redis://b/2", "redis://a/1"),
        ({"BACKEND": "x.RedisChannelLayer", "CONFIG": {"hosts": [{"address": "redis://a/1"}]}}, "", "redis://a/1"),
        ({"BACKEND": "x.RedisChannelLayer", "CONFIG": {"hosts": [("a", 6380)]}}, "", "redis://a:6380/0"),
        ({"BACKEND": "channels.layers.InMemoryChannelLayer"}, "redis://b/2", "redis://b/2"),
        ({}, "amqp://b", None),
        (None, "", "redis://c/3"),
    ],
)
def test_the_streams_address_comes_from_the_channel_layer_or_the_broker(settings, layer, broker, url):
    if layer is None:
        settings.RAVI = {**settings.RAVI, "STREAM_URL": url}
    settings.CHANNEL_LAYERS = {"default": layer or {}}
    settings.CELERY_BROKER_URL = ""
    app.conf.broker_write_url = broker
    settings.RAVI = {**settings.RAVI, "ENGINE": "celery"}
    assert world.stream_url() == url


def sequence(*parts):
    """Frames as a buffer gives them: `parts` are (call, text) of deltas, or a type."""
    found = []
    for seq, part in enumerate(parts, 1):
        if isinstance(part, str):
            found.append({"seq": seq, "type": part, "run": "r"})
        else:
            call, text = part
            found.append({"seq": seq, "type": "text.delta", "run": "r", "call": call, "attempt": "1", "text": text})
    return found


def test_neighbouring_deltas_of_a_call_collapse_to_one_that_names_its_numbers():
    given = sequence("progress", ("1", "a"), ("1", "b"), ("1", "c"), "completion", ("2", "d"))
    kept = world.collapse(given)
    assert [(frame.get("from_seq"), frame["seq"], frame.get("text")) for frame in kept] == [
        (None, 1, None),
        (2, 4, "abc"),
        (None, 5, None),
        (None, 6, "d"),
    ]
    rests = [world.frames_rest(kept[1], after) for after in (0, 1, 2, 3)]
    assert [(frame["from_seq"], frame["text"]) for frame in rests] == [(2, "abc"), (2, "abc"), (3, "bc"), (4, "c")]
    assert given == sequence("progress", ("1", "a"), ("1", "b"), ("1", "c"), "completion", ("2", "d"))


def test_deltas_of_two_calls_and_of_two_attempts_stay_apart():
    found = sequence(("1", "a"), ("2", "b"), ("1", "c"), ("1", "d"))
    found[3]["attempt"] = "2"
    assert [frame["text"] for frame in world.collapse(found)] == ["a", "b", "c", "d"]
