"""Each request that reached its provider is on the bill: what it used is on a row, once, whatever became of its
answer."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from ravi_django import ReActAgent, register
from ravi_django.calls.llm import FallbackModel, LLMFactory
from ravi_django.kernel import ChatMessage, RetryPolicy
from ravi_django.models import DailyBudget, JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.budgets import balances, spent
from tests.support.providers import DONE, USAGE, Document, Provider, chunk, claude, data, says
from tests.support.runs import code, drive, make_run
from tests.support.world import aload_litellm

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _litellm():
    asyncio.run(aload_litellm())  # its import takes longer than the limits here


PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}
TEXT = "The quick brown fox jumps over the lazy dog. " * 4
WROTE = 41  # tokens of TEXT
HANGS = [line for _ in range(400) for line in (0.05, b":\n\n")]  # until its client leaves


def model(provider: Provider, name: str = "openai/m", prices: Any = PRICES, **options: Any) -> Any:
    api_base = provider.url if name.startswith("anthropic") else f"{provider.url}/v1"
    return LLMFactory(name, "any-key", api_base=api_base, prices=prices, **options).build()


async def ask(ctx: Any, inbox: Any) -> str:
    response = await ctx.llm([ChatMessage.of("user", "Tell me a story.")])
    return str(response.text)


def paid() -> list[tuple[str, str, int, int, bool]]:
    """Reason, model, tokens in and out, and whether they are estimated."""
    rows = JournalEntry.objects.filter(kind="llm.paid").order_by("seq")
    for row in rows:
        assert float(row.cost) == pytest.approx(0.001 * row.input_tokens + 0.01 * row.output_tokens)
    return [
        (row.result["reason"], row.name, row.input_tokens, row.output_tokens, row.result["estimated"]) for row in rows
    ]


def stopped_after(text: str, model: Any, **options: Any) -> Run:
    """A run whose person presses Stop once the answer ends with this text."""
    user = User.objects.create_user("ada")
    register(ReActAgent("teller", model=model, system_instructions=""), access="authenticated", replace=True)

    async def stop() -> Run:
        async with world.Runtime() as rt:
            return await stop_one(rt, text, user=user, **options)

    return asyncio.run(stop())


async def stop_one(rt: Any, text: str, **options: Any) -> Run:
    run = await rt.submit("react/teller", "Tell me a story.", **options)
    async for piece in rt.events(run):
        if getattr(piece, "text", "").endswith(text):
            await rt.cancel(run)
    return await Run.objects.aget(id=run)


def test_a_stopped_answer_costs_its_input_and_what_was_streamed():
    with Provider([chunk({"content": TEXT}), *HANGS]) as provider:
        run = stopped_after("dog. ", model(provider), budget={"max_cost_usd": 5.0})
    ((reason, name, read, wrote, estimated),) = paid()
    assert (run.status, reason, name, estimated) == (Status.CANCELLED, "stopped", "openai/m", True)
    assert 8 <= read <= 14 and wrote == WROTE
    assert (run.input_tokens, run.output_tokens) == (read, wrote)
    assert balances(run)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    assert client.get(f"/ravi/runs/{run.id}/").json()["usage"]["estimated"] is True
    foot = client.get(f"/ravi/runs/{run.id}/tree/").json()["tree"]["usage"]  # as the chat shows it below the answer
    assert (foot["cost"], foot["estimated"]) == (pytest.approx(0.001 * read + 0.01 * wrote), True)
    page = client.get(f"/ravi/ui/runs/{run.id}/").content.decode()
    assert "lost attempt · openai/m" in page and 'class="bar-gone"' in page


@pytest.mark.parametrize("is_early", [True, False])
def test_reported_usage_counts_with_the_end_of_the_answer_and_for_the_input_before(is_early):
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 111}
    usage |= {} if is_early else {"completion_tokens_details": {"reasoning_tokens": 100}}
    report, pieces = chunk(choices=[], usage=usage), [chunk({"content": TEXT}), chunk(reason="stop")]
    lines = [report, *pieces[:1]] if is_early else [*pieces, report]
    with Provider([*lines, *HANGS]) as slow, Provider(says("hello")) as other:
        second = model(other, "openai/second")
        code(ask, model=FallbackModel([model(slow), second], fallback_total=1.0))
        run = drive(make_run())
    assert paid() == [("fallback", "openai/m", 10, WROTE if is_early else 101, is_early)]
    row = JournalEntry.objects.get(kind="llm.call")
    assert (row.input_tokens, row.output_tokens, row.result["model"]) == (10, 5, "m")
    assert (run.output, run.input_tokens, run.usage_estimated) == ("hello", 20, is_early)


def test_claudes_first_event_counts_for_the_input_alone():
    lines = claude({"type": "text", "text": TEXT})
    with Provider([*lines[:3], *HANGS]) as slow, Provider(says("hello")) as other:
        code(ask, model=FallbackModel([model(slow, "anthropic/claude-x"), model(other)], fallback_total=1.0))
        drive(make_run())
    assert paid() == [("fallback", "anthropic/claude-x", 10, WROTE, True)]


ERROR = Document({"error": {"message": "no", "type": "server_error"}}, 503)
ONCE = RetryPolicy(max_attempts=2, base_s=0)


@pytest.mark.parametrize(
    ("first", "reason", "wrote"),
    [
        (ERROR, None, 0),
        ([data({"error": {"message": "busy", "code": 503}})], None, 0),
        ([chunk({"content": TEXT})], "cut", WROTE),
        ([], "cut", 0),
    ],
)
def test_a_repeated_request_is_paid_if_its_provider_has_begun_it(first, reason, wrote, clock):
    with Provider(first, says("hello")) as provider:
        code(ask, model=model(provider, retry=ONCE))
        run = drive(make_run())
        clock.advance(10)
        run = drive(run)
    assert (run.output, [row[0] for row in paid()]) == ("hello", [reason] if reason else [])
    assert run.output_tokens == wrote + 5


def test_no_connection_costs_nothing():
    with Provider() as closed:
        pass
    code(ask, model=model(closed, retry=RetryPolicy(max_attempts=1)))
    run = drive(make_run())
    assert (run.error["type"], run.input_tokens, paid()) == ("InternalServerError", 0, [])


def test_a_silent_provider_is_paid_for_the_input(settings):
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.5}
    with Provider([2.0]) as provider:
        code(ask, model=model(provider, retry=RetryPolicy(max_attempts=1)))
        run = drive(make_run())
    row = JournalEntry.objects.get(kind="llm.call")
    assert (row.error["type"], row.output_tokens, run.usage_estimated) == ("Timeout", 0, True) and row.input_tokens > 0


def test_a_stream_that_finally_fails_is_one_turn():
    with Provider([chunk({"content": TEXT})]) as provider:
        code(ask, model=model(provider, retry=RetryPolicy(max_attempts=1)))
        run = drive(make_run(budget={"max_turns": 5}))
    row = JournalEntry.objects.get(kind="llm.call")
    assert (row.error["type"], row.output_tokens, paid(), spent(run)[2]) == ("StreamCut", WROTE, [], 1)
    assert balances(run)


class Importing(ScriptedModel):
    def needs_library(self) -> bool:
        return True


def test_a_stop_while_the_library_is_imported_costs_nothing(monkeypatch):
    begun = asyncio.Event()

    async def imports() -> None:
        begun.set()
        await asyncio.sleep(60)

    world.patch(monkeypatch, "streaming_aload_litellm", imports)
    code(ask, model=Importing("hello"))

    async def stop() -> Run:
        async with world.Runtime() as rt:
            run = await rt.submit("test/code", "Tell me a story.", budget={"max_turns": 5})
            await begun.wait()
            await rt.cancel(run)
            async for _ in rt.events(run):
                pass
            return await Run.objects.aget(id=run)

    run = asyncio.run(stop())
    assert (run.status, paid(), run.input_tokens) == (Status.CANCELLED, [], 0)


def test_each_empty_answer_that_a_fallback_replaces_is_paid():
    with Provider([chunk(reason="stop"), USAGE, DONE]) as empty, Provider(says("hello")) as other:
        code(ask, model=FallbackModel([model(empty), model(empty, "openai/n"), model(other)]))
        drive(make_run())
    assert paid() == [("empty", "openai/m", 10, 5, False), ("empty", "openai/n", 10, 5, False)]


def test_a_daily_budget_ends_answers_that_are_stopped_shortly_before_their_end():
    user = User.objects.create_user("ada")
    DailyBudget.objects.create(owner=user, max_cost_usd=Decimal("0.01"))
    prices = {"input_cost_per_token": 0.0, "output_cost_per_token": 2e-5}  # an answer: 0.08 cents
    ended: list[Run] = []
    with Provider([chunk({"content": TEXT}), *HANGS]) as provider:
        priced = model(provider, prices=prices)

        async def stop_all() -> None:
            async with world.Runtime() as rt:
                while len(ended) < 50 and all(run.status == Status.CANCELLED for run in ended):
                    ended.append(await stop_one(rt, "dog. ", user=user))

        register(ReActAgent("teller", model=priced, system_instructions=""), access="authenticated", replace=True)
        asyncio.run(stop_all())
    assert (len(ended), len(provider.requests), ended[-1].error["type"]) == (14, 13, "BudgetExhaustedError")
    assert sum(run.cost for run in ended) == Decimal("0.01066")
