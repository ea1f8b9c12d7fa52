"""Results come back to the code in the order of their rows while they are made, as a replay hands them out."""

import asyncio
import threading

import pytest
from django.db.models import F

from ravi_django import tool
from ravi_django.kernel import ChatMessage, Effect
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import BOUND_S, auntil, code, drive, in_background, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


class Steps:
    """What has become of the tool calls of one worker. `before` and `behind` are awaited around a call's commit."""

    def __init__(self, before=None, behind=None):
        self.before, self.behind = before, behind
        self.committed, self.answered = [], []

    def __call__(self, engine):
        append = engine.appender.append

        async def seeing(lease, entries, *args):
            if (name := _name(entries[-1])) is None:
                return await append(lease, entries, *args)
            if self.before is not None:
                await self.before(name)
            found = await append(lease, entries, *args)
            self.committed.append(name)
            if self.behind is not None:
                await self.behind(name)
            self.answered.append(name)
            return found

        engine.appender.append = seeing


def _name(entry):
    """Of a tool call its own; of the n-th task's model call the n-th letter."""
    if entry.kind == "llm.call":
        return "ab"[int(entry.path[1]) - 1]
    return entry.request["arguments"]["name"] if entry.kind == "tool.call" else None


@pytest.fixture
def won():
    """Who came first, by lease."""
    return []


@tool
async def step(name: str) -> str:
    """Step."""
    return name


async def one(ctx, name):
    return (await ctx.tool("step", name=name)).text


async def race(won, *branches):
    tasks = [asyncio.create_task(branch) for branch in branches]
    won.append([])
    for task in asyncio.as_completed(tasks):
        won[-1].append(await task)


def test_who_was_committed_first_comes_first_though_its_answer_is_later(clock, won):
    async def story(ctx, inbox):
        await race(won, one(ctx, "a"), one(ctx, "b"))

    async def before(name):
        await auntil(lambda: name == "a" or steps.committed == ["a"])

    async def behind(name):
        await auntil(lambda: name == "b" or steps.answered == ["b"])

    steps = Steps(before, behind)
    code(story, tools=[step])
    run = take_over(clock, drive(make_run(), dies="end", setup=steps))
    assert (run.status, won) == (Status.COMPLETED, [["a", "b"], ["a", "b"]])


def test_what_a_transactional_tool_has_committed_comes_first_too(clock, won, monkeypatch):
    on_a_thread = world.tool_on_a_thread

    @tool(effect=Effect.TRANSACTIONAL)
    def write(name: str) -> str:
        """Write."""
        return name

    async def story(ctx, inbox):
        async def a():
            return (await ctx.tool("write", name="a")).text

        await race(won, a(), one(ctx, "b"))

    async def late(*args):
        found = await on_a_thread(*args)
        steps.committed.append("a")
        await auntil(lambda: "b" in steps.answered)
        return found

    async def before(name):
        await auntil(lambda: steps.committed == ["a"])

    steps = Steps(before)
    world.patch(monkeypatch, "tool_on_a_thread", late)
    code(story, tools=[step, write])
    run = take_over(clock, drive(make_run(), dies="end", setup=steps))
    assert (run.status, won) == (Status.COMPLETED, [["a", "b"], ["a", "b"]])


def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody(clock, won):
    """Its row is committed: the code cancels it again in the replay."""

    ended = asyncio.Event()

    async def story(ctx, inbox):
        b, c = [asyncio.create_task(one(ctx, name)) for name in "bc"]
        won.append([await one(ctx, "first")])
        if len(won) == 1:
            await auntil(lambda: "b" in steps.answered)
        b.cancel()
        await asyncio.wait([b])
        won[-1].append(b.cancelled())
        won[-1].append(await one(ctx, "last"))
        ended.set()
        await c

    async def before(name):
        await auntil(lambda: name == "first" or "first" in steps.committed)
        if name == "c":  # its commit is under way all that time
            await ended.wait()

    async def behind(name):
        await auntil(lambda: name != "first" or "b" in steps.answered)

    steps = Steps(before, behind)
    code(story, tools=[step])
    run = take_over(clock, drive(make_run(), dies="end", setup=steps))
    assert run.status == Status.COMPLETED, run.error
    assert won == [["first", True, "last"]] * 2


@pytest.mark.parametrize("kind", ["tool", "model"])
def test_a_hook_that_takes_its_time_lets_no_other_result_overtake(clock, won, kind):
    """A replay tells no hook."""
    overtaken = asyncio.Event()

    class Slow:
        async def on_tool_end(self, call):
            if call.data["path"].startswith("t1"):
                await asyncio.wait([asyncio.ensure_future(overtaken.wait())], timeout=0.2)

        on_llm_end = on_tool_end

    async def story(ctx, inbox):
        async def of(name):
            found = await (one(ctx, name) if kind == "tool" else ctx.llm([ChatMessage.of("user", name)]))
            if name == "b":
                overtaken.set()
            return found if kind == "tool" else found.text

        await race(won, of("a"), of("b"))

    async def before(name):
        await auntil(lambda: name == "a" or steps.committed == ["a"])

    steps = Steps(before)
    echo = ScriptedModel([lambda messages, options: messages[-1].text])
    agent = code(story, tools=[step], model=echo)
    agent.hooks = [Slow()]
    run = take_over(clock, drive(make_run(), dies="end", setup=steps))
    assert (run.status, won) == (Status.COMPLETED, [["a", "b"], ["a", "b"]])


def test_a_long_transaction_holds_up_nobody_though_a_row_is_not_ours(clock):
    """An operator's pause writes one into the journal of a run that goes on."""
    may_end, begun = threading.Event(), threading.Event()

    @tool(effect=Effect.TRANSACTIONAL)
    def write() -> str:
        """Write for long."""
        begun.set()
        assert may_end.wait(BOUND_S)
        return "written"

    async def story(ctx, inbox):
        await ctx.log("begun", {})
        await asyncio.wrap_future(in_background(lambda: theirs.update(next_seq=F("next_seq") + 1)))
        writing = asyncio.create_task(ctx.tool("write"))
        await auntil(begun.is_set)
        try:
            async with asyncio.timeout(20):
                for name in "abc":
                    await asyncio.create_task(one(ctx, name))
        finally:
            may_end.set()
        return (await writing).text

    code(story, tools=[step, write])
    run = make_run()
    theirs = Run.objects.filter(id=run.id)

    assert drive(run).output == "written", run.error


def test_tasks_that_come_one_after_the_other_hold_up_no_replay(clock, monkeypatch):
    """As a tool makes that runs again beside them."""
    world.patch(monkeypatch, "STALL_S", 2.0)
    recorded = asyncio.Event()

    leases = []

    @tool
    async def busy() -> str:
        """Make tasks, when it runs again."""
        while not recorded.is_set():
            await (asyncio.create_task(asyncio.sleep(0)) if len(leases) == 2 else recorded.wait())
        return "done"

    async def story(ctx, inbox):
        leases.append(recorded.clear())
        running = asyncio.create_task(ctx.tool("busy"))
        for name in "abc":
            await one(ctx, name)
        recorded.set()
        return (await running).text

    code(story, tools=[step, busy])
    run = take_over(clock, drive(make_run(), dies=4))
    assert (run.status, run.output) == (Status.COMPLETED, "done"), run.error
