"""What newsrooms read: bursts, backlogs in parts with a state, and large messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ravi_django import register, signal
from ravi_django.agents import InformationAgent, PersonalFeedAgent
from ravi_django.kernel import AgentId, DataPayload, Message
from ravi_django.models import InboxMessage, JournalEntry, Run, Signal, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import feeds, world
from tests.support.arriving import arrive, begun, logged, most_rows, publish
from tests.support.cases import sizes
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, every_death, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_fan_out")]

HEARD = "heard"
NEWS, MINE = "information/news", "personal_feed/mine"


async def note(ctx: Any, item: Any, state: dict[str, Any]) -> None:
    state["seen"] = state.get("seen", 0) + 1
    await ctx.log(HEARD, [item.title, state["seen"]])


def reads(address: str = NEWS, most: int | None = None) -> None:
    """Register either of the two, which does nothing with an item but to log its title."""
    limit = {"items_per_generation": most} if most else {}
    agent = InformationAgent("news", handle=note, **limit) if address == NEWS else PersonalFeedAgent("mine", **limit)
    if most:
        agent.inbox_limit = most
    register(agent)


@pytest.fixture(params=[NEWS, MINE])
def address(request: Any) -> str:
    reads(request.param)
    return str(request.param)


def digest(count: int, start: int = 0, text: str = "") -> dict[str, Any]:
    return {"items": [{"title": f"Item {number}", "text": text} for number in range(start, start + count)]}


def titles(count: int) -> list[str]:
    return [f"Item {number}" for number in range(count)]


def heard(run: Run) -> list[str]:
    return [*(found[0] for found in logged(run, HEARD)), *(found["title"] for found in logged(run, "feed.curated"))]


def unread(run: Run) -> int:
    return Signal.objects.filter(run=run, consumed_at=None).count() + feeds.announced(run)


def idle(run: Run) -> Run:
    """Drive all there is; the run waits then, with nothing unread."""
    run_until_idle(timeout=BOUND_S)
    run.refresh_from_db()
    assert (run.status, run.error, unread(run)) == (Status.SUSPENDED, None, 0)
    return run


@contextmanager
def loads() -> Iterator[list[int]]:
    """How many messages each look at the inbox has read."""
    found: list[int] = []

    def counting(verb: str, count: Any) -> None:
        read = getattr(world, verb)

        def reading(*args: Any) -> Any:
            result = read(*args)
            found.append(count(result))
            return result

        world.patch(patch, verb, reading)

    with pytest.MonkeyPatch.context() as patch:
        counting("some_after", lambda result: len(result[0]))
        counting("inbox_after", len)
        yield found


# ------------------------------------------------------------------------------------------- bursts and backlogs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("burst", sizes(25, 60))
def test_deliveries_in_bursts_leave_no_signal_behind(address: str, burst: int) -> None:
    run = begun(address)
    for start in range(0, 3 * burst, burst):
        for number in range(start, start + burst):
            publish(run, {"title": f"Item {number}"})
        idle(run)
    assert heard(run) == titles(3 * burst)
    assert most_rows(run) <= 3 * 20 + 10

    for count in (5, 30):  # what one begins with has none left either
        run = make_run(address)
        InboxMessage.objects.filter(run=run).delete()
        for number in range(count):
            publish(run, {"title": f"Item {number}"}, woken=number > 0)
        assert len(heard(idle(run))) == count


def test_one_commit_reads_the_signals_of_a_burst() -> None:
    reads(MINE)
    run = begun(MINE)
    for number in range(15):
        publish(run, {"title": f"Item {number}"})
    drive(run)
    assert len(heard(run)) == 15
    assert JournalEntry.objects.filter(run=run, kind="signal").count() == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("address", [NEWS, MINE])
def test_a_backlog_costs_in_proportion_to_its_length(address: str) -> None:
    reads(address, 5)
    read, most = {}, 0
    for count in (15, 60):
        run = begun(address)
        for number in range(count):
            publish(run, digest(5, start=5 * number))
        with loads() as found:
            idle(run)
        assert (heard(run), run.generation) == (titles(5 * count), count // 5)
        read[count], most = sum(found), max(most, *found)

    assert most <= 5 + 1, "so many, and the one that its run began on"
    assert read[60] < 5 * read[15]


@pytest.mark.parametrize("size", [1, 20])
def test_a_message_of_many_bytes_is_read_alone(size: int) -> None:
    reads()
    run = begun(NEWS)
    for number in range(6):
        words = " ".join(str(place * (number + 7) ** 5) for place in range(size * 400))
        publish(run, digest(20, start=20 * number, text="x") | {"words": words})
    with loads() as found:
        idle(run)
    assert heard(run) == titles(120)
    assert max(found[1:]) > 3 if size == 1 else max(found[1:]) == 1


@pytest.mark.parametrize("by", ["message", "signal"])
def test_whatever_dies_none_is_lost_and_none_comes_twice(by: str, clock: FakeClock) -> None:
    reads(most=2)

    def story(drive: Any) -> Run:
        run = begun(NEWS)
        publish(run, digest(1))
        if by == "message":
            publish(run, digest(3, start=1))
        else:
            signal(run.id, "new_source_item", digest(3, start=1))
        publish(run, digest(1, start=4))
        drive(run)
        publish(run, digest(1, start=5))
        while drive(run).status == Status.PENDING:
            pass
        return run

    for run, _ in every_death(clock, story):
        assert (run.status, run.error, unread(run)) == (Status.SUSPENDED, None, 0)
        found = logged(run, HEARD)
        assert [seen for _, seen in found] == [1, 2, 3, 4, 5, 6], "with its memory"
        assert (found == [[title, n] for n, title in enumerate(titles(6), 1)]) or by == "signal", "in order"
        assert sorted(title for title, _ in found) == titles(6)


def test_messages_and_signals_without_each_other_are_read_to_the_last_one() -> None:
    reads(most=3)
    run = begun(NEWS)
    for number in range(10):
        arrive(run, {"title": f"Item {number}"})
    assert heard(idle(run)) == titles(10)

    reads(MINE, 3)
    run = begun(MINE)
    for number in range(10):
        signal(run, "new_feed_item", {"preferences": f"number {number}"})
    assert idle(run).generation == 3
    assert [found["preferences"] for found in logged(run, "feed.preferences")] == [f"number {n}" for n in range(10)]


# ------------------------------------------------------------------------------------------- large messages


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("address", "by"), [(NEWS, "message"), (NEWS, "signal"), (MINE, "message")])
def test_a_message_of_thousands_is_cut_and_ends_a_generation(address: str, by: str) -> None:
    reads(address)
    run = begun(address)
    for data in (digest(2000), {"title": "behind"}):
        if by == "message":
            publish(run, data)
        else:
            signal(run.id, "new_source_item", data)
    idle(run)

    assert (heard(run), run.generation) == ([*titles(200), "behind"], 1)
    assert [(found["items"], found["left_out"]) for found in logged(run, "feed.cut")] == [(2000, 1800)]


def test_an_answer_is_not_torn_apart() -> None:
    reads(MINE, 2)

    async def asker(ctx: Any, inbox: Any) -> Any:
        message = Message(target=AgentId.parse(MINE), payload=DataPayload(data=digest(5)))
        return len((await ctx.ask(AgentId.parse(MINE), message)).result["items"])

    code(asker)
    run = make_run()
    run_until_idle()

    run.refresh_from_db()
    child = Run.objects.get(parent=run)
    assert (run.output, child.status, child.generation) == ("5", Status.COMPLETED, 0)
