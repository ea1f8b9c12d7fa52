"""What an agent's code, or a change of it, does to its run: its end, and what once doubled an effect or hung."""

import asyncio
import gc
import time

import pytest

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, TransientError
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.gates import Gate, drained
from tests.support.runs import BOUND_S, asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling, phases

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


def died_after_its_started_row(ran):
    code(calling("pay", amount=3), tools=[pay_again(ran, "at_most_once")])
    run = drive(make_run(), dies=2)
    assert (phases(), ran) == (["started"], [3])
    return run


def pay_again(ran, effect):
    @tool(effect=effect)
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    return pay


@pytest.mark.parametrize("gone", [False, True])
def test_a_started_effect_stays_uncertain_when_the_tool_is_made_idempotent_or_is_gone(clock, ran, gone):
    run = died_after_its_started_row(ran)
    code(calling("pay", amount=3), tools=[] if gone else [pay_again(ran, "idempotent")])
    assert (asked(take_over(clock, run)).tool, ran) == ("pay", [3])


def test_a_started_effect_is_known_again_where_the_code_has_moved_it(clock, ran):
    run = died_after_its_started_row(ran)

    async def story(ctx, inbox):
        with ctx.scope("elsewhere"):
            return (await ctx.tool("pay", amount=3)).text

    code(story, tools=[pay_again(ran, "at_most_once")])
    run = take_over(clock, run)
    assert (run.status, run.error["type"], ran) == (Status.BLOCKED, "UncertainEffectError", [3])


def test_a_started_effect_that_the_code_no_longer_asks_for_is_not_forgotten(clock, ran):
    run = died_after_its_started_row(ran)

    async def story(ctx, inbox):
        return "nothing was paid"

    code(story)
    assert asked(take_over(clock, run)).tool == "pay"


def test_a_run_does_not_end_over_an_effect_that_it_did_not_wait_for(clock):
    begun = []

    @tool(effect="at_most_once")
    async def pay() -> str:
        """Pay."""
        begun.append(1)
        await asyncio.Event().wait()
        return "paid"

    async def story(ctx, inbox):
        task = asyncio.create_task(ctx.tool("pay"))
        while not begun:
            await asyncio.sleep(0)
        return f"left behind: {task.done()}"

    code(story, tools=[pay])
    assert asked(drive(make_run())).tool == "pay"


def test_an_interrupt_taken_for_a_value_does_not_complete_a_draining_run(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("hold")
        left = await asyncio.gather(ctx.tool("step", name="a"), ctx.tool("step", name="b"), return_exceptions=True)
        return "; ".join(type(item).__name__ for item in left)

    run = drained(make_run(), story, tools=[step], while_draining=lambda gate: gate.open.set())
    assert (run.status, run.output) == (Status.PENDING, None)


def test_a_run_whose_main_task_waits_for_what_was_unwound_is_given_back(clock):
    async def story(ctx, inbox):
        queue = asyncio.Queue()

        async def produce():
            await queue.put(await ctx.llm([USER]))

        task = asyncio.create_task(produce())
        return (await queue.get()).text + str(task)

    code(story, model=ScriptedModel([TransientError("try later")]))
    begun = time.monotonic()
    run = drive(make_run())
    assert (run.status, run.attempts) == (Status.PENDING, 1)
    assert time.monotonic() - begun < BOUND_S / 2, "it was only ended from outside"


def test_an_argument_that_is_no_json_is_refused_by_its_name(clock):
    code(calling("note", text=object()))
    run = drive(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "InvalidInputError")
    assert "argument 'text' is not JSON" in run.error["message"]


def test_tasks_that_the_agent_leaves_behind_end_with_it(clock):
    ended = []

    async def story(ctx, inbox):
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        async def parent():
            inner = asyncio.create_task(forever())
            await inner

        left = [asyncio.create_task(forever()), asyncio.create_task(parent())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return f"left {len(left)}"

    code(story)
    assert (drive(make_run()).output, ended) == ("left 2", [1, 1])


def test_a_call_that_is_left_open_at_the_agents_end_is_recorded_or_absent_but_never_after_it(clock):
    gate = Gate()

    async def story(ctx, inbox):
        left = asyncio.create_task(ctx.tool("hold"))
        await gate.began.wait()
        return f"done {left.done()}"

    code(story, tools=[gate.tool()])
    run = drive(make_run())
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.completed"]


def test_a_run_that_takes_its_workers_down_is_blocked(clock):
    async def story(ctx, inbox):
        return "never"

    code(story)
    run = make_run()
    for _ in range(conf.MAX_ATTEMPTS):
        drive(run, dies="end")
        clock.advance(conf.LEASE_S + 1)
    drive(run)
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "AgentCrashError")
    assert f"run {run.id} of test/code crashed its worker too often" in run.error["message"]


@pytest.mark.parametrize("in_group", [False, True])
def test_an_agents_own_error_fails_the_run(clock, in_group):
    async def bad(*args):
        raise ValueError("a bug of the site's")

    async def grouped(ctx, inbox):
        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    code(grouped if in_group else bad)
    run = drive(make_run())
    assert (run.status, run.error) == (Status.FAILED, {"type": "ValueError", "message": "a bug of the site's"})
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.failed"]


def test_a_task_that_nobody_awaits_goes_with_the_lease_and_logs_no_error(clock, caplog):
    async def story(ctx, inbox):
        asyncio.get_running_loop().create_task(ctx.sleep_until_signal("go"))
        await ctx.sleep_until_signal("go")

    code(story)
    assert drive(make_run()).status == Status.SUSPENDED
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
