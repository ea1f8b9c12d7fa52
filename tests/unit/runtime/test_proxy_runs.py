"""Agents written as generators, on durable rows: questions, children, crashes at every append, requests apart."""

import pytest

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.flow import (
    BaseAgentProxy,
    ChatOutput,
    FinishAgentResult,
    PauseForChildResult,
    SubagentCall,
    ToolCall,
    TurnEnd,
    WaitForInput,
)
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, AgentNotFoundError, PermanentError, ToolUseBlock
from ravi_django.models import HumanRequest, Run, Session, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import CodeAgent, around_append, asked, code, drive, every_death, idle, make_run

pytestmark = pytest.mark.django_db(transaction=True)

GENERATOR = "agent/generator"


def generator(function, **options):
    """Register a generator function of (self, prompt) as the agent `agent/generator`."""
    cls = type("Generator", (BaseAgentProxy,), {"next_turn": function})
    return register(cls("generator", **options))


def the_run(**fields):
    return make_run(GENERATOR, **fields)


def rows(run, *kinds):
    return [row for row in journal_of(run) if row.kind in kinds and row.phase == "result"]


def texts(frames, *types):
    return [frame for frame in frames if frame["type"] in types]


def frames_of(run):
    return world.events_page(run.tree_id)[0]


async def asks_for_a_name(self, prompt):
    yield ChatOutput("Wel")
    yield ChatOutput("come. ")
    told = yield WaitForInput("What is your name?")
    yield ChatOutput(f"I note {told.text}. ")
    again = yield WaitForInput("And your town?", choices=["Bern", "Basel"], free_text=False, context="For the parcel.")
    yield TurnEnd(f"{told.text} of {again.text}, said {told.by or 'somebody'} ({prompt.text})")


def test_a_yielded_question_suspends_the_run_and_what_is_said_streams_at_once_and_is_recorded_once(ann):
    generator(asks_for_a_name)
    run = drive(the_run(text="hello", owner=ann))
    world.answer(asked(run).id, text="Ada", by=ann)
    run = drive(run)
    second = asked(run)
    assert (second.text, second.choices) == ("And your town?", ["Bern", "Basel"])
    assert second.details["context"] == "For the parcel."
    world.answer(second.id, text="Bern")

    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "Ada of Bern, said ann (hello)")
    assert HumanRequest.objects.filter(run=run).count() == 2
    frames = frames_of(run)
    assert "".join(frame["text"] for frame in texts(frames, "text.delta")) == "Welcome. I note Ada. "
    assert [frame["content"][0]["text"] for frame in texts(frames, "completion")] == ["Welcome. ", "I note Ada. "]
    assert [row.result["text"] for row in rows(run, "chat.output")] == ["Welcome. ", "I note Ada. "]


def test_what_is_said_costs_no_commit_of_its_own():
    async def story(self, prompt):
        yield ChatOutput("one")
        yield TurnEnd("two")

    async def append(engine, entries):
        appends.append(entries)

    appends = []
    generator(story)

    run = drive(the_run(), setup=around_append(before=append))

    assert (run.status, appends) == (Status.COMPLETED, [])  # both ride on the run's last row
    assert len(rows(run, "chat.output")) == 1


def test_a_worker_that_dies_anywhere_is_taken_over_and_repeats_nothing_recorded(clock, step, ran):
    async def child(ctx, inbox):
        await ctx.reply(inbox[0], "from the child")

    async def one_of_each(self, prompt):
        yield ChatOutput("begin ")
        first = yield ToolCall("step", {"name": "a"})
        said = await self.ctx.llm(await self.window())
        outcome = yield SubagentCall("test/child", "work", timeout=60)
        handle = await self.ctx.spawn(AgentId("test", "child"), "more")
        other = yield PauseForChildResult(handle)
        yield ChatOutput("middle ")
        second = yield ToolCall("step", {"name": "b"})
        yield TurnEnd(f"{first.text}{said.text}{outcome.result}{other.result}{second.text}")

    def story(drive_and_die):
        ran.clear(), model.calls.clear()
        run = drive_and_die(the_run())
        while not run.is_terminal:
            for one in Run.objects.filter(parent=run).exclude(status=Status.COMPLETED):
                drive(one)
            run = drive_and_die(run)
        return run

    register(CodeAgent(child, key="child"))
    model = ScriptedModel("-model-", loop=True)
    generator(one_of_each, tools=[step], model=model)
    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "a-model-from the childfrom the childb")
        assert Run.objects.filter(parent=run).count() == 2
        assert (len(rows(run, "tool.call")), len(rows(run, "llm.call"))) == (2, 1)
        assert [row.result["text"] for row in rows(run, "chat.output")] == ["begin ", "middle "]
        assert (sorted(set(ran)), len(ran)) == (["a", "b"], 2 + death.lost("tool.call"))
        assert len(model.calls) == 1 + death.lost("llm.call")


def test_questions_by_key_are_open_at_once_and_the_values_come_by_key():
    async def story(self, prompt):
        told = yield WaitForInput({"name": "Who?", "town": "Where?"})
        yield TurnEnd({"action": told.action, "values": dict(told.values), "text": told.text})

    generator(story)
    run = drive(the_run())
    open_ones = {request.text: request for request in HumanRequest.objects.filter(run=run, status="pending")}
    assert set(open_ones) == {"Who?", "Where?"}

    world.answer(open_ones["Where?"].id, text="Bern")
    run = drive(run)
    world.answer(open_ones["Who?"].id, "skip")
    run = drive(run)

    assert run.output == '{"action":"skip","values":{"town":"Bern"},"text":""}'


def test_finally_blocks_do_nothing_when_the_run_suspends(step, ran):
    seen = []

    async def story(self, prompt):
        try:
            yield WaitForInput("Now?")
            yield TurnEnd("yes")
        finally:
            seen.append("finally")
            await self.ctx.tool("step", name="tidied")
            seen.append("after")

    generator(story, tools=[step])
    run = drive(the_run())
    assert (seen, ran, rows(run, "tool.call")) == (["finally"], [], [])

    world.answer(asked(run).id, text="yes")
    run = drive(run)

    assert (run.output, ran) == ("yes", ["tidied"])  # at the turn's own end it may
    assert seen == ["finally", "finally", "after"]


def test_the_conversation_is_kept_and_shown_to_the_model():
    async def story(self, prompt):
        said = await self.ctx.llm(await self.window())
        yield TurnEnd(said.text)

    model = ScriptedModel(["one", "two"])
    generator(story, model=model, instructions="Be brief.", context=ContextConfig(DjangoHistoryProvider()))
    session = world.create_session(Session(agent=GENERATOR))
    drive(the_run(text="first", session=session))
    drive(the_run(text="second", session=session))

    assert [(turn.role.value, turn.text) for turn in model.calls[1].messages] == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
    ]
    assert Turn.objects.filter(session=session).count() == 4


def test_it_is_a_tool_of_another_agent_and_answers_it_alone():
    async def story(self, prompt):
        """Says who asked."""
        yield TurnEnd(f"{prompt.sender} at {prompt.depth}: {prompt.text}")

    poet = generator(story)
    call = ToolUseBlock(tool_name="handoff_generator", arguments={"task": "Write."}, call_id="c1")
    model = ScriptedModel([call, "Done."])
    register(ReActAgent("boss", model=model, tools=[poet]))
    run = make_run("react/boss")

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "Done."
    (row,) = rows(run, "tool.call")
    assert row.result["content"][0]["text"] == "react/boss at 1: Write."


async def answers_for_it(ctx, inbox):
    await ctx.reply(inbox[0], f"{ctx.agent_id} took over: {inbox[0].payload.message.text}")


def check_handed_over(clock, generating, tools=()):
    """The generator, asked by another run, ends for good where it hands over, and `test/other` answers in its place,
    wherever a worker dies."""

    async def boss(ctx, inbox):
        return (await ctx.ask(AgentId("agent", "generator"), "work")).result

    def story(drive_and_die):
        run = drive(make_run())
        drive_and_die(Run.objects.get(parent=run))
        return idle(run)

    register(CodeAgent(answers_for_it, key="other"))
    generator(generating, tools=tools)
    code(boss)
    for run, _ in every_death(clock, story):
        child = Run.objects.get(parent=run)
        assert run.output == "test/other took over: carry on"
        assert (child.status, child.agent) == (Status.COMPLETED, "test/other")
        assert len(rows(child, "ask.replied")) == 1
        assert [frame["type"] for frame in frames_of(run)].count("stream.done") == 1


def test_a_generator_that_hands_over_is_answered_for_by_the_other_agent(clock):
    async def story(self, prompt):
        yield ChatOutput("One moment. ")
        yield FinishAgentResult("test/other", "carry on")
        behind.append(1)

    behind = []
    check_handed_over(clock, story)
    assert behind == []


@tool
def pass_on(task: str) -> FinishAgentResult:
    """Pass it on."""
    return FinishAgentResult("test/other", task)


@pytest.mark.parametrize(
    ("handoff", "error"),
    [
        (SubagentCall("no/body", "work"), AgentNotFoundError),
        (FinishAgentResult("no/body"), AgentNotFoundError),
        (ToolCall("pass_on", {"task": "x" * (conf.MAX_INPUT_BYTES + 1)}), PermanentError),
    ],
    ids=["a question", "yielded", "of a tool"],
)
def test_a_refused_question_or_handoff_is_raised_at_the_yield(handoff, error):
    async def story(self, prompt):
        try:
            yield handoff
        except error:
            yield TurnEnd("then I do it")

    register(CodeAgent(answers_for_it, key="other"))
    generator(story, tools=[pass_on])

    assert drive(the_run()).output == "then I do it"


def test_a_called_tool_that_hands_over_hands_over(clock):
    async def story(self, prompt):
        yield ToolCall("pass_on", {"task": "carry on"})
        behind.append(1)

    behind = []
    check_handed_over(clock, story, [pass_on])
    assert behind == []


@pytest.mark.parametrize("result", [{"n": 1}, {"text": "hi"}, ""])
def test_a_result_that_is_no_text_is_kept_as_the_runs_output_shows_it(result):
    async def story(self, prompt):
        yield TurnEnd(result)

    generator(story, context=ContextConfig(DjangoHistoryProvider()))
    session = world.create_session(Session(agent=GENERATOR))
    run = drive(the_run(session=session))

    asked, said = Turn.objects.filter(session=session).order_by("position")
    assert (asked.role, said.role) == ("user", "assistant")
    assert "".join(block["text"] for block in said.content) == run.output
