"""The result of an idempotent tool is durable before the next act, not before the model reads it."""

import asyncio

import pytest
from django.db import DataError

from ravi_django.agents import tool
from ravi_django.kernel import ChatMessage, HookEvent, RunContext
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import around_append, code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.fixture
def seen():
    """What the journal had when each tool began."""
    return []


@pytest.fixture
def look(seen):
    @tool
    def look(name: str) -> str:
        """Look into the journal."""
        seen.append((name, JournalEntry.objects.filter(kind="tool.call").count()))
        return name

    return look


def test_it_is_durable_before_the_next_tool_begins(clock, look, seen):
    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        await ctx.llm([USER])
        await ctx.tool("look", name="b")
        await ctx.tool("look", name="c")

    model = ScriptedModel(["x"])

    def one(drive):
        seen.clear()
        model.calls.clear()
        code(story, tools=[look], model=model)
        return drive(make_run())

    for run, death in every_death(clock, one):
        assert run.status == Status.COMPLETED, death
        assert all(rows == "abc".index(name) for name, rows in seen), (death, seen)


class Slow(ScriptedModel):
    """Answers when `ready` says so."""

    async def stream(self, *args, **options):
        while not await self.ready():
            await asyncio.sleep(0.01)
        async for piece in super().stream(*args, **options):
            yield piece


def slow(look, ready):
    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        return (await ctx.llm([USER])).text

    model = Slow(["x"])
    model.ready = ready
    code(story, tools=[look], model=model)
    return model


def test_it_is_committed_while_the_model_answers(look, monkeypatch):
    world.patch(monkeypatch, "LATE_S", 0.001)
    slow(look, JournalEntry.objects.filter(kind="tool.call").aexists)

    run = drive(make_run())

    assert [entry.kind for entry in journal_of(run)] == ["run.started", "tool.call", "llm.call", "run.completed"]


def test_nothing_is_written_behind_one_that_could_not_be(look, monkeypatch):
    world.patch(monkeypatch, "LATE_S", 0.001)
    failed = []

    async def refuse(engine, entries):
        if not failed:
            failed.append([entry.kind for entry in entries])
            raise DataError("the disk refuses it")

    async def ready():
        return bool(failed)

    slow(look, ready)
    run = drive(make_run(), setup=around_append(before=refuse))

    assert failed == [["run.started", "tool.call"]]
    assert run.status == Status.FAILED
    assert "llm.call" not in [entry.kind for entry in journal_of(run)]


def test_of_tools_at_once_each_is_durable_before_its_caller_goes_on(look, seen):
    async def branch(ctx, name):
        await ctx.tool("look", name=name)
        return await JournalEntry.objects.filter(kind="tool.call", request__arguments__name=name).aexists()

    async def story(ctx, inbox):
        return all(await asyncio.gather(branch(ctx, "a"), branch(ctx, "b")))

    code(story, tools=[look])
    assert drive(make_run()).output == "true"


def test_what_the_code_changes_afterwards_is_recorded_as_it_was_given(clock, seen):
    @tool
    def page(query: dict) -> int:
        """Read a page."""
        seen.append(query["pages"][0][0])
        return query["pages"][0][0]

    async def story(ctx, inbox):
        query = {"pages": ([1],)}
        await ctx.tool("page", query=query)
        query["pages"][0][0] = 2
        return (await ctx.tool("page", query=query)).text

    code(story, tools=[page])
    run = take_over(clock, drive(make_run(), dies="end"))

    assert (run.status, run.output, seen) == (Status.COMPLETED, "2", [1, 2])


def test_a_run_that_was_told_to_end_begins_nothing_after_a_commit(look, seen):
    drained = []

    async def drain(engine, entries):
        if not drained:
            drained.append([entry.kind for entry in entries])
            for active in engine.active.values():
                active.recorder.waits.drain()

    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        await ctx.tool("look", name="b")

    code(story, tools=[look])
    run = drive(make_run(), setup=around_append(before=drain))

    assert (run.status, [name for name, _ in seen]) == (Status.PENDING, ["a"])


async def rows():
    return await JournalEntry.objects.filter(kind="tool.call").acount()


@pytest.mark.parametrize("event", ["llm_start", "tool_end"])
def test_a_hook_reads_no_result_that_could_be_lost(look, event):
    found = []

    async def note(call):
        found.append(await rows())

    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        await ctx.llm([USER])

    code(story, tools=[look], model=ScriptedModel(["x"])).hooks = {HookEvent(event): note}
    assert drive(make_run()).status == Status.COMPLETED
    assert found == [1]


def test_inside_another_tool_it_is_durable_at_once(look):
    @tool
    async def outer(ctx: RunContext) -> str:
        """Call another."""
        await ctx.tool("look", name="a")
        return str(await rows())

    async def story(ctx, inbox):
        return (await ctx.tool("outer")).text

    code(story, tools=[look, outer])
    assert drive(make_run()).output == "1"


def test_a_release_comes_behind_its_commit_and_its_frames(look):
    appended = []

    async def note(engine, entries):
        appended.extend(entry.kind for entry in entries)

    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        await ctx.sleep_until_signal("go")

    code(story, tools=[look])
    assert drive(make_run(), setup=around_append(after=note)).status == Status.SUSPENDED
    assert "tool.call" in appended  # not with the release


def test_its_frame_comes_before_those_of_the_answer(look):
    async def story(ctx, inbox):
        await ctx.tool("look", name="a")
        await ctx.tool("look", name="b")
        return (await ctx.llm([USER])).text

    code(story, tools=[look], model=ScriptedModel(["x"]))
    run = drive(make_run())

    shown = [frame.get("step") or frame["type"] for frame in world.events_page(run.id)[0]]
    one = ["tool_call", "tool_result"]
    assert shown == ["started", *one, *one, "thinking", "text.delta", "completion", "done", "stream.done"]
