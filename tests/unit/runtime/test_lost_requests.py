"""A request that is lost with a killed worker is on the bill of the run that goes on."""

import asyncio
from typing import Any

import pytest

from ravi_django.calls.llm import FallbackModel, LLMFactory
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.budgets import balances, lost, spent
from tests.support.providers import Document, Provider, chunk, says
from tests.support.runs import code, drive, leased, make_run, take_over
from tests.support.world import aload_litellm

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "The quick brown fox jumps over the lazy dog. "
WROTE = 11  # tokens of TEXT
PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}


@pytest.fixture(autouse=True)
def _litellm():
    asyncio.run(aload_litellm())  # its import takes longer than the limits here


def model(provider: Provider, name: str = "openai/m") -> Any:
    return LLMFactory(name, "any-key", api_base=f"{provider.url}/v1", prices=PRICES).build()


async def ask(ctx: Any, inbox: Any) -> str:
    return str((await ctx.llm([ChatMessage.of("user", "Tell me a story.")])).text)


def paid() -> list[tuple[str, str, int]]:
    """Model, reason, and tokens of the output."""
    rows = JournalEntry.objects.filter(kind="llm.paid").order_by("seq")
    for row in rows:
        assert row.input_tokens > 0
        assert float(row.cost) == pytest.approx(0.001 * row.input_tokens + 0.01 * row.output_tokens)
    return [(row.name, row.result["reason"], row.output_tokens) for row in rows]


@pytest.mark.parametrize("budget", [None, {"max_tokens": 100_000}])
def test_each_lost_attempt_of_a_call_has_one_row(clock, budget):
    with Provider(says(TEXT)) as provider:
        code(ask, model=model(provider))
        run = drive(make_run(budget=budget), dies=1)
        assert paid() == []
        clock.advance(conf.LEASE_S + 1)
        run = drive(run, dies=1)  # before the commit of the first row
        assert (paid(), len(provider.requests)) == ([], 1)
        clock.advance(conf.LEASE_S + 1)
        run = drive(run, dies=2)
        clock.advance(conf.LEASE_S + 1)
        run = take_over(clock, run)
    assert (run.status, len(provider.requests)) == (Status.COMPLETED, 3)
    assert paid() == [("openai/m", "lost", WROTE)] * 2
    assert not budget or (balances(run) and spent(run)[2] == 3)


def test_the_models_that_a_lost_fallback_had_called_are_paid_each(clock):
    with Provider([chunk({"content": TEXT})]) as cut, Provider(says(TEXT)) as other:
        code(ask, model=FallbackModel([model(cut), model(other, "openai/second")]))
        take_over(clock, drive(make_run(), dies=1))
    assert paid()[:2] == [("openai/m", "lost", WROTE), ("openai/second", "lost", WROTE)]


def test_a_mark_outlives_that_others_free_its_reservation(clock):
    code(ask, model=ScriptedModel(["hello"] * 3))
    run = drive(make_run(budget={"max_turns": 3}), dies=1)
    clock.advance(2 * conf.LEASE_S + 1)
    other = leased(make_run(budget={"max_turns": 3}))
    Run.objects.filter(id=other.run_id).update(root=run, parent=run)
    other.run.root = run
    world.free_abandoned(other, clock.now.date())
    run = take_over(clock, run)
    assert (lost(run), spent(run)[2]) == (1, 2)


def test_a_run_that_nobody_can_drive_pays_too(clock):
    code(ask, model=ScriptedModel(["hello"] * 3))
    run = drive(make_run(budget={"max_turns": 3}), dies=1)
    Run.objects.filter(id=run.id).update(crashes=conf.MAX_ATTEMPTS)
    run = take_over(clock, run)
    assert (run.status, lost(run), spent(run)[2]) == (Status.BLOCKED, 1, 1)


def test_a_request_whose_row_is_written_is_not_lost(clock):
    async def twice(ctx: Any, inbox: Any) -> str:
        return await ask(ctx, inbox) + await ask(ctx, inbox)

    with Provider(says(TEXT)) as provider:
        code(twice, model=model(provider))
        run = take_over(clock, drive(make_run(), dies=2))
    assert (run.status, len(provider.requests), len(paid())) == (Status.COMPLETED, 3, 1)


def test_a_refused_request_before_a_lost_one_costs_nothing(clock):
    with Provider(Document({"error": {"message": "no"}}, 503)) as busy, Provider(says(TEXT)) as other:
        code(ask, model=FallbackModel([model(busy), model(other, "openai/second")]))
        take_over(clock, drive(make_run(), dies=1))
    assert paid() == [("openai/second", "lost", WROTE)]
