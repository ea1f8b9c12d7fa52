"""What newsrooms read: bursts, messages of thousands of items, and agents that follow each other in a circle."""

from __future__ import annotations

from typing import Any

import pytest

import ravi_django
from ravi_django import register, signal
from ravi_django.agents import InformationAgent, PersonalFeedAgent
from ravi_django.kernel import AgentId, DataPayload, Message, PermanentError, TopicId
from ravi_django.models import InboxMessage, JournalEntry, Publication, Run, Signal, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import TOPIC, arrive, logged, publish
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, make_run, take_over
from tests.support.world import MAX_HOPS

pytestmark = pytest.mark.django_db(transaction=True)

HEARD = "heard"


@pytest.fixture(autouse=True)
def _no_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint")


async def note(ctx: Any, item: Any, state: dict[str, Any]) -> None:
    await ctx.log(HEARD, item.title)


@pytest.fixture(params=["information/news", "personal_feed/mine"])
def address(request: Any) -> str:
    """Either of the two, which does nothing with an item but to log its title."""
    if request.param == "information/news":
        register(InformationAgent("news", handle=note))
    else:
        register(PersonalFeedAgent("mine"))
    return str(request.param)


def heard(run: Run) -> list[str]:
    return [*logged(run, HEARD), *(found["title"] for found in logged(run, "feed.curated"))]


def begun(address: str) -> Run:
    run = make_run(address)
    body = Message(target=AgentId.parse(address), payload=DataPayload()).model_dump(mode="json")
    InboxMessage.objects.filter(run=run).update(body=body)
    return drive(run)


def unread(run: Run) -> int:
    return Signal.objects.filter(run=run, consumed_at=None).count()


def most_rows(run: Run) -> int:
    rows = JournalEntry.objects.filter(run=run)
    return max(rows.filter(generation=number).count() for number in range(run.generation + 1))


def items(count: int, start: int = 0) -> dict[str, Any]:
    return {"items": [{"title": f"Item {number}"} for number in range(start, start + count)]}


# ------------------------------------------------------------------------------------------- bursts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("burst", [25, pytest.param(100, marks=pytest.mark.crash)])
def test_deliveries_in_bursts_leave_no_signal_behind(address: str, burst: int) -> None:
    run = begun(address)
    for start in range(0, 3 * burst, burst):
        for number in range(start, start + burst):
            publish(run, {"title": f"Item {number}"})
        run_until_idle(timeout=BOUND_S)
        run.refresh_from_db()
        assert (run.status, run.error, unread(run)) == (Status.SUSPENDED, None, 0)

    assert heard(run) == [f"Item {number}" for number in range(3 * burst)]
    assert most_rows(run) <= 3 * 20 + 10


@pytest.mark.parametrize("count", [5, 30])
def test_what_it_begins_with_has_no_signal_left_either(address: str, count: int) -> None:
    run = make_run(address)
    InboxMessage.objects.filter(run=run).delete()
    for number in range(count):
        publish(run, {"title": f"Item {number}"}, woken=number > 0)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, len(heard(run)), unread(run)) == (Status.SUSPENDED, count, 0)


def test_one_commit_reads_the_signals_of_a_burst() -> None:
    register(PersonalFeedAgent("mine"))
    run = begun("personal_feed/mine")
    for number in range(15):
        publish(run, {"title": f"Item {number}"})
    drive(run)

    assert len(heard(run)) == 15
    assert JournalEntry.objects.filter(run=run, kind="signal").count() == 1


# ------------------------------------------------------------------------------------------- large messages


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", ["message", "signal"])
def test_a_message_of_thousands_is_cut_and_read_in_parts(address: str, by: str) -> None:
    if by == "signal" and address != "information/news":
        pytest.skip("it reads its inbox alone")
    run = begun(address)
    if by == "message":
        publish(run, items(2000))
        publish(run, {"title": "behind"})
    else:
        signal(run.id, "new_source_item", items(2000))
        signal(run.id, "new_source_item", {"title": "behind"})
    run_until_idle(timeout=BOUND_S)

    run.refresh_from_db()
    assert (run.status, run.error) == (Status.SUSPENDED, None)
    assert heard(run) == [*(f"Item {number}" for number in range(200)), "behind"]
    assert [(found["items"], found["left_out"]) for found in logged(run, "feed.cut")] == [(2000, 1800)]
    assert most_rows(run) <= 3 * 20 + 10
    assert run.generation == 10


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4, "end"])
@pytest.mark.parametrize("by", ["message", "signal"])
def test_whatever_dies_in_the_middle_none_is_lost_and_none_comes_twice(
    by: str, at: Any, written: bool, clock: FakeClock
) -> None:
    register(InformationAgent("news", handle=note, items_per_generation=2))
    run = begun("information/news")
    if by == "message":
        publish(run, items(5))
    else:
        signal(run.id, "new_source_item", items(5))
    drive(run)  # of the first generation
    publish(run, items(1, start=5))
    drive(run, dies=at, written=written)
    take_over(clock, run)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.error, unread(run)) == (Status.SUSPENDED, None, 0)
    assert sorted(heard(run)) == [f"Item {number}" for number in range(6)]
    assert len(set(heard(run))) == 6


def test_state_and_order_are_kept_over_messages_that_are_left(clock: FakeClock) -> None:
    def count(ctx: Any, item: Any, state: dict[str, Any]) -> None:
        state["seen"] = [*state.get("seen", []), item.title]

    register(InformationAgent("news", handle=count, items_per_generation=3, output_topic=None))
    run = begun("information/news")
    for start in range(0, 12, 4):
        publish(run, items(4, start=start))
    run_until_idle()
    signal(run.id, "new_source_item", {"title": "last"})
    run_until_idle()

    run.refresh_from_db()
    body = InboxMessage.objects.filter(run=run).latest("id").body
    assert run.generation == 4
    seen = [f"Item {number}" for number in range(11)]  # of four generations; what it began with counts as one, too
    assert body["payload"]["data"]["seen"] == seen


def test_an_answer_is_not_torn_apart() -> None:
    register(PersonalFeedAgent("mine", items_per_generation=2))

    async def asker(ctx: Any, inbox: Any) -> Any:
        message = Message(target=AgentId("personal_feed", "mine"), payload=DataPayload(data=items(5)))
        return len((await ctx.ask(AgentId("personal_feed", "mine"), message)).result["items"])

    code(asker)
    run = make_run()
    run_until_idle()

    run.refresh_from_db()
    assert run.output == "5"
    child = Run.objects.get(parent=run)
    assert (child.status, child.generation) == (Status.COMPLETED, 0)


# ------------------------------------------------------------------------------------------- circles


def test_agents_that_follow_each_other_come_to_an_end() -> None:
    rooms = {name: TopicId("news", name) for name in ("a", "b")}
    for name, other in (("a", "b"), ("b", "a")):
        agent = InformationAgent(name, handle=lambda ctx, item, state: {"title": item.title}, output_topic=rooms[name])
        register(agent)
        ravi_django.follow(agent, rooms[other])
    ravi_django.emit(rooms["a"], {"title": "round and round"})

    for _ in range(3 * MAX_HOPS):
        for publication in Publication.objects.filter(done_at=None):
            world.fan_out_run(publication.id)
        run_until_idle()

    assert not Publication.objects.filter(done_at=None).exists()
    assert Publication.objects.count() == 1 + MAX_HOPS
    (failed,) = JournalEntry.objects.filter(kind="log", name="feed.failed").values_list("result", flat=True)
    assert failed["error"]["type"] == "PermanentError"
    assert "in a circle" in failed["error"]["message"]
    assert {run.status for run in Run.objects.all()} == {Status.SUSPENDED}

    run = Run.objects.get(id=JournalEntry.objects.get(kind="log", name="feed.failed").run_id)
    signal(run.id, "new_source_item", {"title": "fresh"})
    publish(run, {"title": "another"})
    run_until_idle()
    assert Publication.objects.count() == 1 + MAX_HOPS + 2, "what is new is told as ever"


@pytest.mark.parametrize("dies", [None, 1, 2, 3])
def test_hops_are_counted_the_same_on_a_replay(dies: Any, clock: FakeClock) -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.emit("news/own", 1)
        await ctx.sleep_until_signal("go", or_message=True)
        await ctx.receive()
        await ctx.emit("news/own", 2)
        await ctx.receive()
        await ctx.emit("news/own", 3)
        await ctx.sleep_until_signal("new_source_item")
        await ctx.emit("news/own", 4)

    code(story)
    run = drive(make_run())
    for hops in (3, 5, 2):
        arrive(run, Message(target=TOPIC, payload=DataPayload(), metadata={"hops": hops}))
    drive(run, dies=dies, written=True)
    if dies:
        take_over(clock, run)
    signal(run, "new_source_item")
    drive(run)

    assert run.status == Status.COMPLETED, run.error
    bodies = Publication.objects.order_by("id").values_list("body", flat=True)
    assert [body["metadata"]["hops"] for body in bodies] == [1, 6, 6, 1]


@pytest.mark.parametrize("dies", [None, 1, 2])
def test_the_refusal_is_recorded(dies: Any, clock: FakeClock) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        try:
            await ctx.emit("news/own", 1)
        except PermanentError as error:
            await ctx.tool("none")
            return str(error)
        return "emitted"

    code(story)
    run = make_run()
    body = Message(target=TOPIC, payload=DataPayload(), metadata={"hops": MAX_HOPS}).model_dump(mode="json")
    InboxMessage.objects.filter(run=run).update(body=body)
    drive(run, dies=dies, written=True)
    if dies:
        take_over(clock, run)

    assert "more than 8 publications" in (run.output or "")
    assert not Publication.objects.exists()
    assert JournalEntry.objects.get(run=run, kind="emit").error["type"] == "PermanentError"  # type: ignore[index]
