"""Code that changes and code that never ends: patched, log_once, continue_as_new, releases."""

import pytest

from ravi_django import register, signal
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, InvalidInputError, Message
from ravi_django.models import JournalEntry, Status, Turn, WorkerProcess
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.arriving import arrive
from tests.support.runs import CodeAgent, code, drive, every_death, idle, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


def texts(inbox):
    return [getattr(message.payload, "data", None) or message.payload.message.text for message in inbox]


async def before_the_change(ctx, inbox):
    await ctx.tool("step", name="1")
    await ctx.sleep_until_signal("go")
    return "old"


async def after_the_change(ctx, inbox):
    if ctx.patched("better"):
        await ctx.tool("step", name="10")
    else:
        await ctx.tool("step", name="1")
    await ctx.sleep_until_signal("go")
    return "new" if ctx.patched("better") else "old"


def test_old_runs_keep_to_the_old_branch_and_new_ones_take_the_new(step, ran):
    code(before_the_change, tools=[step])
    old = drive(make_run())
    code(after_the_change, tools=[step])
    new = drive(make_run())
    for run in (old, new):
        signal(run.id, "go")
    old, new = drive(old), drive(new)
    assert (old.output, new.output) == ("old", "new")
    assert ran == ["1", "10"]


def test_log_once_leaves_one_row_however_often_the_code_comes_by(clock, step):
    async def story(ctx, inbox):
        for n in range(3):
            await ctx.log_once("begun", {"at": n})
            await ctx.tool("step", name=str(n))
            await ctx.log_once("begun", {"at": n})
        await ctx.sleep_until_signal("go")

    code(story, tools=[step])
    run = make_run()
    drive(run, dies=2)
    take_over(clock, run)
    assert [row.result for row in journal_of(run) if row.name == "begun"] == [{"at": 0}]


@pytest.mark.sqlite
def test_a_run_that_continues_as_new_begins_with_an_empty_journal(clock, step, ran):
    async def story(ctx, inbox):
        number = ctx.state["n"] if ctx.state else 0
        await ctx.tool("step", name=str(number))
        if number < 3:
            await ctx.continue_as_new({"n": number + 1})
        return f"went round {number} times"

    code(story, tools=[step])
    run = idle(make_run())
    assert (run.status, run.output, run.generation) == (Status.COMPLETED, "went round 3 times", 3)
    rows = journal_of(run)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert {row.generation for row in rows} == {0, 1, 2, 3}
    assert max(len([row for row in rows if row.generation == number]) for number in range(4)) <= 4


def test_state_is_json_and_the_run_does_not_continue_with_another_value():
    async def story(ctx, inbox):
        with pytest.raises(InvalidInputError, match="state is not JSON"):
            await ctx.continue_as_new({"a": object()})
        return ctx.state

    code(story)
    run = drive(make_run())
    assert (run.status, run.generation, run.output) == (Status.COMPLETED, 0, "")


def test_another_agent_does_not_get_the_state():
    states = []

    async def other(ctx, inbox):
        states.append(ctx.state)

    async def story(ctx, inbox):
        if ctx.state is None:
            await ctx.continue_as_new({"n": 1})
        states.append(ctx.state)
        await ctx.sleep_until_signal("go", or_message=True)
        [task] = await ctx.receive()
        await ctx.handoff("test/other", answers=task)

    code(story)
    register(CodeAgent(other, key="other"))
    run = drive(drive(make_run()))
    arrive(run, "next")
    idle(run)
    assert states == [{"n": 1}, {"n": 1}, None]


def test_unread_signals_come_along(step):
    async def story(ctx, inbox):
        if inbox:
            await ctx.sleep_until_signal("go")
            await ctx.continue_as_new()
        return await ctx.sleep_until_signal("go")

    code(story)
    run = make_run()
    for number in (1, 2):
        signal(run.id, "go", number)
    idle(run)
    assert (run.status, run.output) == (Status.COMPLETED, "2")


def test_a_worker_that_dies_around_it_loses_no_round(clock, step):
    async def story(ctx, inbox):
        number = ctx.state or 0
        await ctx.tool("step", name=str(number))
        await ctx.tool("step", name=str(number))
        if number < 2:
            await ctx.continue_as_new(number + 1)
        return number

    def rounds(drive):
        run = make_run()
        for _ in range(3):
            drive(run)
        return run

    code(story, tools=[step])
    for run, _ in every_death(clock, rounds):
        assert (run.status, run.output, run.generation) == (Status.COMPLETED, "2", 2)
        assert [row.kind for row in journal_of(run)].count("tool.call") == 6


def test_a_question_asked_of_the_former_generation_is_answered_by_the_next():
    async def answer(ctx, inbox):
        if ctx.state is None:
            await ctx.continue_as_new(inbox[0].model_dump(mode="json"))
        await ctx.reply(Message.model_validate(ctx.state), "from the next")

    async def story(ctx, inbox):
        return (await ctx.ask(AgentId("test", "child"), "hello")).result

    register(CodeAgent(answer, key="child"))
    code(story)
    run = idle(make_run())
    assert run.output == "from the next"


def test_history_goes_on_over_generations(clock):
    from ravi_django.agents import ReActAgent
    from ravi_django.agents.memory.agent_context import ContextConfig
    from ravi_django.testing import ScriptedModel
    from tests.support.world import DjangoHistoryProvider

    class Endless(ReActAgent):
        async def run(self, ctx, inbox):
            again = Message(target=ctx.agent_id, payload=ChatPayload(message=ChatMessage.of("user", "again")))
            answer = await super().run(ctx, inbox or [again])
            if ctx.recorder.lease.run.generation < 2:
                await ctx.continue_as_new()
            return answer

    register(Endless("endless", model=ScriptedModel("yes", loop=True), context=ContextConfig(DjangoHistoryProvider())))
    run = idle(make_run("react/endless"))
    assert run.status == Status.COMPLETED, run.error
    turns = Turn.objects.filter(run=run).order_by("position")
    assert [turn.role for turn in turns] == ["user", "assistant"] * 3
    assert [turn.index for turn in turns] == list(range(6))


def seen(release):
    WorkerProcess.objects.create(name=f"w-{release}", release=release, started_at=world.now(), seen_at=world.now())


def written_by(settings, release, run, function, step):
    settings.RAVI = {**settings.RAVI, "RELEASE": release}
    code(function, tools=[step])
    return drive(run)


async def changed(ctx, inbox):
    await ctx.tool("step", name="10")
    await ctx.sleep_until_signal("go")
    return "changed"


def test_a_mismatch_goes_back_for_a_worker_of_the_release_that_wrote_last(settings, clock, step):
    run = written_by(settings, "r1", make_run(), before_the_change, step)
    assert run.release == "r1"
    signal(run.id, "go")
    seen("r1")
    run = written_by(settings, "r2", run, changed, step)
    assert (run.status, run.for_release, run.release) == (Status.PENDING, "r1", "r1")
    assert world.claim(run.id, "w") is None
    run = written_by(settings, "r1", run, before_the_change, step)
    assert (run.status, run.output) == (Status.COMPLETED, "old")


@pytest.mark.parametrize("is_there", [True, False])
def test_it_is_blocked_when_no_worker_of_that_release_is_there_or_takes_it(settings, clock, step, is_there):
    run = written_by(settings, "r1", make_run(), before_the_change, step)
    signal(run.id, "go")
    if is_there:
        seen("r1")
        run = written_by(settings, "r2", run, changed, step)
        clock.advance(2 * conf.LEASE_S + 1)
    run = written_by(settings, "r2", run, changed, step)
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "DeterminismError")
    assert JournalEntry.objects.filter(run=run, kind="run.blocked").exists()
