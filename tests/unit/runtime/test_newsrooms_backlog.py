"""What a newsroom has left unread: read a part at a time, with one note of what came before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ravi_django import register, signal
from ravi_django.agents import InformationAgent, PersonalFeedAgent
from ravi_django.kernel import AgentId, DataPayload, Message
from ravi_django.models import InboxMessage, JournalEntry, Run, Signal, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import arrive, logged, publish
from tests.support.patience import BOUND_S
from tests.support.runs import drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

HEARD = "heard"
ADDRESS = "information/news"


@pytest.fixture(autouse=True)
def _no_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint")


async def note(ctx: Any, item: Any, state: dict[str, Any]) -> None:
    state["seen"] = state.get("seen", 0) + 1
    await ctx.log(HEARD, [item.title, state["seen"]])


AGENTS, IDS = [InformationAgent("news", handle=note), PersonalFeedAgent("mine")], ["news", "mine"]


def begun(address: str = ADDRESS) -> Run:
    run = make_run(address)
    body = Message(target=AgentId.parse(address), payload=DataPayload()).model_dump(mode="json")
    InboxMessage.objects.filter(run=run).update(body=body)
    return drive(run)


def digest(count: int, start: int = 0, text: str = "") -> dict[str, Any]:
    return {"items": [{"title": f"Item {number}", "text": text} for number in range(start, start + count)]}


def heard(run: Run) -> list[str]:
    return [*(found[0] for found in logged(run, HEARD)), *(found["title"] for found in logged(run, "feed.curated"))]


def carried(run: Run) -> list[InboxMessage]:
    """All that earlier generations have left for later ones."""
    rows = InboxMessage.objects.filter(run=run, id__gt=run.inbox_from)
    return [row for row in rows if "ravi.carried" in row.body["metadata"]]


@contextmanager
def loads() -> Iterator[list[int]]:
    """How many messages each look at the inbox has read."""
    found: list[int] = []

    def counting(read: Any, count: Any) -> Any:
        def reading(*args: Any) -> Any:
            result = read(*args)
            found.append(count(result))
            return result

        return reading

    with pytest.MonkeyPatch.context() as patch:
        world.patch(
            patch, "load_with_facts", counting(world.load_with_facts, lambda result: len(result[0].unread.messages))
        )
        world.patch(patch, "some_after", counting(world.some_after, lambda result: len(result[0])))
        world.patch(patch, "inbox_after", counting(world.inbox_after, len))
        yield found


# ------------------------------------------------------------------------------------------- work


@pytest.mark.timeout(120)
@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_a_backlog_costs_in_proportion_to_its_length(agent: Any) -> None:
    agent.items_per_generation = agent.inbox_limit = 5
    register(agent)
    read, most = {}, 0
    for count in (15, 60):
        run = begun(str(agent.id))
        for number in range(count):
            publish(run, digest(5, start=5 * number))
        with loads() as found:
            run_until_idle(timeout=BOUND_S)
        run.refresh_from_db()
        assert heard(run) == [f"Item {number}" for number in range(5 * count)]
        assert (run.status, run.error, run.generation) == (Status.SUSPENDED, None, count)
        read[count], most = sum(found), max(most, *found)

    assert most <= 5 + 1, "so many, and the one that its run began on"
    assert read[60] < 5 * read[15]


@pytest.mark.parametrize("size", [1, 20])
def test_a_message_of_many_bytes_is_read_alone(size: int) -> None:
    register(InformationAgent("news", handle=note))
    run = begun()
    for number in range(6):
        words = " ".join(str(place * (number + 7) ** 5) for place in range(size * 400))
        publish(run, digest(20, start=20 * number, text="x") | {"words": words})
    with loads() as found:
        run_until_idle(timeout=BOUND_S)

    assert heard(run) == [f"Item {number}" for number in range(120)]
    assert max(found[1:]) > 3 if size == 1 else max(found[1:]) == 1


def test_what_is_left_of_a_generation_is_one_note() -> None:
    register(InformationAgent("news", handle=note, items_per_generation=2))
    run = begun()
    for number in range(6):
        publish(run, digest(4, start=4 * number))
    unread = []
    while run.status != Status.SUSPENDED or run.generation < 12:
        drive(run)
        unread.append(len(carried(run)))
        (kept,) = InboxMessage.objects.filter(run=run, message_id=world.INBOXES_CARRIED)
        rows = JournalEntry.objects.filter(run=run, name=HEARD, generation__lt=run.generation)
        assert kept.body["payload"]["data"] == {"seen": rows.count()}

    assert unread and set(unread) == {1}
    assert InboxMessage.objects.filter(run=run).count() == 1 + 6 + 1, "what it began on, what came, and the note"


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 5, "end"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_whatever_dies_none_is_lost_and_none_comes_twice(after: int, at: Any, written: bool, clock: FakeClock) -> None:
    register(InformationAgent("news", handle=note, items_per_generation=2))
    run = begun()
    for number in range(4):
        publish(run, digest(1, start=number))
    publish(run, digest(3, start=4))
    publish(run, digest(1, start=7))
    for _ in range(after):  # generations before the one whose worker dies
        drive(run)
    drive(run, dies=at, written=written)
    publish(run, digest(1, start=8))
    take_over(clock, run)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.error) == (Status.SUSPENDED, None)
    assert logged(run, HEARD) == [[f"Item {number}", number + 1] for number in range(9)], "in order, with its memory"
    assert not Signal.objects.filter(run=run, consumed_at=None).exists()
    assert len(carried(run)) == 1


def test_messages_without_a_signal_are_read_to_the_last_one() -> None:
    register(InformationAgent("news", handle=note, items_per_generation=3))
    run = begun()
    for number in range(10):
        arrive(run, {"title": f"Item {number}"})
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, heard(run)) == (Status.SUSPENDED, [f"Item {number}" for number in range(10)])


# ------------------------------------------------------------------------------------------- runs of before


@pytest.mark.parametrize("dies", [None, 1, 2, "end"])
@pytest.mark.parametrize("behind", [1, 30])
def test_a_run_of_before_goes_on_where_it_was(behind: int, dies: Any, clock: FakeClock) -> None:
    """Its notes are behind the unread messages, one for each generation."""
    register(InformationAgent("news", handle=note, items_per_generation=4))
    run = make_run(ADDRESS)
    InboxMessage.objects.filter(run=run).delete()
    own = AgentId.parse(ADDRESS)
    publish(run, digest(9), woken=False)
    for number in range(behind):
        publish(run, digest(1, start=9 + number), woken=False)
    for seen in (2, 4):  # each of them at the place that it had come to
        metadata = {"ravi.carried": str(run.id), "ravi.place": seen}
        arrive(run, Message(target=own, sender=own, payload=DataPayload(data={"seen": seen}), metadata=metadata))
    Run.objects.filter(id=run.id).update(generation=2)
    drive(run, dies=dies, written=True)
    if dies:
        take_over(clock, run)
    run_until_idle()

    run.refresh_from_db()
    expected = [[f"Item {number}", number + 1] for number in range(4, 9 + behind)]
    assert logged(run, HEARD) == expected
    assert (run.status, run.error) == (Status.SUSPENDED, None)


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_what_comes_one_at_a_time_is_read_in_any_generation(agent: Any) -> None:
    """One begins on the note alone: what comes later is no part of what it began on, on no replay."""
    agent.items_per_generation = agent.inbox_limit = 3
    register(agent)
    run = begun(str(agent.id))
    for number in range(12):
        publish(run, digest(1, start=number))
        run_until_idle()
        run.refresh_from_db()
        assert (run.status, run.error) == (Status.SUSPENDED, None)

    assert heard(run) == [f"Item {number}" for number in range(12)]


def test_signals_that_bring_no_message_are_no_reason_to_grow_either() -> None:
    register(PersonalFeedAgent("mine", items_per_generation=3))
    run = begun("personal_feed/mine")
    for number in range(10):
        signal(run, "new_feed_item", {"preferences": f"number {number}"})
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.generation) == (Status.SUSPENDED, 3)
    assert [found["preferences"] for found in logged(run, "feed.preferences")] == [f"number {n}" for n in range(10)]
