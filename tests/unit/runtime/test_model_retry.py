"""A model's RetryPolicy: which failures come again, when, and how often; as rows, and across crashes."""

from __future__ import annotations

import pytest

from ravi_django.capabilities.llm import LLMFactory, close_clients
from ravi_django.capabilities.llm.loading import load_litellm
from ravi_django.kernel import ChatMessage, ModelError, RetryPolicy, TransientError
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

BUSY = TransientError("slow down", type="RateLimitError", status=429)
BAD = ModelError("try me again", type="BadRequestError", status=400)


def failing(error, policy, times=99):
    """A model with a policy that fails so often and then answers."""
    left = [times]

    def say(messages, options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "hello"

    model = ScriptedModel([say])
    model.retry = policy
    return model


async def ask(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def retried():
    return [(row.error["type"], row.result["attempt"], row.result["retry_in_s"]) for row in retry_rows()]


def retry_rows():
    return JournalEntry.objects.filter(kind="run.retried").order_by("seq")


def test_the_policy_says_how_long_and_how_often(clock):
    model = failing(BUSY, RetryPolicy(max_attempts=3, base_s=10, jitter=0))
    code(ask, model=model)
    run = make_run()
    waits = []
    for _ in range(2):
        drive(run)
        waits.append((run.wake_at - clock.now).total_seconds())
        clock.advance(60)
    drive(run)
    assert waits == [10, 20]
    assert retried() == [("RateLimitError", 1, 10), ("RateLimitError", 2, 20)]
    assert (run.status, run.error["type"], len(model.calls)) == (Status.FAILED, "RateLimitError", 3)


def test_a_policy_goes_before_the_sites_settings(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 2, "RETRY_BASE_S": 30}
    code(ask, model=failing(BUSY, None))
    run = drive(make_run())
    assert 15 <= (run.wake_at - clock.now).total_seconds() <= 30
    clock.advance(60)
    assert drive(run).status == Status.FAILED
    code(ask, model=failing(BUSY, RetryPolicy(max_attempts=4), times=3))
    run = make_run()
    for _ in range(3):
        assert drive(run).status == Status.PENDING
        clock.advance(60)
    assert drive(run).output == "hello"
    long = TransientError("back tomorrow", retry_after=86_400)
    code(ask, model=failing(long, RetryPolicy(base_s=1, max_retry_after_s=20)))
    assert (drive(make_run()).wake_at - clock.now).total_seconds() == 20


def test_a_transient_error_that_is_given_up_on_is_final(clock):
    model = failing(BUSY, RetryPolicy(give_up_on={429}))
    code(ask, model=model)
    run = drive(make_run())
    assert (run.status, run.error) == (Status.FAILED, {"type": "RateLimitError", "message": "slow down"})
    assert JournalEntry.objects.get(kind="llm.call").error["status"] == 429
    assert len(model.calls) == 1


def test_a_permanent_error_that_is_named_comes_again(clock):
    code(ask, model=failing(BAD, RetryPolicy(retry_on={"BadRequestError"}), times=1))
    run = drive(make_run())
    assert (run.status, run.attempts) == (Status.PENDING, 1)
    assert not JournalEntry.objects.filter(kind="llm.call").exists()
    clock.advance(60)
    assert drive(run).output == "hello"


@pytest.mark.filterwarnings("ignore:unclosed")
def test_retry_after_of_a_real_server_is_a_row_with_a_time(clock):
    # One that an earlier test has left, of a loop that is gone, would be taken for that of a new loop at its address.
    load_litellm().in_memory_llm_clients_cache.cache_dict.clear()
    busy = Reply(status=429, text="slow down", error_type="rate_limit_error", headers={"retry-after": "7"})
    with OpenAIServer([busy, Reply(text="hello")]) as server:

        async def story(ctx, inbox):
            try:
                return await ask(ctx, inbox)
            finally:
                await close_clients()  # each lease of a test has a loop of its own

        code(story, model=LLMFactory("openai/gpt-4o", "sk-x-0123456789abc", api_base=server.base_url).build())
        run = drive(make_run())
        assert (run.status, run.lease_owner) == (Status.PENDING, "")
        assert retried() == [("RateLimitError", 1, 7)]
        assert (run.wake_at - clock.now).total_seconds() == 7
        clock.advance(6.9)
        assert not world.claim(run.id, "early"), "nobody may have it before"
        clock.advance(0.2)
        drive(run)
    assert (run.status, run.output, len(server.requests)) == (Status.COMPLETED, "hello", 2)


def test_the_count_goes_on_across_a_crash(clock):
    model = failing(BUSY, RetryPolicy(max_attempts=3, jitter=0))
    code(ask, model=model)
    run = drive(make_run())
    clock.advance(60)
    drive(run, dies="end")
    assert (run.status, run.attempts) == (Status.RUNNING, 1), "its worker died before it could give the run back"
    take_over(clock, run)
    assert (run.status, run.attempts) == (Status.PENDING, 2)
    clock.advance(60)
    drive(run)
    assert run.status == Status.FAILED
    assert [attempt for _, attempt, _ in retried()] == [1, 2]
