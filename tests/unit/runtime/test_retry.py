"""Transient errors are no results: the run goes back with backoff, and fails in the provider's words in the end."""

import asyncio
import random

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, RunContext, TransientError
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")
BUSY = TransientError("slow down, 9 requests too many", type="ServiceUnavailable")


def failing(times, error=BUSY, then="hello"):
    """A model that fails so often and then answers."""
    left = [times]

    def say(messages, options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return then

    return ScriptedModel([say])


async def ask(ctx, inbox):
    return (await ctx.llm([USER])).text


@pytest.mark.sqlite
def test_a_transient_error_gives_the_run_back_with_backoff_until_it_is_answered(clock):
    code(ask, model=failing(2))
    run = drive(make_run())
    assert (run.status, run.attempts, run.lease_owner) == (Status.PENDING, 1, "")
    assert 0.5 <= (run.wake_at - clock.now).total_seconds() <= 1.0
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.retried"]
    retried = JournalEntry.objects.get(kind="run.retried")
    assert retried.error == {"type": "ServiceUnavailable", "message": "slow down, 9 requests too many"}
    assert retried.result["attempt"] == 1
    assert world.claim(run.id, "early") is None
    for _ in range(2):
        clock.advance(60)
        drive(run)
    assert (run.status, run.output, run.attempts, run.crashes) == (Status.COMPLETED, "hello", 0, 0)
    assert JournalEntry.objects.filter(kind="llm.call").count() == 1


def test_the_backoff_is_spread_doubles_up_to_a_minute_and_is_as_long_as_the_other_side_asks(clock, monkeypatch):
    delays = {world.delay_s(BUSY, 3) for _ in range(50)}
    assert len(delays) > 40
    assert 4 <= min(delays) <= max(delays) <= 8
    code(ask, model=failing(1, TransientError("busy", retry_after=42)))
    assert (drive(make_run()).wake_at - clock.now).total_seconds() == 42
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert [world.delay_s(BUSY, failures) for failures in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_last_attempt_fails_with_the_providers_words_and_its_error_replays_as_it_was_raised(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 3}
    seen = []

    async def story(ctx, inbox):
        try:
            return await ask(ctx, inbox)
        except Exception as error:
            seen.append((type(error), str(error), error.type))
            raise

    model = failing(99)
    code(story, model=model)
    run = make_run()
    for _ in range(2):
        assert drive(run).status == Status.PENDING
        clock.advance(60)
    drive(run, dies="end")
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 5}
    take_over(clock, run)
    assert run.status == Status.FAILED
    assert run.error == {"type": "ServiceUnavailable", "message": "slow down, 9 requests too many"}
    assert (len(model.calls), len(seen), len(set(seen))) == (3, 2, 1)
    kinds = [entry.kind for entry in journal_of(run)]
    assert kinds.count("run.retried") == 2
    assert kinds[-3:] == ["llm.call", "run.resumed", "run.failed"]


def test_an_effect_in_between_starts_the_count_again(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 2}
    first, second = failing(1), failing(1)

    async def story(ctx, inbox):
        await ctx.llm([USER], model=first)
        return (await ctx.llm([USER], model=second)).text

    code(story)
    run = make_run()
    for status in (Status.PENDING, Status.PENDING, Status.COMPLETED):
        assert drive(run).status == status
        clock.advance(60)


def test_a_model_that_hangs_is_a_transient_error(clock, settings):
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.05}
    code(ask, model=ScriptedModel(["late"], delay=60))
    assert drive(make_run()).status == Status.PENDING
    words = "model scripted gave no answer within 0.05 s"
    assert JournalEntry.objects.get(kind="run.retried").error == {"type": "Timeout", "message": words}


async def greedy(ctx):
    try:
        return (await ctx.llm([USER])).text
    except Exception:
        return "swallowed"


async def in_a_group(ctx):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.llm([USER]))
    return task.result().text


async def failing_to_clean_up(ctx):
    said = None
    try:
        said = (await ctx.llm([USER])).text
        return said
    finally:
        if said is None:
            raise RuntimeError("could not clean up")


async def in_a_tool(ctx):
    return (await ctx.tool("consult")).text


@pytest.mark.parametrize("calling", [greedy, in_a_group, failing_to_clean_up, in_a_tool])
def test_whatever_is_around_the_call_is_unwound(clock, calling):
    @tool(timeout=2)
    async def consult(ctx: RunContext) -> str:
        """Ask the model."""
        return (await ctx.llm([USER])).text

    async def story(ctx, inbox):
        return await calling(ctx)

    code(story, model=failing(1), tools=[consult])
    run = drive(make_run())
    assert (run.status, run.error) == (Status.PENDING, None)
    assert not JournalEntry.objects.filter(kind="tool.call").exists()
    clock.advance(60)
    assert drive(run).output == "hello"


def test_other_open_calls_finish_and_are_recorded_first(clock):
    began = []

    @tool
    async def slow(gate_after: str) -> str:
        """Finish some time after the model has failed."""
        began.append(gate_after)
        await failed.wait()
        for _ in range(30):
            await asyncio.sleep(0)
        return "kept"

    failed = None

    async def story(ctx, inbox):
        nonlocal failed
        failed = asyncio.Event()
        found = await asyncio.gather(ctx.tool("slow", gate_after="x"), ctx.llm([USER]))
        return found[0].text + found[1].text

    attempts = [0]

    async def say(messages, options):
        attempts[0] += 1
        if attempts[0] == 1:
            while not began:
                await asyncio.sleep(0)
            failed.set()
            raise BUSY
        return "!"

    code(story, model=ScriptedModel([say]), tools=[slow])
    run = drive(make_run())
    assert run.status == Status.PENDING
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "tool.call", "run.retried"]
    clock.advance(60)
    assert drive(run).output == "kept!"
    assert len(began) == 1


def test_a_tools_transient_error_gives_the_run_back_and_goes_to_the_model_after_the_last_attempt(clock, settings):
    @tool
    def fetch() -> str:
        raise TransientError("the other side is away", type="Unavailable")

    async def story(ctx, inbox):
        result = await ctx.tool("fetch")
        return f"{result.status}: {result.text}"

    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 2}
    code(story, tools=[fetch])
    run = drive(make_run())
    assert run.status == Status.PENDING
    clock.advance(60)
    assert drive(run).output == "error: Unavailable: the other side is away"
