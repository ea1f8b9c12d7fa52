"""Runs that wait for a paused one: its slot may be theirs, and then nobody would ever go on."""

from contextlib import suppress

import pytest

from ravi_django import register
from ravi_django.kernel import AgentId, RunHandle, SpawnDeniedError
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Ask, AskKind, Run, Status, uuid7
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, every_death, in_background, leased, make_run, on_postgresql
from tests.support.trees import TAKER, ended, is_paused, paused, root, spawn, suspended
from tests.support.world import Entry

pytestmark = pytest.mark.django_db(transaction=True)

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


def asks(lease, target):
    """Wait for its end. Returns the paused runs that go on because of it."""
    cell = Ask(id=uuid7(), asker_id=lease.run_id, generation=0, path=uuid7().hex, target_id=target.id)
    resumed = []
    world.open_ask(lease, [Entry("ask", cell.path, phase="started")], ask=cell, message=None, resumed=resumed)
    return resumed


def kinds_of(run):
    return [entry.kind for entry in journal_of(run)]


def a_pair():
    """A parent that joins a HIGH child, and that one the LOW child that it has paused."""

    async def low(ctx, inbox):
        return "low"

    async def high(ctx, inbox):
        handle = RunHandle(inbox[0].payload.message.text, AgentId("test", "low"))
        return (await ctx.join(handle)).result

    async def story(ctx, inbox):
        low = await ctx.spawn(AgentId("test", "low"), "go", priority=LOW)
        high = await ctx.spawn(AgentId("test", "high"), low.run_id, priority=HIGH)
        return (await ctx.join(high)).result

    register(CodeAgent(low, key="low"))
    register(CodeAgent(high, key="high"))
    code(story)
    return make_run(budget={"max_agents": 2})


def test_a_child_may_wait_for_the_run_that_it_has_paused(clock):
    """Whichever worker dies, it is resumed once."""

    def story(drive):
        run = drive(a_pair())
        low, high = Run.objects.filter(parent=run).order_by("id")
        assert is_paused(low)
        drive(high)
        run_until_idle()
        return run

    for run, _ in every_death(clock, story):
        low = Run.objects.filter(parent=run).earliest("id")
        assert (run.status, run.output) == (Status.COMPLETED, "low")
        assert [kind for kind in kinds_of(low) if "paused" in kind] == ["run.paused", "run.unpaused"]


def test_who_waits_over_others_counts_too():
    lease = root(limit=3)
    low, middle = spawn(lease, LOW), leased(spawn(lease, NORMAL))
    high = leased(spawn(lease, HIGH, TAKER))
    assert is_paused(low)
    Ask.objects.create(asker_id=middle.run_id, path="before", target_id=low.id)

    assert asks(high, middle.run) == [low.id]

    assert not is_paused(low)
    assert world.slots_live(lease.run_id) == 4  # as after an operator's word
    lease = root(limit=2)
    low, high = spawn(lease, LOW), leased(spawn(lease, HIGH, TAKER))
    assert asks(high, lease.run) == []  # of its parent, which then waits for the paused one
    assert asks(lease, low) == [low.id]


def test_a_run_stays_paused_though_those_above_it_wait_for_it():
    """They have slots of their own; a parent that joins all its children takes no pause back."""
    lease = root(limit=2)
    low = spawn(lease, LOW)
    high = leased(spawn(lease, HIGH, TAKER))

    assert asks(lease, low) == []

    assert is_paused(low)
    ended(high)
    assert not is_paused(low)
    spawn(lease, HIGH, TAKER)  # so that the urgent one of several delegations goes first
    assert is_paused(low)


def test_a_wait_with_an_outcome_resumes_nobody():
    lease = root(limit=2)
    low = spawn(lease, LOW)
    high = leased(spawn(lease, HIGH, TAKER))
    Ask.objects.create(asker_id=low.id, path="before", target_id=high.run_id)

    assert asks(high, low) == []

    assert Ask.objects.get(asker_id=high.run_id).outcome == AskKind.TARGET_FAILED  # a circle
    assert is_paused(low)


def test_a_run_that_another_waits_for_does_not_give_way():
    lease = root(limit=4)
    needed, asker, other = spawn(lease, LOW), leased(spawn(lease, HIGH)), spawn(lease, NORMAL)
    asks(asker, needed)
    suspended(asker)

    spawn(lease, HIGH, TAKER)
    with pytest.raises(SpawnDeniedError, match="none that could be paused"):
        spawn(lease, HIGH, TAKER)

    assert [run.id for run in paused(lease)] == [other.id]
    spawner = leased(spawn(lease := root(limit=3), NORMAL))
    asks(spawner, spawn(lease, LOW))
    with pytest.raises(SpawnDeniedError, match="none that could be paused"):
        spawn(spawner, HIGH, TAKER)


@on_postgresql
def test_of_a_wait_and_a_pause_at_once_neither_is_lost():
    for _ in range(15):
        lease = root(limit=3)
        low, asker = spawn(lease, LOW), leased(spawn(lease, HIGH))

        waiting = in_background(asks, asker, low)
        pausing = in_background(_tries, lease)
        waiting.result(BOUND_S), pausing.result(BOUND_S)

        assert not is_paused(low)


def _tries(lease):
    with suppress(SpawnDeniedError):
        spawn(lease, HIGH, TAKER)
