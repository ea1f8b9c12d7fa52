"""A fork of a later generation begins with its state and continues as the source would."""

from datetime import timedelta
from typing import Any

import pytest

from ravi_django import register, signal
from ravi_django.agents import InformationAgent, PersonalFeedAgent
from ravi_django.models import InboxMessage, JournalEntry, Run, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import arrive, begun, logged, publish
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, make_run, take_over
from tests.unit.runtime.test_newsrooms import HEARD, NEWS, digest, heard, note

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_fan_out")]

AGENTS = [
    InformationAgent("news", handle=note, items_per_generation=3),
    PersonalFeedAgent("mine", items_per_generation=3),
]
IDS = ["news", "mine"]


def idle(run: Run) -> Run:
    run_until_idle(timeout=BOUND_S)
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.SUSPENDED, None)
    return run


def places(run: Run) -> list[int]:
    """All of the last generation's."""
    rows = JournalEntry.objects.filter(run=run, generation=run.generation).order_by("seq")
    return list(rows.values_list("seq", flat=True))


def ahead(run: Run) -> None:
    """The database's clock was."""
    InboxMessage.objects.filter(run=run).update(created_at=run.created_at + timedelta(days=1))


def replied(run: Run) -> int:
    return JournalEntry.objects.filter(run=run, kind="ask.replied").count()


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_it_goes_on_from_anywhere_with_its_memory(agent: Any) -> None:
    register(agent)
    run = begun(str(agent.id))
    for number in range(7):
        publish(run, digest(1, start=number))
    idle(run)
    assert run.generation >= 2
    taken = places(run)
    for seq in taken:
        forked = drive(world.store_fork(run.id, seq))
        assert (forked.status, forked.error) == (Status.SUSPENDED, None), seq
        past = heard(forked)
        assert past == [f"Item {number}" for number in range(len(past))], "what had come, each once, no note among it"
        publish(forked, digest(5, start=len(past)))
        idle(forked)
        assert heard(forked) == [f"Item {number}" for number in range(len(past) + 5)], "in generations to come too"
        assert replied(forked) == 0, "nobody has asked it"
        if agent is AGENTS[0]:
            assert [seen for _, seen in logged(forked, HEARD)] == list(range(1, len(past) + 6))
    assert len(taken) >= 4


@pytest.mark.parametrize(("again", "dies"), [(False, 1), (True, 2), (True, "end")])
def test_a_digest_goes_on_at_its_place(again: bool, dies: Any, clock: FakeClock) -> None:
    """Also in the fork of a fork, and whatever dies."""
    register(AGENTS[0])
    run = begun(NEWS)
    publish(run, digest(8))
    idle(run)
    first = places(run)[0]
    forked = world.store_fork(run.id, first)
    if again:
        forked = world.store_fork(drive(forked).id, first)
    drive(forked, dies=dies)
    take_over(clock, forked)
    assert logged(forked, HEARD) == logged(idle(run), HEARD) == [[f"Item {number}", number + 1] for number in range(8)]
    assert replied(forked) == 0


def test_what_a_signal_had_brought_is_no_question_of_the_source() -> None:
    register(AGENTS[0])
    run = begun(NEWS)
    signal(run, "new_source_item", digest(4))
    idle(run)
    assert run.generation == 1
    for seq in places(run):
        forked = drive(world.store_fork(run.id, seq))
        assert logged(forked, HEARD) == [[f"Item {number}", number + 1] for number in range(4)]
        assert replied(forked) == 0


def test_a_reader_keeps_its_preferences() -> None:
    register(AGENTS[1])
    run = begun("personal_feed/mine")
    signal(run, "new_feed_item", {"preferences": "cats"})
    for number in range(3):
        publish(run, digest(1, start=number))
    idle(run)
    assert run.generation
    forked = drive(world.store_fork(run.id, places(run)[0]))
    publish(forked, {"title": "Cats"})
    publish(forked, {"title": "Dogs"})
    idle(forked)
    kept = {found["title"]: found["keep"] for found in logged(forked, "feed.curated")}
    assert (kept["Cats"], kept["Dogs"]) == (True, False)


def test_what_the_run_has_told_itself_the_fork_has() -> None:
    """The kept words of others stay as they are."""

    async def work(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("never")

    code(work)
    run = drive(make_run())
    arrive(run, "on", reply_to=str(run.id))
    other = make_run("test/other")
    asked = arrive(run, "what is new?", reply_to=str(other.id), metadata={"run": str(run.id)})
    Run.objects.filter(id=run.id).update(status=Status.PENDING)
    drive(run)
    forked = world.store_fork(run.id, run.next_seq - 1)

    def bodies(run: Run) -> dict[str, Any]:
        return {body["id"]: body for _, body in world.inbox_after(run, 0)}

    of_source = bodies(Run.objects.get(id=run.id))
    mine = bodies(forked)
    assert mine.pop(asked.id) == of_source[asked.id]
    own = [name for name, body in mine.items() if body.get("reply_to")]
    assert len(own) == 1
    assert mine[own[0]] == {**of_source[own[0]], "reply_to": str(forked.id)}
    assert drive(forked).status == Status.SUSPENDED


def test_what_it_began_on_is_there_whatever_the_clocks_say() -> None:
    """The times of messages are the database's, those of entries the worker's."""
    given = []

    async def work(ctx: Any, inbox: Any) -> None:
        given.append(len(inbox))
        await ctx.log("begun")
        await ctx.sleep_until_signal("never")

    code(work)
    run = make_run()
    arrive(run, "and this")
    drive(run)
    ahead(run)
    for seq in places(run):
        assert drive(world.store_fork(run.id, seq)).error is None
    assert set(given) == {2}
