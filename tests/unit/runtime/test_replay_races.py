"""A replay in which a race outside of the journal ends otherwise is blocked or right. It never swaps two calls."""

import asyncio

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ravi_django import register, tool
from ravi_django.models import InboxMessage, JournalEntry, Publication, Run, Status
from tests.support import world
from tests.support.runs import CodeAgent, code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    world.patch(monkeypatch, "STALL_S", 0.2)


@tool
async def count(number: int) -> int:
    """Count."""
    return number


async def child(ctx, inbox):
    """Nothing."""


# By name: one call with a number, and the numbers of such calls that have happened.
CALLS = {
    "emit": lambda ctx, number: ctx.emit("news/topic", {"number": number}),
    "spawn": lambda ctx, number: ctx.spawn("test/child", str(number)),
    "send": lambda ctx, number: ctx.send("test/receiver", str(number)),
    "tool": lambda ctx, number: ctx.tool("count", number=number),
}


def happened(name, run):
    match name:
        case "emit":
            rows = Publication.objects.filter(run_id=run.id).values_list("body", flat=True)
            return sorted(body["payload"]["data"]["number"] for body in rows)
        case "spawn" | "send":
            agent = {"spawn": "test/child", "send": "test/receiver"}[name]
            rows = InboxMessage.objects.filter(run__agent=agent).values_list("body", flat=True)
            return sorted(int(body["payload"]["message"]["content"][0]["text"]) for body in rows)
        case "tool":
            rows = JournalEntry.objects.filter(run=run, kind="tool.call").values_list("request", flat=True)
            return sorted(request["arguments"]["number"] for request in rows)


NUMBERS = 3
orders = st.lists(st.integers(0, 3), min_size=NUMBERS, max_size=NUMBERS)  # how late each branch of a race ends


@pytest.mark.parametrize("name", CALLS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@example(lateness=([0, 1, 2], [2, 1, 0]), dies=3)
@given(lateness=st.tuples(orders, orders), dies=st.integers(1, NUMBERS))
def test_a_race_that_ends_otherwise_on_replay_swaps_nothing(clock, name, lateness, dies):
    Publication.objects.all().delete()
    Run.objects.all().delete()
    leases = iter(lateness)

    async def branch(number, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        return number

    async def story(ctx, inbox):
        late = next(leases)
        for done in asyncio.as_completed([branch(number, late[number]) for number in range(NUMBERS)]):
            await CALLS[name](ctx, await done)

    register(CodeAgent(child, key="child"))
    register(CodeAgent(child, key="receiver"))
    code(story, tools=[count])
    run = drive(make_run(), dies=dies)
    before = happened(name, run)
    run = take_over(clock, run)

    assert run.status in (Status.COMPLETED, Status.BLOCKED)
    if run.status == Status.COMPLETED:
        assert happened(name, run) == list(range(NUMBERS))
    else:
        assert run.error["type"] == "DeterminismError"
        assert happened(name, run) == before
