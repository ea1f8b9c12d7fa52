"""A provider's rate limit is a wait: it counts no attempt and writes no row, and no run is lost to it."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from ravi_django import RunContext, tool
from ravi_django.calls.llm.errors import translate_error
from ravi_django.calls.llm.fallback import FallbackModel
from ravi_django.kernel import ChatMessage, TransientError
from ravi_django.models import ModelLimit, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.gates import cancelled_in
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")
LIMIT = TransientError("slow down", type="RateLimitError", status=429)


@pytest.fixture(autouse=True)
def suspends_at_once(monkeypatch):
    world.patch(monkeypatch, "PROVIDERS_MEMORY_S", 0.0)


def refusing(times, error=LIMIT, **fields):
    """A model that is refused so often, then answers."""
    left = [times]

    def reply(messages, options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "hello"

    return ScriptedModel([reply] * 200, **fields)


def woken(run):
    """The run's next lease, once it has a permit."""
    world.permits_grant()
    return drive(run)


def pause_s(clock):
    return (ModelLimit.objects.get().paused_until - clock.now).total_seconds()


async def ask(ctx, inbox):
    return (await ctx.llm([USER])).text


@pytest.mark.sqlite
def test_a_run_outlasts_refusals_without_a_retry_after_and_its_journal_shows_one_call(clock):
    code(ask, model=refusing(12, name="openai/gpt"))
    run, seconds = make_run(), 0.0
    while woken(run).status == Status.SUSPENDED:
        assert (run.attempts, run.lease_owner) == (0, "")
        assert [(one["kind"], one["name"]) for one in run.waiting_on] == [("provider", "openai/gpt")]
        assert 0 < pause_s(clock) <= 75
        seconds += pause_s(clock)
        clock.advance(pause_s(clock))
    assert (run.status, run.output, run.attempts) == (Status.COMPLETED, "hello", 0)
    assert seconds > 300
    kinds = [row.kind for row in journal_of(run)]
    assert (kinds.count("llm.call"), kinds.count("run.retried")) == (1, 0)


def test_a_limit_holds_back_every_run_of_the_process_for_as_long_as_the_provider_asks(clock):
    model = refusing(1, TransientError("slow down", status=429, retry_after=40))
    code(ask, model=model)
    first, second = make_run(), make_run()
    for run in (first, second):
        drive(run)
        assert run.status == Status.SUSPENDED
        assert 40 <= pause_s(clock) <= 50
    assert len(model.calls) == 1
    clock.advance(52)
    assert [woken(run).output for run in (first, second)] == ["hello", "hello"]


def test_requests_that_are_refused_together_make_one_pause(clock):
    async def story(ctx, inbox):
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ctx.llm([USER]))

    code(story, model=refusing(20, delay=0.1))
    run = drive(make_run())
    assert (run.status, len(run.waiting_on)) == (Status.SUSPENDED, 20)
    assert pause_s(clock) < 1.5
    clock.advance(2)
    assert woken(run).status == Status.COMPLETED


def test_inside_an_at_most_once_tool_a_call_waits_with_its_lease():
    model = refusing(1, TransientError("slow down", status=429, retry_after=0.01))

    @tool(effect="at_most_once")
    async def summarize(ctx: RunContext) -> str:
        return (await ctx.llm([USER], model=model)).text

    async def story(ctx, inbox):
        return (await ctx.tool("summarize")).text

    code(story, tools=[summarize])
    run = drive(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, "hello")


def test_the_next_model_of_a_fallback_is_called_in_place_of_a_wait(clock):
    code(ask, model=FallbackModel([refusing(99, name="first"), ScriptedModel("hello", name="second")]))
    assert drive(make_run()).output == "hello"


def test_a_provider_that_refuses_everything_for_too_long_fails_the_run_and_is_named(clock, settings):
    settings.RAVI = {**settings.RAVI, "PROVIDER_WAIT_S": -1.0}
    code(ask, model=refusing(99, name="openai/gpt"))
    run = drive(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "RateLimited")
    assert "the provider of openai/gpt has refused all requests for -1 s: slow down" in run.error["message"]


def test_a_wait_beyond_the_runs_deadline_fails_at_once(clock):
    code(ask, model=refusing(99, TransientError("slow down", status=429, retry_after=600)))
    run = drive(make_run(deadline=clock.now + timedelta(seconds=60)))
    assert (run.status, run.error["type"]) == (Status.FAILED, "RateLimited")
    assert "after the run's deadline" in run.error["message"]


def test_a_stop_ends_a_wait_in_memory_at_once(monkeypatch):
    world.patch(monkeypatch, "PROVIDERS_MEMORY_S", 15.0)
    model = refusing(99, TransientError("slow down", status=429, retry_after=10))
    run = cancelled_in(make_run(), ask, model=model, began=lambda: model.calls)
    assert run.status == Status.CANCELLED


GEMINI = "You exceeded your current quota, please check your plan and billing details"


@pytest.mark.parametrize(
    ("body", "is_wait"),
    [
        ({"code": "rate_limit_exceeded", "message": "Limit 30000, Used 29000, Requested 2000. Try again in 2s"}, True),
        ({"code": "rate_limit_exceeded", "message": "Request too large: Limit 30000, Requested 52,000."}, False),
        ({"code": "insufficient_quota", "message": GEMINI}, False),
        ({"type": "billing_hard_limit_reached", "message": "limit"}, False),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "message": GEMINI}, True),
    ],
)
def test_a_429_is_final_by_its_code_or_a_size_above_the_limit_and_by_no_other_words(body, is_wait):
    class RateLimitError(Exception):
        status_code = 429
        response = SimpleNamespace(headers={"retry-after": "20"})

    error = RateLimitError("slow down")
    error.body = body
    assert isinstance(translate_error(error), TransientError) is is_wait
