"""A run's code is at rest when nothing of it goes on: only then comes the next result, and only then it may suspend."""

import asyncio
import time
from functools import partial

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings, strategies as st

from ravi_django import signal, tool
from ravi_django.conf import conf
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import journal_of, warm
from tests.support import world
from tests.support.runs import adrive, auntil, code, drive, make_run, take_over, until
from tests.support.world import Worker

pytestmark = pytest.mark.django_db(transaction=True)

LIMITS = {}  # of the whole process


@tool
async def step(name: str) -> str:
    """Step."""
    return name


@tool
async def slow(name: str) -> str:
    """Step, for longer than a commit takes."""
    await asyncio.sleep(0.01)
    return name


async def nested(depth, call):
    """It takes the loop two turns a level to bring the result up."""
    return (await asyncio.gather(nested(depth - 1, call)))[0] if depth else await call()


async def yielding(times, call):
    found = await call()
    for _ in range(times):
        await asyncio.sleep(0)
    return found


def racing(far):
    """A run whose second result comes behind all that follows from the first."""
    leases = []

    @tool
    async def late() -> str:
        """Wait for the other call."""
        await auntil(lambda: leases[0])
        return "late"

    async def story(ctx, inbox):
        leases.append(heard := [])

        async def branch(found):
            heard.append((await found).text)

        await asyncio.gather(branch(far(partial(ctx.tool, "step", name="early"))), branch(ctx.tool("late")))
        return (await ctx.tool("step", name=" ".join(heard))).text

    code(story, tools=[step, late])
    return make_run()


@pytest.mark.parametrize("far", [partial(nested, 40), partial(yielding, 100)])
def test_the_next_result_comes_when_what_follows_from_the_one_before_is_over(clock, far):
    run = take_over(clock, drive(racing(far), dies="end"))
    assert (run.status, run.output) == (Status.COMPLETED, "early late"), run.error


def test_a_hosts_loop_that_hides_what_is_ready_is_given_some_turns(clock):
    run = racing(partial(nested, 20))

    async def main():
        await adrive(run, dies="end")
        clock.advance(conf.LEASE_S + 1)
        await adrive(run)

    try:
        uvloop.run(main())
    finally:
        warm.close()

    run.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, "early late"), run.error


def test_a_workers_loop_is_asyncios_whatever_the_site_has_chosen(monkeypatch):
    monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)

    async def story(ctx, inbox):
        return type(asyncio.get_running_loop()).__name__

    code(story)
    run = make_run()
    worker = Worker()
    try:
        worker.hint(run.id)
        until(lambda: Run.objects.get(id=run.id).is_terminal)
    finally:
        worker.close()

    run.refresh_from_db()
    assert run.output == asyncio.SelectorEventLoop.__name__


async def wait_in_vain(awaitable):
    async with asyncio.timeout(0.05):
        await awaitable


@pytest.mark.parametrize(
    "wait",
    [
        lambda ctx: yielding(25, partial(asyncio.sleep, 0)),
        lambda ctx: asyncio.sleep(0.05),
        lambda ctx: asyncio.to_thread(time.sleep, 0.05),
        lambda ctx: asyncio.wait([asyncio.create_task(ctx.sleep_until_signal("never"))], timeout=0.05),
        lambda ctx: asyncio.gather(wait_in_vain(ctx.sleep_until_signal("never")), return_exceptions=True),
    ],
    ids=["turns", "sleep", "thread", "wait", "timeout"],
)
def test_a_run_is_not_suspended_in_the_middle_of_its_work(wait, ran, monkeypatch):
    world.patch(monkeypatch, "TEST_GRACE_S", 5.0)

    @tool
    async def notify() -> str:
        """Notify."""
        ran.append("notified")
        return "ok"

    async def story(ctx, inbox):
        async def work():
            await ctx.tool("step", name="a")
            await wait(ctx)
            await ctx.tool("notify")

        await asyncio.gather(work(), ctx.sleep_until_signal("go"))
        return "done"

    code(story, tools=[step, notify])
    run = drive(make_run())
    assert (run.status, ran) == (Status.SUSPENDED, ["notified"])

    signal(run.id, "go")
    assert drive(run).output == "done", (run.status, run.error, run.waiting_on)
    assert ran == ["notified"]


async def through_slots(ctx):
    slots = asyncio.Semaphore(1)

    async def one():
        async with slots:
            await ctx.sleep_until_signal("go")

    await asyncio.gather(one(), one())


async def through_a_queue(ctx):
    queue = asyncio.Queue()

    async def take():
        await queue.get()

    async def put():
        await ctx.sleep_until_signal("go")
        queue.put_nowait(None)

    await asyncio.gather(take(), put())


async def through_asyncio(ctx):
    async def parked():
        await ctx.sleep_until_signal("go")

    tasks = [asyncio.create_task(parked()) for _ in range(4)]

    async def first():
        await asyncio.wait([tasks[0]], return_when=asyncio.FIRST_COMPLETED)

    async def next_one():
        for task in asyncio.as_completed(tasks[1:2]):
            await task

    async def shielded():
        await asyncio.shield(tasks[2])

    async def steps():
        await tasks[3]
        yield 1

    async def generated():
        async for _ in steps():
            pass

    async with asyncio.TaskGroup() as group:
        for branch in (first, next_one, shielded, generated):
            group.create_task(branch())
        await asyncio.gather(asyncio.gather(*tasks), parked())


@pytest.mark.parametrize("wait", [through_slots, through_a_queue, through_asyncio])
def test_branches_that_wait_for_each_other_let_the_run_suspend(wait):
    code(lambda ctx, inbox: wait(ctx))
    assert drive(make_run()).status == Status.SUSPENDED


def test_what_takes_longer_than_the_grace_is_cut_and_made_again(monkeypatch, caplog):
    caplog.set_level("INFO", "ravi.engine")
    monkeypatch.setitem(LIMITS, "models", asyncio.Semaphore(0))

    async def story(ctx, inbox):
        async def limited():
            async with LIMITS["models"]:
                return (await ctx.tool("step", name="a")).text

        return (await asyncio.gather(limited(), ctx.sleep_until_signal("go")))[0]

    code(story, tools=[step])
    run = drive(make_run())
    assert run.status == Status.SUSPENDED
    (cut,) = [record for record in caplog.records if getattr(record, "action", "") == "run.cut"]
    assert str(run.id) in cut.getMessage() and "limited" in cut.getMessage()

    LIMITS["models"].release()
    signal(run.id, "go")
    assert drive(run).output == "a"


def test_a_run_that_stays_awake_is_not_cut(monkeypatch, caplog):
    async def story(ctx, inbox):
        async def limited():
            with ctx.stay_awake():
                await asyncio.sleep(0.2)  # longer than the grace of a test's engine
            await ctx.tool("step", name="a")

        await asyncio.gather(limited(), ctx.sleep_until_signal("go"))

    code(story, tools=[step])
    run = drive(make_run())
    assert run.status == Status.SUSPENDED
    assert [row.name for row in journal_of(run) if row.kind == "tool.call"] == ["step"]


def test_a_replay_waits_as_long_as_the_first_execution_did(clock, monkeypatch):
    world.patch(monkeypatch, "STALL_S", 0.1)

    @tool
    async def last() -> str:
        """End after the step b: on a replay its result waits for that one."""
        await LIMITS["b"].wait()
        return "last"

    async def story(ctx, inbox):
        LIMITS["b"] = asyncio.Event()

        async def polling():
            await asyncio.sleep(0.5)
            clock.advance(5)
            await ctx.tool("step", name="b")
            LIMITS["b"].set()

        async def waiting():
            await ctx.tool("step", name="a")
            return (await ctx.tool("last")).text

        return (await asyncio.gather(polling(), waiting()))[1]

    code(story, tools=[step, last])
    assert take_over(clock, drive(make_run(), dies="end")).output == "last"


# A tree of code: a leaf is a call, turns of the loop or a sleep, the parts of a node run one by one or at once.
LEAVES = st.sampled_from(["call", "slow call", "far call", "deep call", "turns", "sleep"])
TREES = st.recursive(
    LEAVES,
    lambda part: st.tuples(st.sampled_from(["each", "gather", "group"]), st.lists(part, min_size=2, max_size=4)),
    max_leaves=8,
)


async def walk(ctx, tree, place, heard, shared):
    """Heard are the calls whose result has come. Each call tells of them: the journal's check compares them."""
    if "call" in tree:
        call = partial(ctx.tool, "slow" if "slow" in tree else "step", name=f"{place} after {heard if shared else ''}")
        await (nested(20, call) if "deep" in tree else yielding(30 if "far" in tree else 0, call))
        heard.append(place)
    elif tree in ("turns", "sleep"):
        await (yielding(30, partial(asyncio.sleep, 0)) if tree == "turns" else asyncio.sleep(0.003))
    else:
        kind, parts = tree

        def branch(number):
            return walk(ctx, parts[number], f"{place}{number}", heard, shared)

        if kind == "each":
            for number in range(len(parts)):
                await branch(number)
        elif kind == "gather":
            await asyncio.gather(*map(branch, range(len(parts))))
        else:
            async with asyncio.TaskGroup() as group:
                for number in range(len(parts)):
                    group.create_task(branch(number))


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(tree=TREES)
def test_a_replay_goes_as_the_first_execution_did_wherever_that_died(clock, tree):
    shared = "sleep" not in str(tree)  # what a branch has heard behind a sleep is no matter of the journal
    leases = []

    async def story(ctx, inbox):
        leases.append([])
        await ctx.tool("step", name="first")
        await walk(ctx, tree, "t", leases[-1], shared)
        return " ".join(sorted(leases[-1]))

    code(story, tools=[step, slow])
    rows = str(tree).count("call") + 1
    for dies in range(1, rows + 1):
        leases.clear()
        run = drive(make_run(), dies=dies, written=True)
        take_over(clock, run, dies="end")

        run = take_over(clock, run)

        died, first, replayed = leases
        assert (run.status, run.output) == (Status.COMPLETED, " ".join(sorted(first))), run.error
        assert JournalEntry.objects.filter(run=run, kind="tool.call").count() == rows
        if shared:
            assert first[: len(died)] == died
            assert first == replayed
