"""The end of a stream: once, last, and kept."""

from typing import Any

import pytest
import redis

from ravi_django import register
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ChatMessage, TextDelta, TransientError
from ravi_django.models import Run, Status, StreamArchive
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, in_background, leased, make_run, on_postgresql, take_over, until
from tests.support.world import Entry, Frame, Publisher, Source, ValkeyBuffer, cancel

pytestmark = pytest.mark.django_db(transaction=True)


async def ask(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def types_of(run, after=0):
    return [frame["type"] for frame in world.events_page(run.tree_id, after)[0]]


def empty(url):
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def test_the_ended_stream_is_kept_without_its_single_tokens(valkey_url, monkeypatch):
    world.patch(monkeypatch, "FLUSH_S", 0.001)
    model = ScriptedModel(["one two three four"], chunk="words")
    code(ask, model=model)
    run = drive(make_run())
    live = world.events_page(run.id)[0]

    empty(valkey_url)
    kept, done = world.events_page(run.id)

    assert done
    assert run.published_at is not None
    assert StreamArchive.objects.filter(tree=run).exists()
    text = next(frame for frame in kept if frame["type"] == "text.delta")
    singles = [frame for frame in live if frame["type"] == "text.delta"]
    assert text["text"] == "one two three four"
    assert (text.get("from_seq", text["seq"]), text["seq"]) == (singles[0]["seq"], singles[-1]["seq"])
    assert [frame for frame in kept if frame is not text] == [frame for frame in live if frame not in singles]
    for single in singles:  # a client continues at any place
        tail = next(one for one in world.events_page(run.id, after=single["seq"] - 1)[0] if one["type"] == "text.delta")
        assert tail["text"] == text["text"][text["text"].index(single["text"]) :]
    assert world.events_page(run.id, after=kept[-2]["seq"]) == ([kept[-1]], True)
    assert world.events_page(run.id, after=kept[-1]["seq"]) == ([], True)
    assert world.events_page(run.id, limit=2)[0] == kept[:2]


def unpublished(run):
    """As after a worker that died between its last commit and its last frame."""
    Run.objects.filter(id=run.id).update(published_at=None)
    StreamArchive.objects.all().delete()
    run.refresh_from_db()


def test_the_sweep_gives_an_ended_stream_its_done_exactly_once(clock, valkey_url):
    lease = leased()
    run = lease.run
    publisher = Publisher(ValkeyBuffer(valkey_url))
    publisher.open(run)
    entries = [Entry("run.started", "@started"), Entry("run.completed", "@completed.1")]
    world.finish(lease, Status.COMPLETED, entries, output="x")
    publisher.emit(*world.frames_durable(Source.of(run, 1), entries[0], 1))  # the last of what it sent
    publisher.close()
    assert types_of(run) == ["progress"]
    clock.advance(60)

    for _ in range(2):
        world.sweeper_sweep(lambda run_ids: None)
        unpublished(run)
    world.sweeper_sweep(lambda run_ids: None)

    found, done = world.events_page(run.id)
    seen = [(frame["seq"], frame["type"], frame.get("step")) for frame in found]
    assert seen == [(1, "progress", "started"), (2, "progress", "done"), (3, "stream.done", None)]
    assert done


def test_a_stream_that_is_lost_right_before_it_is_archived_is_not_archived_empty(clock, valkey_url):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    unpublished(run)
    empty(valkey_url)

    world.archive(ValkeyBuffer(valkey_url), {str(run.id): run.lease_epoch})

    run.refresh_from_db()
    assert (run.published_at, StreamArchive.objects.count()) == (None, 0)
    clock.advance(60)
    assert world.sweeper_sweep(lambda run_ids: None).published == 1
    found, done = world.events_page(run.id)
    first = found[0]["seq"]
    assert (found[0]["type"], found[-1]["type"], done) == ("stream.gap", "stream.done", True)
    assert found[0]["to"] == first - 1 >= 1000
    assert [frame["seq"] for frame in found] == list(range(first, first + len(found)))


@on_postgresql
def test_two_sweeps_publish_an_ended_tree_once(clock, valkey_url, monkeypatch):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    unpublished(run)
    empty(valkey_url)
    clock.advance(60)

    def swept_meanwhile(*args):
        monkeypatch.undo()
        in_background(world.republish, str(run.id)).result(BOUND_S)
        empty(valkey_url)
        return world.events_archived(*args)

    world.patch(monkeypatch, "publish_archived", swept_meanwhile)
    world.sweeper_sweep(lambda run_ids: None)

    found, done = world.events_page(run.id)
    assert [frame["type"] for frame in found] == ["stream.gap", "progress", "completion", "progress", "stream.done"]
    assert (found[0]["from"], found[0]["to"] + 1, done) == (1, found[0]["seq"], True)


def test_what_somebody_still_had_for_an_archived_stream_does_not_begin_it_anew(valkey_url):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    before = world.events_page(run.id)
    empty(valkey_url)
    late = Publisher(ValkeyBuffer(valkey_url))
    late.open(leased(make_run(root=run, parent=run, depth=1)).run)

    late.emit(Frame(Source.of(run, run.lease_epoch), "progress", {"step": "late"}))
    late.close()

    assert world.events_page(run.id) == before
    assert before[1]


def test_a_run_cancelled_before_it_began_has_a_stream_that_ends(clock):
    run = make_run()
    world.request_cancel(run.id, "no")
    clock.advance(60)

    world.sweeper_sweep(lambda run_ids: None)

    found, done = world.events_page(run.id)
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

    found, done = world.events_page(run.id)
    assert done
    numbers = [frame["seq"] for frame in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    ends = [frame["type"] for frame in found if frame["type"] in ("completion", "stream.done")]
    assert ends == ["completion", "completion", "stream.done"]


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
    run = make_run()
    leased(run)  # by a worker that dies before its first frame
    take_over(clock, run)
    clock.advance(60)
    drive(run)

    frames = world.events_page(run.id)[0]
    found = [(frame["text"], frame["call"], frame["attempt"]) for frame in frames if frame["type"] == "text.delta"]
    assert found == [("hel", "1", "2"), ("hello", "1", "3")]
    assert frames[0]["seq"] == 1 and "stream.gap" not in types_of(run)


CHILD = AgentId("test", "child")


def steps(run: Run) -> list[tuple[str, str, str]]:
    """(run, step, status) of the tree's progress, and its end."""
    found = world.events_page(run.id)[0]
    assert [frame["seq"] for frame in found] == list(range(1, len(found) + 1))
    return [
        (frame["run"], frame.get("step", frame["type"]), (frame.get("content") or {}).get("status", ""))
        for frame in found
        if frame["type"] in ("progress", "stream.done")
    ]


async def stay(ctx: Any, inbox: Any) -> Any:
    return await ctx.sleep_until_signal("go")


def test_a_child_that_another_process_has_at_once_finds_the_stream_begun(monkeypatch: Any) -> None:
    world.patch(monkeypatch, "FLUSH_S", 60.0)
    out: list[int] = []
    spawn = world.spawn

    def spawning(lease: world.Lease, *args: Any, **kwargs: Any) -> int:
        out.append(len(world.events_page(lease.run.id)[0]))
        return spawn(lease, *args, **kwargs)

    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.spawn(CHILD, "work")

    other = leased().run

    def flushed_just_now(engine: Any) -> None:
        engine.publisher.open(other)
        engine.publisher.emit(world.frames_delta(Source.of(other), "text.delta", "a", call="1", attempt="1"))
        until(lambda: world.get_buffer().read(str(other.id), 0, 1))

    world.patch(monkeypatch, "spawn", spawning)
    register(CodeAgent(stay, key="child"))
    code(story)
    drive(make_run(), setup=flushed_just_now)

    assert out == [1]


def test_what_another_process_has_not_sent_of_a_child_is_out_before_the_end() -> None:
    async def work(ctx: Any, inbox: Any) -> str:
        return "done"

    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(CHILD, "work")).result)

    register(CodeAgent(work, key="child"))
    code(story)
    run = drive(make_run())
    child = Run.objects.get(parent=run)
    drive(child, setup=lambda engine: setattr(engine.publisher, "emit", lambda *frames: None))  # dies over sending

    drive(run)

    found = steps(run)
    assert (str(child.id), "started", "") in found and (str(child.id), "done", "") in found
    assert found[-1] == (str(run.id), "stream.done", "")


def test_a_child_that_is_cancelled_with_its_parent_says_so() -> None:
    async def lead(ctx: Any, inbox: Any) -> None:
        await ctx.spawn(AgentId("test", "hand"), "stay")
        await ctx.sleep_until_signal("go")

    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(CHILD, "lead")).kind)

    register(CodeAgent(stay, key="hand"))
    register(CodeAgent(lead, key="child"))
    code(story)
    run = make_run()
    run_until_idle()
    child = Run.objects.get(parent=run)
    hand = Run.objects.get(parent=child)

    world.send_signal(child.id, "go", None)
    run_until_idle()

    found = steps(run)
    assert found.count((str(hand.id), "error", "cancelled")) == 1
    assert found[-1][1] == "stream.done"
    register(CodeAgent(stay, key="child"), replace=True)  # and one that waits, at once
    run = make_run()
    run_until_idle()
    child = Run.objects.get(parent=run)
    cancel(child.id, "enough")
    assert steps(run)[-1] == (str(child.id), "error", "cancelled")
    assert Run.objects.get(id=run.id).status == Status.PENDING
