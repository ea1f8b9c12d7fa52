"""Circles of agents end, whatever their agents do: beginning anew, or handing over, is no new beginning."""

from functools import partial
from typing import Any

import pytest

import ravi_django
from ravi_django import register, signal
from ravi_django.agents import InformationAgent
from ravi_django.kernel import DataPayload, Message
from ravi_django.models import InboxMessage, JournalEntry, Publication, Run, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import NEW_ITEM, TOPIC, arrive
from tests.support.runs import CodeAgent, code, drive, every_death, make_run
from tests.support.world import MAX_HOPS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_fan_out")]


def published(hops: int, text: str = "x") -> Message:
    return Message(target=TOPIC, payload=DataPayload(data={"title": text}), metadata={"hops": hops})


def hops_of_all() -> list[int]:
    return [body["metadata"]["hops"] for body in Publication.objects.order_by("id").values_list("body", flat=True)]


async def _teller(topic: str, ctx: Any, inbox: Any) -> None:
    """Emits the message of the previous generation."""
    if ctx.state is not None:
        await ctx.emit(topic, ctx.state)
    while True:
        for message in inbox:
            if message.is_broadcast:
                await ctx.continue_as_new(dict(message.payload.data))
        await ctx.sleep_until_signal(NEW_ITEM, or_message=True)
        inbox = await ctx.receive()


def test_it_ends_though_they_begin_anew_before_they_emit() -> None:
    for name, other in (("a", "b"), ("b", "a")):
        register(CodeAgent(partial(_teller, f"loop/{other}"), key=name))
        drive(make_run(f"test/{name}"))
        ravi_django.follow(f"test/{name}", f"loop/{name}")
    ravi_django.emit("loop/a", {"title": "seed"})
    for _ in range(2 * MAX_HOPS):
        run_until_idle()
        for publication in Publication.objects.filter(done_at=None):
            world.fan_out_run(publication.id)

    assert Publication.objects.count() == 1 + MAX_HOPS
    (failed,) = Run.objects.filter(status=Status.FAILED)
    assert failed.error is not None and "in a circle" in failed.error["message"]


def test_they_are_counted_the_same_on_a_replay(clock: FakeClock) -> None:
    async def emits(ctx: Any, inbox: Any) -> None:
        if inbox:
            await ctx.continue_as_new()
        await ctx.emit("news/own", 1)
        await ctx.sleep_until_signal("go", or_message=True)
        await ctx.emit("news/own", 2)
        for number in (3, 4):
            await ctx.receive()
            await ctx.emit("news/own", number)
        await ctx.sleep_until_signal("new_source_item")
        await ctx.emit("news/own", 5)

    def story(drive: Any) -> Run:
        code(emits)
        run = make_run()
        arrive(run, published(5))
        drive(run)
        drive(run)
        for hops in (3, 4, 2):
            arrive(run, published(hops))
        drive(run)
        signal(run, "new_source_item")
        return drive(run)

    for run, _ in every_death(clock, story):
        assert (run.status, run.error) == (Status.COMPLETED, None)
        assert hops_of_all() == [6, 6, 5, 5, 1], "a wait that a message ends has given none yet"


@pytest.mark.parametrize("hops", [0, 3])
def test_what_has_come_since_is_a_new_beginning(hops: int) -> None:
    """Else one message from a circle would silence an agent that keeps a sum for ever."""

    async def story(ctx: Any, inbox: Any) -> None:
        if len(inbox) > 1 or ctx.state:
            await ctx.emit("news/own", len(inbox))
        await ctx.sleep_until_signal("go", or_message=True)
        await ctx.continue_as_new({"sum": 1})

    code(story)
    run = make_run()
    arrive(run, published(6))
    drive(run)
    arrive(run, published(hops))
    run.refresh_from_db()
    drive(run)
    drive(run)

    assert hops_of_all() == [7, hops + 1]


def test_who_is_handed_the_run_goes_on_with_the_count() -> None:
    async def other(ctx: Any, inbox: Any) -> None:
        await ctx.emit("news/own", 1)

    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.handoff("test/other", Message(target=ctx.agent_id, payload=DataPayload(), metadata={"hops": 0}))

    code(story)
    register(CodeAgent(other, key="other"))
    run = make_run()
    InboxMessage.objects.filter(run=run).update(body=published(4).model_dump(mode="json"))
    drive(run)
    drive(run)

    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert hops_of_all() == [5]


def test_an_item_that_tells_of_a_publication_is_counted_and_another_is_not() -> None:
    made = InformationAgent("news", handle=lambda ctx, item, state: {"title": item.title}, output_topic=TOPIC)
    register(made)
    run = make_run(str(made.id))
    InboxMessage.objects.filter(run=run).update(body=published(0).model_dump(mode="json"))
    drive(run)
    signal(run, "new_source_item", {"title": "told", "publication": "x", "hops": 4})
    signal(run, "new_source_item", {"title": "a beer", "hops": 40})
    drive(run)
    assert hops_of_all() == [1, 5, 1]
    assert not JournalEntry.objects.filter(run=run, name="feed.failed").exists()


def test_it_is_counted_though_its_message_is_read_in_a_later_generation() -> None:
    async def handle(ctx: Any, item: Any, state: Any) -> dict[str, str]:
        return {"title": item.title}

    made = InformationAgent("news", handle=handle, output_topic=TOPIC, items_per_generation=1)
    register(made)
    run = make_run(str(made.id))
    InboxMessage.objects.filter(run=run).delete()
    drive(run)
    signal(run, "new_source_item", {"publication": "x", "hops": 4, "items": [{"title": "a"}, {"title": "b"}]})
    run_until_idle()

    assert hops_of_all() == [5, 5]


@pytest.mark.parametrize("payload", [{"hops": 40}, {"hops": 2, "publication": "x"}, [2]])
def test_after_a_signal_of_the_sites_code_the_count_starts_again(payload: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("go")
        await ctx.emit("news/own", 1)

    code(story)
    run = make_run()
    signal(run, "go", payload)
    drive(run)

    assert (run.status, hops_of_all()) == (Status.COMPLETED, [1])
