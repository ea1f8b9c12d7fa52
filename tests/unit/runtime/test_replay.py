"""A later lease runs the agent's code from the top: what is recorded comes back, nothing is done twice."""

import asyncio
import sys
from contextlib import contextmanager

import pytest

from ravi_django import tool
from ravi_django.kernel import (
    ChatMessage,
    DataBlock,
    GenerationOptions,
    ModelError,
    ModelResponse,
    RunContext,
    TextBlock,
    Usage,
)
from ravi_django.models import Blob, JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import code, drive, every_death, make_run, take_over
from tests.support.tool_calls import calling
from tests.support.world import LoopConnection, check_identity

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.fixture
def add(ran):
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        ran.append((a, b))
        return a + b

    return add


@pytest.mark.sqlite
def test_recorded_calls_are_not_made_again(clock, ran, add):
    model = ScriptedModel(["hello"])

    async def sums(ctx, inbox):
        total = (await ctx.tool("add", a=1, b=2)).text
        return total + (await ctx.llm([USER])).text

    def story(drive):
        ran.clear()
        model.calls.clear()
        code(sums, tools=[add], model=model)
        return drive(make_run())

    deaths = []
    for run, death in every_death(clock, story):
        deaths.append(str(death))
        assert (run.status, run.output) == (Status.COMPLETED, "3hello")
        assert (len(ran), len(model.calls)) == (1 + death.lost("tool.call"), 1 + death.lost("llm.call"))
        kinds = [entry.kind for entry in journal_of(run)]
        assert set(kinds) - {"run.resumed"} == {"run.started", "tool.call", "llm.call", "run.completed"}
        assert len(kinds) == len(set(kinds))
        assert [entry.seq for entry in journal_of(run)] == list(range(1, len(kinds) + 1))

    commits = ["1 (run.started, tool.call, llm.call)", "2 (run.completed, settle)"]
    came = [f"the worker died {when} commit {commit}" for commit in commits for when in ("before", "after")]
    assert deaths == [*came, "no worker died"]


def test_what_a_replay_gives_is_what_the_call_gave(clock):
    said = ModelResponse.of(
        [TextBlock(text="ä"), DataBlock(data={"x": [1.5, None]})],
        usage=Usage(input_tokens=7, cached_tokens=3, output_tokens=2, reasoning_tokens=1),
        cost=0.125,
        model="provider/model-2",
        finish_reason="length",
    )
    refusal = ModelError("the prompt is too long: 9 tokens", type="ContextWindowExceeded", status=400)
    responses, results, errors, fails = [], [], [], []

    @tool
    def look() -> list:
        """Look."""
        return [TextBlock(text="ä☃"), DataBlock(data={"z": 1, "a": [0.1, {"deep": None}]})]

    async def story(ctx, inbox):
        responses.append(await ctx.llm([USER], options=GenerationOptions(temperature=0.5)))
        with ctx.scope("place", call_id="c1"):
            results.append(await ctx.tool("look"))
        try:
            await ctx.llm([ChatMessage.of("user", "too long")])
        except ModelError as error:
            errors.append((type(error), str(error), error.type))
            if fails:
                raise
        return "went on"

    def answer(messages, options):
        return refusal if messages[-1].text == "too long" else said

    model = ScriptedModel([answer], name="logical")
    code(story, model=model, tools=[look])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert responses == [said, said]
    assert results[0] == results[1]
    assert (results[0].call_id, results[0].status) == ("c1", "ok")
    assert errors == [(ModelError, "the prompt is too long: 9 tokens", "ContextWindowExceeded")] * 2
    assert (run.output, len(model.calls), run.input_tokens) == ("went on", 2, 7)
    fails.append(1)
    run = drive(make_run())
    words = {"type": "ContextWindowExceeded", "message": "the prompt is too long: 9 tokens"}
    assert (run.status, run.error) == (Status.FAILED, words), "unhandled, it fails the run with the provider's words"
    assert JournalEntry.objects.get(run=run, kind="llm.call", error__isnull=False).error == {**words, "status": 400}


def test_time_chance_ids_and_log_replay_equal_and_differ_from_run_to_run(clock, add):
    seen = []

    async def story(ctx, inbox):
        found = [ctx.now(), ctx.random(), ctx.uuid()]
        await ctx.log("note", {"found": str(found[1])})
        await ctx.tool("add", a=1, b=1)
        found += [ctx.now(), ctx.random(), ctx.uuid()]
        await ctx.tool("add", a=1, b=1)
        seen.append(found)

    code(story, tools=[add])
    run = take_over(clock, drive(make_run(), dies="end"))
    drive(make_run())

    assert seen[0] == seen[1]
    assert len({value for found in seen for value in (*found[1:3], *found[4:])}) == 8
    assert [entry.kind for entry in journal_of(run)].count("log") == 1
    assert [entry.kind for entry in journal_of(run)].count("now") == 2


@pytest.mark.sqlite
def test_big_results_come_back_from_their_blobs(clock):
    text = "é" * 50_000
    seen = []

    @tool
    def read() -> str:
        """Read."""
        return text

    async def story(ctx, inbox):
        seen.append((await ctx.tool("read")).text)
        seen.append((await ctx.llm([USER])).text)

    code(story, tools=[read], model=ScriptedModel([text]))
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.status == Status.COMPLETED
    assert seen == [text] * 4
    stored = JournalEntry.objects.filter(kind__in=["tool.call", "llm.call"]).values_list("result", flat=True)
    assert all(set(result) == {"$blob", "size"} for result in stored)
    assert {result["$blob"] for result in stored} <= set(Blob.objects.values_list("id", flat=True))


def test_a_step_behind_a_takeover_looks_at_no_more_of_a_longer_journal(clock):
    looked = {}  # by recorded calls: the lines that one new step executes in the journal's module

    @tool(effect="at_most_once")
    async def step(number: int) -> int:
        """Step."""
        return number

    def looks_of(recorded):
        leases = []

        async def story(ctx, inbox):
            leases.append(inbox)
            for number in range(recorded):
                await ctx.tool("step", number=number)
            if len(leases) == 2:
                await ctx.tool("step", number=-1)  # the first one sums up what the run has spent
                with counted_in(check_identity.__code__.co_filename) as lines:
                    await ctx.tool("step", number=recorded)
                looked[recorded] = len(lines)

        code(story, tools=[step])
        assert take_over(clock, drive(make_run(), dies="end")).status == Status.COMPLETED

    looks_of(3)
    looks_of(30)

    assert looked[3] == looked[30] > 0


@contextmanager
def counted_in(file):
    """The lines that this thread executes in a file's functions; each turn of a loop is one."""
    lines = []

    def trace(frame, event, arg):
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_a_result_waits_for_those_before_it_however_late_they_are_asked_for(clock):
    won, asked = [], asyncio.Event()

    @tool
    async def step(name: str) -> str:
        """Step: b's is behind a's."""
        await (asked.wait() if name == "b" else asyncio.sleep(0))
        return name

    async def story(ctx, inbox):
        async def later(seconds):
            if won:
                await asyncio.sleep(seconds)

        async def a():
            await later(0.1)
            found = await ctx.tool("step", name="a")
            asked.set()
            return found.text

        async def b():
            await later(0.01)
            return (await ctx.tool("step", name="b")).text

        tasks = [asyncio.create_task(a()), asyncio.create_task(b())]
        won.append([await task for task in asyncio.as_completed(tasks)])

    code(story, tools=[step])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert won == [["a", "b"], ["a", "b"]]
    assert run.status == Status.COMPLETED


def test_calls_made_inside_a_recorded_tool_are_not_missed(clock, ran, add):
    """A tool's own calls, times and log entries lie below it; once its result is recorded nobody asks for them."""

    @tool
    async def outer(ctx: RunContext) -> str:
        """Call others."""
        ctx.now()
        await ctx.log("inside", {"x": 1})
        inner = await ctx.tool("add", a=1, b=2)
        return (await ctx.llm([USER])).text + inner.text

    async def story(ctx, inbox):
        first = await ctx.tool("outer")
        return first.text + (await ctx.tool("add", a=5, b=5)).text

    model = ScriptedModel(["hello"])
    code(story, tools=[outer, add], model=model)

    run = take_over(clock, drive(make_run(), dies="end"))

    assert (run.status, run.output) == (Status.COMPLETED, "hello310"), run.error
    assert (ran, len(model.calls)) == ([(1, 2), (5, 5)], 1)


def test_calls_made_inside_an_unrecorded_tool_are_replayed(clock, ran, add):
    attempts = []

    @tool
    async def outer(ctx: RunContext) -> str:
        """Call another."""
        attempts.append(ctx.idempotency_key)
        return (await ctx.tool("add", a=1, b=2)).text

    code(calling("outer"), tools=[outer, add])
    run = drive(make_run(), dies=2)  # the inner call is recorded, the outer one is not

    run = take_over(clock, run)

    assert (run.output, ran) == ("ok: 3", [(1, 2)])
    assert (len(attempts), len(set(attempts))) == (2, 1)


def test_tasks_of_library_code_do_not_disturb_the_numbering(clock, ran, add, monkeypatch):
    """A model's client makes tasks while it streams, a tool too, psycopg while it waits; in the replay none runs."""

    async def busy_with():
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))

    class BusyModel(ScriptedModel):
        async def stream(self, messages, options, meta):
            await busy_with()
            async for event in super().stream(messages, options, meta):
                yield event

    @tool
    async def busy() -> str:
        """Make tasks."""
        await busy_with()
        return "x"

    async def story(ctx, inbox):
        for _ in range(4):  # the last ones are appended by the loop's own connection
            await ctx.llm([USER])
        await ctx.tool("busy")
        found = await asyncio.gather(ctx.tool("add", a=1, b=1), ctx.tool("add", a=2, b=2))
        return "".join(result.text for result in found)

    perform = LoopConnection._perform

    async def performing(connection, statement):
        await busy_with()
        return await perform(connection, statement)

    monkeypatch.setattr(LoopConnection, "_perform", performing)
    code(story, tools=[add, busy], model=BusyModel(["x"], loop=True))
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert (run.output, run.status) == ("24", Status.COMPLETED)
    assert ran == [(1, 1), (2, 2)]
    made = [entry.path for entry in journal_of(run) if entry.kind in ("tool.call", "llm.call")]
    assert sorted(made) == ["1", "2", "3", "4", "5", "t1.1", "t2.1"]
