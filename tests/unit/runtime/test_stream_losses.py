"""The event buffer loses a stream, or a part of it: readers get each number once, or a gap that says so."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections
from hypothesis import HealthCheck, Phase, example, given, settings as hypothesis_settings, strategies as st

from project.services import Valkey
from ravi_django.conf import conf
from ravi_django.management import diagnosis
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.runs import code, idle, leased, make_run, until
from tests.support.world import DatabaseBuffer, Entry, Publisher, Source, ValkeyBuffer, frames_delta

pytestmark = pytest.mark.django_db(transaction=True)

Frames = list[dict[str, Any]]


@pytest.fixture
def server(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    world.patch(monkeypatch, "MAX_PAUSE_S", 0.01)
    world.patch(monkeypatch, "FLUSH_S", 0.001)
    with Valkey(tmp_path / "valkey", fast=True) as valkey:
        settings.RAVI = {**settings.RAVI, "STREAM_URL": valkey.url}
        yield valkey


def keys_of(run: Run) -> list[str]:
    return [f"ravi:{{{run.id}}}:{name}" for name in "msk"]


class Process:
    """A lease of a run in a process of its own. It sends again what is recorded, as after a crash."""

    def __init__(self, server: Valkey, run: Run) -> None:
        self.lease = leased(run)
        self.source = Source.of(self.lease.run, self.lease.epoch)
        self.buffer = ValkeyBuffer(server.url)
        self.publisher = Publisher(self.buffer)
        self.publisher.open(self.lease.run)
        for row in JournalEntry.objects.filter(run=run).order_by("seq"):
            self.publisher.emit(*world.frames_durable(self.source, row, row.seq))

    def emit(self, name: str) -> None:
        """Some text, and a row."""
        for call in (f"{name}.1", f"{name}.2"):
            self.publisher.emit(frames_delta(self.source, "text.delta", call, call=call, attempt="1"))
        row = Entry("tool.call", name, "t", result={"content": []})
        self.publisher.emit(*world.frames_durable(self.source, row, world.append(self.lease, [row])))

    def send(self, timeout: float = math.inf) -> None:
        asyncio.run(self.publisher.sent(self.source.tree, timeout=timeout))

    def die(self) -> None:
        """Nothing that it emits is sent."""

        def refuse(batches: Any) -> Any:
            raise ConnectionError("the process is dead")

        self.buffer.append = refuse  # type: ignore[method-assign]
        self.publisher.close()


class Site:
    """A run and its child in two processes, and a client that reads now and then."""

    def __init__(self, server: Valkey, clock: FakeClock) -> None:
        self.server, self.clock = server, clock
        self.run = make_run()
        self.root = Process(server, self.run)
        self.names: list[str] = []  # of rows
        self.dumped: dict[str, bytes] = {}
        self.kept: Frames = []  # of the client
        self.contents: dict[int, Any] = {}  # by number, of all that was ever read
        self.append(0)
        self.child = Process(server, make_run(root=self.run, parent=self.run, depth=1))

    def emit(self, process: Process) -> None:
        self.names.append(str(len(self.names)))
        process.emit(self.names[-1])

    def valkey(self, do: Callable[[redis.Redis], Any]) -> Any:
        with redis.Redis.from_url(self.server.url) as client:
            return do(client)

    # ------------------------------------------------------------------------------------------------- steps

    def append(self, of_child: int) -> None:
        process = self.child if of_child % 3 == 2 else self.root
        self.emit(process)
        process.send()

    def die(self, unsent: int) -> None:
        """The root's process, also with a frame that nobody gets; another process takes over."""
        self.root.die()
        if unsent % 2:
            self.emit(self.root)
        self.clock.advance(conf.LEASE_S + 1)
        self.root = Process(self.server, self.run)

    def dump(self, _: int) -> None:
        found = {key: self.valkey(lambda client, key=key: client.dump(key)) for key in keys_of(self.run)}
        self.dumped = {key: value for key, value in found.items() if value is not None}

    def restore(self, _: int) -> None:
        """A replica takes over, which is late by all since the dump; without one it is a restart."""
        self.server.restart()
        for key, value in self.dumped.items():
            self.valkey(lambda client, key=key, value=value: client.restore(key, 60_000, value))

    def rewind(self, _: int) -> None:
        """The same server has an older state of the stream."""
        for key, value in self.dumped.items():
            self.valkey(lambda client, key=key, value=value: client.restore(key, 60_000, value, replace=True))

    def evict(self, which: int) -> None:
        self.valkey(lambda client: client.delete(keys_of(self.run)[which % 3]))

    def fill(self, _: int) -> None:
        self.valkey(lambda client: client.config_set("maxmemory", 1))
        self.emit(self.root)
        self.root.send(timeout=0.03)
        self.valkey(lambda client: client.config_set("maxmemory", 0))

    def read(self, after: int) -> None:
        self.read_from(after)
        self.kept += self.read_from(self.kept[-1]["seq"] if self.kept else 0)

    # ------------------------------------------------------------------------------------------------- reading

    def read_from(self, after: int) -> Frames:
        found: Frames = []
        done = False
        while not done and (new := world.events_page(self.run.id, found[-1]["seq"] if found else after)[0]):
            found += new
            done = found[-1]["type"] == "stream.done"
        check_numbers(found, after)
        for frame in found:
            if frame["type"] != "stream.gap":
                content = {name: value for name, value in frame.items() if name not in ("ts", "seq")}
                assert self.contents.setdefault(frame["seq"], content) == content
        return found

    def end(self, *, alive: bool) -> None:
        self.child.die()
        row = Entry("run.completed", "@completed.1")
        seq = world.finish(self.root.lease, Status.COMPLETED, [row], output="x")
        if alive:
            self.root.publisher.emit(*world.frames_durable(self.root.source, row, seq))
            self.root.publisher.emit(world.stream_done(self.root.source, "completed"))
            self.root.send()
        self.root.die()
        self.clock.advance(60)
        published = Run.objects.filter(id=self.run.id, published_at__isnull=False)
        until(lambda: published.exists() or world.republish(str(self.run.id)))
        self.kept += self.read_from(self.kept[-1]["seq"] if self.kept else 0)
        for frames in (self.kept, self.read_from(0)):
            assert [frame["seq"] for frame in frames if frame["type"] == "stream.done"] == [frames[-1]["seq"]]
            assert paths_of(frames) == set(self.names)


def check_numbers(frames: Frames, after: int) -> None:
    """Each once, or in a gap."""
    for frame in frames:
        is_gap = frame["type"] == "stream.gap"
        first = frame["from"] if is_gap else frame.get("from_seq", frame["seq"])
        assert first <= after + 1 if is_gap else first == after + 1, (first, after, frame["type"])
        assert not is_gap or frame["to"] + 1 == frame["seq"] > after
        after = frame["seq"]


def paths_of(frames: Frames) -> set[str]:
    """The rows of tool calls that these frames show, also in the snapshots of gaps."""
    shown = [
        *frames,
        *(one for frame in frames if frame["type"] == "stream.gap" for one in frame["snapshot"]["frames"]),
    ]
    return {frame["content"]["path"] for frame in shown if frame.get("step") == "tool_result"}


STEPS = ("append", "append", "append", "append", "die", "dump", "restore", "evict", "fill", "read")
LATE = [("append", 0), ("dump", 0), ("append", 0), ("read", 0)]  # and then the dump comes back


@pytest.mark.timeout(180)
def test_a_reader_gets_each_number_once_or_a_gap_whatever_the_buffer_loses(server: Valkey) -> None:
    steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=9)

    @hypothesis_settings(
        max_examples=16,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )
    @example([*LATE, ("restore", 0), ("append", 0), ("read", 3)], True)
    @example([*LATE, ("restore", 0), ("die", 0), ("append", 0), ("append", 0)], True)
    @example([*LATE, ("restore", 0)], False)
    @example([*LATE, ("rewind", 0), ("append", 0), ("read", 3)], True)
    @example([*LATE, ("evict", 0), ("read", 2), ("append", 0)], True)
    @example([*LATE, ("evict", 1), ("read", 2), ("append", 0)], True)
    @example([*LATE, ("evict", 2), ("die", 0), ("append", 0)], True)
    @example([*LATE, ("evict", 1), ("fill", 0), ("append", 0)], True)
    @given(steps, st.booleans())
    def check(steps: list[tuple[str, int]], alive: bool) -> None:
        with FakeClock() as clock:
            site = Site(server, clock)
            for name, number in steps:
                getattr(site, name)(number)
            site.end(alive=alive)

    check()


def test_the_doctor_warns_of_a_server_that_evicts_and_a_buffer_works_where_commands_are_forbidden(
    server: Valkey, settings: Any
) -> None:
    def warnings() -> list[str]:
        return [finding.what for finding in diagnosis.streams()]

    with redis.Redis.from_url(server.url) as client:
        assert warnings() == []
        client.config_set("maxmemory-policy", "volatile-lru")
        assert ["volatile-lru" in one and "it has no maxmemory" in one for one in warnings()] == [True]
        client.config_set("maxmemory", "100mb")
        allowed = {"keys": ["*"], "channels": ["*"]}
        client.acl_setuser("info", enabled=True, passwords=["+secret"], commands=["+@all", "-config"], **allowed)
        client.acl_setuser("app", enabled=True, passwords=["+secret"], commands=["+@all", "-@dangerous"], **allowed)
    settings.RAVI = {**settings.RAVI, "STREAM_URL": f"redis://info:secret@127.0.0.1:{server.port}/0"}
    assert ["volatile-lru" in one and "it has no" not in one for one in warnings()] == [True]
    settings.RAVI = {**settings.RAVI, "STREAM_URL": f"redis://app:secret@127.0.0.1:{server.port}/0"}
    run = make_run()
    for fresh in (True, False):
        frame = frames_delta(Source.of(run), "text.delta", "a", call="1", attempt="1")
        world.get_buffer().append([world.Batch(str(run.id), [frame], 9, fresh=fresh)])
    assert [frame["seq"] for frame in world.events_page(run.id)[0]] == [1, 2]
    assert ["maxmemory-policy is unknown" in one for one in warnings()] == [True]


@pytest.mark.parametrize("kind", [ValkeyBuffer, pytest.param(DatabaseBuffer, marks=pytest.mark.sqlite)])
def test_a_run_of_many_generations_keeps_the_frames_of_the_last_two(
    kind: Any, step: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("valkey_url") if kind is ValkeyBuffer else ""
    buffer = kind(url) if url else kind()
    world.patch(monkeypatch, "get_buffer", lambda: buffer)
    kept: list[int] = []
    read: Frames = []  # by a client that keeps up

    async def story(ctx: Any, inbox: Any) -> str:
        number = ctx.state or 0
        for _ in range(10):
            await ctx.tool("step", name=str(number))
        await ctx.recorder.stream.publisher.sent(str(ctx.run_id))
        kept.append(len(await asyncio.to_thread(frames)))
        if number < 6:
            await ctx.continue_as_new(number + 1)
        return "done"

    def frames() -> Frames:
        read.extend(world.events_page(run.id, read[-1]["seq"] if read else 0)[0])
        found = buffer.read(str(run.id), 0, 10_000)
        connections.close_all()
        return list(found)

    code(story, tools=[step])
    run = make_run()
    assert idle(run).status == Status.COMPLETED
    read += world.events_page(run.id, read[-1]["seq"])[0]
    assert max(kept[2:]) <= kept[1], kept
    assert "stream.gap" not in {frame["type"] for frame in read}
    assert [frame["seq"] for frame in read] == list(range(1, read[-1]["seq"] + 1))
    late = world.events_page(run.id)[0]
    assert [frame["type"] for frame in late[:2]] == ["stream.gap", "progress"]
    assert [frame for frame in late[1:] if frame not in read] == []
    check_numbers(late, 0)
    assert all(frame in read for frame in late[1:]) and late[-1] == read[-1]
    if url:
        with redis.Redis.from_url(url) as client:
            assert client.scard(f"ravi:{{{run.id}}}:k") <= kept[1], "the keys of frames go with them"
    texts = {frame["content"]["text"] for frame in late[0]["snapshot"]["frames"] if frame["step"] == "tool_result"}
    assert texts == {"5", "6"}
    world.patch(monkeypatch, "SNAPSHOT_BYTES", 2000)
    snapshot = world.events_page(run.id)[0][0]["snapshot"]["frames"]
    assert 1 < len(snapshot) < 10 and snapshot[-1]["step"] == "done"
