"""A tool that waits for a run which it has spawned: no code of it is alive meanwhile, the outcome is its result."""

import pytest

from ravi_django import register, tool
from ravi_django.kernel import AgentId, Message, PauseForChildResult, RunContext, RunHandle
from ravi_django.kernel.messages import ChatMessage, ChatPayload
from ravi_django.models import Ask, HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.cases import case
from tests.support.runs import CodeAgent, beside, code, drive, every_death, make_run
from tests.support.tool_calls import calling, output_of
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)

HELPER = AgentId("test", "helper")


def helper(function):
    register(CodeAgent(function, key="helper"))


async def greets(ctx, inbox):
    await ctx.reply(inbox[0], {"text": f"hello {inbox[0].payload.message.text}"})
    return "the end"


def boot(text="you"):
    return Message(target=HELPER, payload=ChatPayload(message=ChatMessage.of("user", text)))


def delegating(ran, effect="idempotent", *, message=True, timeout=None):
    """A run whose agent calls a tool that spawns the helper and waits for it."""

    @tool(effect=effect)
    async def hire(ctx: RunContext) -> str:
        """Hire."""
        ran.append("hire")
        asked = boot()
        handle = await ctx.spawn(HELPER, asked)
        return PauseForChildResult(handle, asked if message else None, timeout=timeout)

    return code(calling("hire"), tools=[hire])


def rows_of(run):
    return [(row.phase, row.attempt) for row in journal_of(run) if row.kind == "tool.call"]


def after_the_child(agent):
    """The agent's run once its child has been driven to its end."""
    run = drive(make_run(str(agent.id)))
    drive(Run.objects.get(parent=run))
    return drive(run)


@pytest.mark.parametrize(("effect", "message"), [("idempotent", True), ("at_most_once", False)])
def test_what_the_child_comes_to_is_the_tools_result(ran, effect, message):
    helper(greets)
    delegating(ran, effect, message=message)
    run = drive(make_run())
    child = Run.objects.get(parent=run)
    assert (run.status, run.waiting_on[0]["id"]) == (Status.SUSPENDED, str(child.id))
    assert run.waiting_on[0]["kind"] == ("message" if message else "child")
    steps = [frame["content"] for frame in world.events_page(run.id)[0] if frame.get("step") == "paused"]
    (paused,) = [content for content in steps if "tool" in content]
    assert (paused["tool"], paused["child"], paused["attempt"]) == ("hire", str(child.id), 1)

    drive(child)
    run = drive(run)

    assert (run.status, ran) == (Status.COMPLETED, ["hire"])
    assert run.output == "ok: hello you"
    begun = [("started", 1)] if effect == "at_most_once" else []
    assert rows_of(run) == [*begun, ("paused", 1), ("result", 2)]
    assert [row.seq for row in journal_of(run)] == list(range(1, run.next_seq))


@pytest.mark.parametrize(
    ("ending", "words", "effect"),
    [
        ("fails", "test/helper failed: out of paint", "idempotent"),
        ("cancelled", "test/helper was cancelled: no more", "at_most_once"),
    ],
)
def test_any_other_end_is_an_error_with_the_words_of_a_delegation(ran, effect, ending, words):
    async def fails(ctx, inbox):
        raise ValueError("out of paint")

    helper(fails)
    delegating(ran, effect)
    run = drive(make_run())
    if ending == "fails":
        drive(Run.objects.get(parent=run))
    else:
        cancel(Run.objects.get(parent=run).id, "no more")

    run = drive(run)

    assert run.output.startswith(f"error: {words}")
    assert ran == ["hire"]


def test_the_timeout_is_the_one_that_was_said_first(clock, ran):
    helper(greets)
    delegating(ran, "at_most_once", timeout=60)
    drive(make_run(), dies="end")
    clock.advance(40)
    run = drive(Run.objects.get(parent=None))
    assert (run.status, run.waiting_on[0]["until"] is not None) == (Status.SUSPENDED, True)
    clock.advance(21)

    run = drive(run)

    assert run.output.startswith("error: test/helper gave no answer within 60 s; it may still be at work")
    assert (ran, Ask.objects.get().outcome) == (["hire"], "timed_out")


def test_the_time_that_people_take_to_answer_the_child_is_added(clock, ran):
    async def asks(ctx, inbox):
        told = await ctx.ask_human("Sure?")
        return told["text"]

    helper(asks)
    delegating(ran, timeout=60)
    run = drive(make_run())
    child = drive(Run.objects.get(parent=run))
    clock.advance(100)
    world.answer(HumanRequest.objects.get(run=child).id, text="yes")
    run.refresh_from_db()
    if run.status == Status.PENDING:
        run = drive(run)
    drive(child)

    assert drive(run).output == "ok: yes"


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
def test_a_worker_that_dies_anywhere_hires_one_child_and_waits_for_it(clock, ran, effect):
    """An at-most-once tool is uncertain until its pause is recorded."""

    def story(drive):
        ran.clear()
        helper(greets)
        delegating(ran, effect)
        run = drive(make_run())
        for child in Run.objects.filter(parent=run):
            drive(child)
        return run if HumanRequest.objects.filter(run=run).exists() else drive(run)

    uncertain = []
    for run, death in every_death(clock, story):
        if run.status == Status.SUSPENDED:
            uncertain.append(str(death))
            assert (effect, rows_of(run)) == ("at_most_once", [("started", 1)]), death
            continue
        assert (run.status, run.output) == (Status.COMPLETED, "ok: hello you")
        assert (Run.objects.filter(parent=run).count(), Ask.objects.count()) == (1, 1)
        assert rows_of(run)[-2:] == [("paused", 1), ("result", 2)]
    assert bool(uncertain) == (effect == "at_most_once")


def test_a_child_may_have_ended_before_the_pause_and_get_its_message_with_it():
    @tool
    async def hire(ctx: RunContext) -> str:
        """Hire."""
        handle = await ctx.spawn(HELPER, boot())
        await ctx.join(handle)
        return PauseForChildResult(handle)

    @tool
    async def hire_idle(ctx: RunContext) -> str:
        """Hire."""
        return PauseForChildResult(await ctx.spawn(HELPER), boot("there"))

    helper(greets)
    assert after_the_child(code(calling("hire"), tools=[hire])).output == "ok: hello you"
    assert after_the_child(code(calling("hire_idle"), tools=[hire_idle])).output == "ok: hello there"


def test_a_stranger_s_run_is_not_waited_for(django_user_model, ran):
    other = make_run(owner=django_user_model.objects.create_user("bob"))

    @tool
    def hire() -> str:
        """Hire."""
        return PauseForChildResult(RunHandle(str(other.id), HELPER))

    code(calling("hire"), tools=[hire])

    assert drive(make_run()).output == f"error: there is no run {other.id} that this run may wait for"
    assert Ask.objects.count() == 0


def test_a_pause_for_nobody_is_an_error_with_words():
    for pause, words in [
        (PauseForChildResult("x"), "takes the handle that ctx.spawn returned"),
        (PauseForChildResult(RunHandle("x", HELPER)), "no run's id"),
    ]:

        @tool
        def hire(pause=pause) -> str:
            """Hire."""
            return pause

        output = output_of(hire)
        with case(words):
            assert output.startswith("error: ") and words in output


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
def test_a_retry_hires_anew_where_the_tool_may_run_again(clock, ran, effect):
    """The child was cancelled with the failing run. An at-most-once tool is not called again for that."""
    fails = [1]
    helper(greets)
    delegating(ran, effect).run = beside(lambda ctx: ctx.tool("hire"), fails)
    run = drive(make_run())
    world.send_signal(run.id, "go", None)
    run = drive(run)
    assert (run.status, Run.objects.get(parent=run).status) == (Status.FAILED, Status.CANCELLED)
    fails.clear()

    run = drive(world.store_retry(run.id))
    for child in Run.objects.filter(parent=run, status=Status.PENDING):
        drive(child)
    run = drive(run) if run.status != Status.COMPLETED else run

    assert run.status == Status.COMPLETED
    if effect == "idempotent":
        assert (run.output, ran) == ("hello you", ["hire", "hire"])
    else:
        assert (run.output.startswith("test/helper was cancelled"), ran) == (True, ["hire"])
