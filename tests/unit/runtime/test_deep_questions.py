"""A question deep in a tree: it is seen at the root, everybody above waits as rows, the answer goes to who asked."""

import asyncio

import pytest

from ravi_django import register, signal, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.flow import BaseAgentProxy, HumanInput, PauseForInputResult, SubagentCall, TurnEnd, WaitForInput
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ToolUseBlock
from ravi_django.models import Ask, HumanRequest, Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import CodeAgent, code, drive, idle, make_run
from tests.support.world import AskHumanTool, cancel

pytestmark = pytest.mark.django_db(transaction=True)

LEAF = AgentId("test", "leaf")


class Middle(BaseAgentProxy):
    async def next_turn(self, prompt):
        outcome = yield SubagentCall(LEAF, prompt.text, timeout=60)
        yield TurnEnd(f"<{outcome.kind} {outcome.result}>")


async def by_context(ctx, inbox):
    told = await ctx.ask_human("Which colour?", ["red", "blue"])
    await ctx.reply(inbox[0], told["text"])


class ByYield(BaseAgentProxy):
    async def next_turn(self, prompt):
        told = yield WaitForInput("Which colour?", choices=["red", "blue"])
        yield TurnEnd(told.text)


@tool
def colour(answer: HumanInput | None = None) -> PauseForInputResult | str:
    """The colour that a person wants."""
    return PauseForInputResult("Which colour?", choices=["red", "blue"]) if answer is None else answer.text


def react(tool_, **arguments):
    name = getattr(tool_, "name", "colour")

    def said(messages, options):
        if messages[-1].role.value == "tool":
            return messages[-1].content[0].content[0].text.splitlines()[-1].rpartition(" ")[2].strip(".\"'{}")
        return ToolUseBlock(tool_name=name, arguments=arguments, call_id="c1")

    return ReActAgent("leaf", model=ScriptedModel([said] * 4), tools=[tool_], id=LEAF)


ASKERS = {
    "ctx.ask_human": lambda: CodeAgent(by_context, key="leaf"),
    "WaitForInput": lambda: ByYield("leaf", id=LEAF),
    "ask_human tool": lambda: react(AskHumanTool(), question="Which colour?", choices=["red", "blue"]),
    "PauseForInputResult": lambda: react(colour),
}


@pytest.fixture
def tree():
    """Root, middle and leaf; the leaf asks."""

    def make(leaf=None):
        register(leaf or CodeAgent(by_context, key="leaf"))
        middle = register(Middle("middle"))

        async def root(ctx, inbox):
            return (await ctx.ask(middle.id, "work", timeout=60)).result["text"]

        code(root)
        run = make_run()
        run_until_idle()
        return run

    return make


def line_of(run):
    """The runs from the root down."""
    found = [Run.objects.get(id=run.id)]
    while child := Run.objects.filter(parent=found[-1]).first():
        found.append(child)
    return found


def frames_of(run, *types):
    return [frame for frame in world.events_page(run.id)[0] if frame["type"] in types]


@pytest.mark.parametrize("asker", ASKERS)
def test_the_question_is_on_the_roots_sequence_and_the_answer_goes_to_the_asker(tree, asker):
    root = tree(ASKERS[asker]())
    runs = line_of(root)
    request = HumanRequest.objects.get()
    assert [run.depth for run in runs] == [0, 1, 2]
    assert [(run.status, run.lease_owner) for run in runs] == [(Status.SUSPENDED, "")] * 3
    assert request.run_id == runs[2].id

    (frame,) = frames_of(root, "request")
    assert (frame["run"], frame["parent"]) == (str(runs[2].id), str(runs[1].id))
    assert (frame["agent"], frame["depth"]) == ("test/leaf", 2)
    assert (frame["id"], frame["text"], frame["choices"]) == (str(request.id), "Which colour?", ["red", "blue"])
    assert {"kind", "tool", "arguments", "context", "questions"} <= frame.keys()
    assert frames_of(root, "request.closed") == []

    world.answer(request.id, text="red")
    assert idle(root).status == Status.COMPLETED
    assert "red" in root.output
    (closed,) = frames_of(root, "request.closed")
    assert (closed["id"], closed["run"], closed["seq"] > frame["seq"]) == (str(request.id), str(runs[2].id), True)
    assert [row.kind for run in runs[:2] for row in journal_of(run) if row.kind.startswith("request")] == []


def test_the_time_that_people_take_is_not_counted_at_any_level(clock, tree):
    root = tree()
    clock.advance(conf.LEASE_S * 100)  # far beyond the 60 s that both asks above give
    run_until_idle()
    assert [run.status for run in line_of(root)] == [Status.SUSPENDED] * 3
    world.answer(HumanRequest.objects.get().id, text="red")
    assert idle(root).output == "<replied red>"
    assert set(Ask.objects.values_list("outcome", flat=True)) == {"replied"}


def closed_by_the_end_of(run):
    """The one question of the tree is closed with it, and who watches is told before the stream's end."""
    request = HumanRequest.objects.get()
    assert request.status == HumanRequest.Status.CANCELLED
    frames = world.events_page(run.id)[0]
    assert [frame["id"] for frame in frames if frame["type"] == "request.closed"] == [str(request.id)]
    assert frames[-1]["type"] == "stream.done"


def test_a_cancelled_tree_closes_the_question_and_says_so(tree):
    root = tree()
    cancel(root.id, "enough")
    closed_by_the_end_of(root)
    assert frames_of(root, "request.closed")[0]["depth"] == 2


def test_a_question_that_the_code_gave_up_is_closed_by_the_end_of_its_run():
    async def story(ctx, inbox):
        question = asyncio.ensure_future(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("go", until=ctx.now())
        question.cancel()
        await asyncio.wait([question])
        return "without"

    code(story)

    run = idle(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, "without")
    closed_by_the_end_of(run)


def test_a_child_that_ends_with_its_parent_closes_its_question_before_the_streams_end():
    async def root(ctx, inbox):
        await ctx.spawn(LEAF, "work")
        await ctx.sleep_until_signal("go")
        return "alone"

    register(CodeAgent(by_context, key="leaf"))
    code(root)
    run = make_run()
    run_until_idle()
    signal(run.id, "go")

    assert idle(run).output == "alone"
    closed_by_the_end_of(run)


def test_a_run_that_begins_anew_closes_its_questions():
    async def story(ctx, inbox):
        if not inbox:
            return "new"
        question = asyncio.ensure_future(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("go", until=ctx.now())
        question.cancel()
        await ctx.continue_as_new()

    code(story)

    run = drive(make_run())
    assert (run.status, run.generation, HumanRequest.objects.get().status) == (Status.PENDING, 1, "cancelled")
    assert idle(run).output == "new"
    assert [frame["type"] for frame in frames_of(run, "request", "request.closed")] == ["request", "request.closed"]
