"""Code that no longer does what the journal says: blocked with words for the operator, never a wrong answer."""

import asyncio

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, GenerationOptions, ToolSpec
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What is never asked for need not be waited for."""
    world.patch(monkeypatch, "STALL_S", 0.2)


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


@tool
async def echo(value: dict) -> dict:
    """Give it back."""
    return value


TOOLS = [add, multiply, echo]


def recorded_then(clock, first, then, *, model=None, then_model=None):
    """Record what `first` does, then run `then` over it."""
    code(first, tools=TOOLS, model=model or ScriptedModel(["x", "y"]))
    run = drive(make_run(), dies="end")
    code(then, tools=TOOLS, model=then_model or model or ScriptedModel(["x", "y"]))
    return take_over(clock, run)


def calls(*steps):
    """Agent code that makes these calls, one after the other."""

    async def story(ctx, inbox):
        for name, arguments in steps:
            if name == "llm":
                await ctx.llm([USER])
            elif name == "log":
                await ctx.log("note")
            elif name == "now":
                ctx.now()
            else:
                await ctx.tool(name, **arguments)
        return "done"

    return story


ADD = ("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (("multiply", {"a": 1, "b": 2}), 'tool.call \'multiply\' with {"a": 1, "b": 2}'),
        (("add", {"a": 1, "b": 3}), 'tool.call \'add\' with {"a": 1, "b": 3}'),
        (("add", {"a": 1}), "tool.call 'add' with {\"a\": 1}"),
        (("llm", {}), "llm.call 'scripted'"),
        (("log", {}), "log 'note'"),
        (("now", {}), "now ''"),
    ],
    ids=["other tool", "other argument", "missing argument", "other kind", "a log entry", "a time"],
)
def test_another_call_at_the_same_place_blocks_the_run(clock, now, words):
    run = recorded_then(clock, calls(ADD), calls(now))

    assert run.status == Status.BLOCKED
    assert run.error["type"] == "DeterminismError"
    message, ways = run.error["message"].split(". Three ways out: ")
    assert message == (
        "at '1' the journal recorded tool.call 'add' with {\"a\": 1, \"b\": 2} (entry 2), "
        f"the code now asks for {words}"
    )
    assert all(way in ways for way in ("deploy the earlier code", "ctx.patched", "fork the run"))
    assert run.error["diff"]["recorded"] == {"kind": "tool.call", "name": "add", "arguments": {"a": 1, "b": 2}}
    assert run.error["diff"]["path"] == "1"
    assert [entry.kind for entry in journal_of(run)][-1] == "run.blocked"


async def both_places(ctx, inbox):
    with ctx.scope("plan"):
        await ctx.tool("add", a=1, b=2)
    await one_place(ctx, inbox)


async def one_place(ctx, inbox):
    with ctx.scope("act"):
        await ctx.tool("multiply", a=3, b=4)


MULTIPLY, ECHO = ("multiply", {"a": 3, "b": 4}), ("echo", {"value": {}})


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (calls(ADD, MULTIPLY, ECHO), calls(MULTIPLY, ECHO), "at '1' the journal recorded tool.call 'add'"),
        (calls(ADD, MULTIPLY, ECHO), calls(ECHO), "at '1' the journal recorded tool.call 'add'"),
        (calls(ADD, MULTIPLY), calls(ADD), "tool.call 'multiply' at '2' (entry 3)"),
        (
            both_places,
            one_place,
            "the journal has tool.call 'add' at 'plan.1' (entry 2), which the code no longer asks for before 'act.1' "
            "(entry 3)",
        ),
    ],
    ids=["the first", "the first two", "the last", "a named place"],
)
def test_a_step_that_is_no_longer_asked_for_blocks_the_run(clock, first, then, words):
    run = recorded_then(clock, first, then)

    assert run.status == Status.BLOCKED, run.output
    assert words in run.error["message"]


@pytest.mark.parametrize("swallowed", [Exception, BaseException])
def test_a_mismatch_cannot_be_swallowed(clock, swallowed):
    async def greedy(ctx, inbox):
        try:
            await ctx.tool("multiply", a=1, b=2)
        except swallowed:
            return "swallowed"
        return "went on"

    run = recorded_then(clock, calls(ADD), greedy)

    assert (run.status, run.output) == (Status.BLOCKED, None)


def test_a_mismatch_in_one_branch_lets_the_others_finish_and_be_recorded(clock):
    began, gate = [], {}

    @tool
    async def slow() -> str:
        """Take time."""
        began.append("slow")
        gate["began"].set()
        await gate["open"].wait()
        return "slow"

    async def after(ctx, inbox):
        gate.update(began=asyncio.Event(), open=asyncio.Event())

        async def wrong():
            await gate["began"].wait()
            asyncio.get_running_loop().call_later(0.05, gate["open"].set)
            with ctx.scope("place"):
                await ctx.tool("multiply", a=1, b=2)

        await asyncio.gather(ctx.tool("slow"), wrong())

    async def before(ctx, inbox):
        with ctx.scope("place"):
            await ctx.tool("add", a=1, b=2)

    code(before, tools=TOOLS)
    run = drive(make_run(), dies="end")
    code(after, tools=[*TOOLS, slow])
    run = take_over(clock, run)

    assert run.status == Status.BLOCKED
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["add", "slow"]


NASTY = [
    {"z": 1, "a": 2, "m": {"q": 1, "b": 2}},
    {"float": 0.1 + 0.2, "tiny": 5e-324, "huge": 1.7e308, "round": 1.0, "negative": -0.0, "exponent": 1e22},
    {"int": 2**53 + 1, "big": 10**30},
    {"text": "ä☃𝄞 \u2028 \\ \" ' \n\t", "empty": "", "ä": "key"},
    {"nested": [[], {}, [None, True, False, [1.5, {"x": None}]]]},
    {"looks": "2030-01-01T00:00:00Z", "like": "1.0", "null": "null"},
]


@pytest.mark.sqlite
def test_what_the_database_does_to_json_is_no_mismatch(clock):
    seen = []

    async def story(ctx, inbox):
        results = [await ctx.tool("echo", value=value) for value in NASTY]
        for value in NASTY:
            await ctx.tool("echo", value=dict(reversed(value.items())))
        seen.append([result.text for result in results])
        return "done"

    run = recorded_then(clock, story, story)

    assert run.status == Status.COMPLETED, run.error
    assert seen[0] == seen[1]


def asking(**change):
    """One model call with these instructions and this tool."""

    async def story(ctx, inbox):
        system = ChatMessage.of("system", change.get("instructions", "be brief"))
        options = GenerationOptions(tools=[ToolSpec(name="t", description=change.get("description", "a tool"))])
        return (await ctx.llm([system, USER], options=options, model=change.get("model"))).text

    return story


DRIFTS = {
    "model": ({"model": ScriptedModel([], name="another")}, ["model"]),
    "instructions": ({"instructions": "be long"}, ["instructions"]),
    "tool schema": ({"description": "a better tool"}, ["tools"]),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_drift_is_noted_once_and_the_recorded_result_used(clock, drift):
    change, components = DRIFTS[drift]
    model = ScriptedModel(["said once"])
    code(asking(), model=model)
    run = drive(make_run(), dies="end")
    code(asking(**change), model=model)

    take_over(clock, run, dies="end")
    run = take_over(clock, run)

    assert (run.status, run.output, len(model.calls)) == (Status.COMPLETED, "said once", 1)
    notes = [entry for entry in journal_of(run) if entry.kind == "replay.drift"]
    assert [note.result for note in notes] == [{"changed": components}]


@pytest.mark.parametrize("drift", ["model", "instructions"])
def test_strict_replay_blocks_on_drift_and_nothing_is_noted_when_nothing_has_changed(clock, settings, drift):
    change, components = DRIFTS[drift]
    for strict in (False, True):
        settings.RAVI = {**settings.RAVI, **({"REPLAY": "strict"} if strict else {})}
        assert recorded_then(clock, asking(), asking()).status == Status.COMPLETED
    assert not JournalEntry.objects.filter(kind="replay.drift").exists()

    run = recorded_then(clock, asking(), asking(**change), model=ScriptedModel(["x"]))

    assert run.status == Status.BLOCKED
    assert f"at '1' {', '.join(components)} changed since entry 2 was recorded" in run.error["message"]
