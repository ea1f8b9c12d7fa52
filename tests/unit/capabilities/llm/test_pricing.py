"""What a call cost: whose prices count, and cached tokens among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ravi_django.capabilities.llm.collector import ResponseCollector
from ravi_django.capabilities.llm.loading import load_litellm
from ravi_django.capabilities.llm.pricing import cost_by, site_prices
from ravi_django.kernel import Usage
from tests.support import world
from tests.support.anthropic_server import AnthropicServer
from tests.support.openai_server import OpenAIServer, Reply

OURS = {"input_cost_per_token": 1.0, "output_cost_per_token": 10.0}
CLAUDE = "claude-sonnet-4-5"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The site's price table."""
    found: dict[str, Any] = {}
    world.patch(monkeypatch, "pricing_table", lambda: found)
    return found


class TestTable:
    def test_an_exact_name_goes_before_a_pattern(self, table):
        table |= {"gpt-*": {"a": 1}, "gpt-4o": {"b": 2}, "*": {"c": 3}}

        assert site_prices("gpt-4o") == {"b": 2}
        assert site_prices("gpt-4o-mini") == {"a": 1}, "the first pattern that fits"
        assert site_prices("claude") == {"c": 3}

    def test_a_model_is_known_by_any_of_its_names(self, table):
        table["gpt-4o-2024-08-06"] = OURS

        assert site_prices("azure/ours", "gpt-4o-2024-08-06") == OURS

    def test_no_entry(self, table):
        table["gpt-*"] = OURS

        assert site_prices("claude") is None


class TestCostBy:
    def test_cached_and_written_input_have_prices_of_their_own(self):
        prices = {**OURS, "cache_read_input_token_cost": 0.1, "cache_creation_input_token_cost": 1.25}
        usage = Usage(input_tokens=100, cached_tokens=60, output_tokens=2)

        assert cost_by(prices, usage, cache_writes=30) == pytest.approx(10 * 1 + 60 * 0.1 + 30 * 1.25 + 2 * 10)

    def test_they_cost_as_input_when_no_price_is_given(self):
        usage = Usage(input_tokens=100, cached_tokens=60, output_tokens=0)

        assert cost_by(OURS, usage, cache_writes=30) == 100

    @pytest.mark.parametrize("missing", OURS)
    def test_a_missing_price_is_unknown_not_nothing(self, missing):
        prices = {name: price for name, price in OURS.items() if name != missing}

        assert cost_by(prices, Usage(input_tokens=1, output_tokens=1)) is None

    def test_nothing_used_costs_nothing(self):
        assert cost_by({}, Usage()) == 0


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
class TestThroughLitellm:
    async def cost_of(self, model_at, events_of, server, name, **settings):
        with server:
            return (await events_of(model_at(server, name, **settings)))[-1]

    def openai(self) -> OpenAIServer:
        details = {"cached_tokens": 40}
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102, "prompt_tokens_details": details}
        return OpenAIServer(Reply(text="ok", usage=usage))

    def anthropic(self) -> AnthropicServer:
        usage = {
            "input_tokens": 10,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
            "output_tokens": 2,
        }
        return AnthropicServer(Reply(text="ok", usage=usage))

    async def test_the_sites_table_goes_before_litellms_list(self, model_at, events_of, table):
        table["openai/gpt-4*"] = {**OURS, "cache_read_input_token_cost": 0.5}

        response = await self.cost_of(model_at, events_of, self.openai(), "openai/gpt-4o")

        assert response.usage.cached_tokens == 40
        assert response.cost == pytest.approx(60 + 40 * 0.5 + 20)

    async def test_the_models_own_prices_go_before_the_table(self, model_at, events_of, table):
        table["*"] = {"input_cost_per_token": 100.0, "output_cost_per_token": 100.0}

        response = await self.cost_of(model_at, events_of, self.openai(), "openai/gpt-4o", prices=OURS)

        assert response.cost == pytest.approx(120)

    async def test_the_table_knows_what_litellm_does_not(self, model_at, events_of, table):
        table["openai/ours"] = OURS

        response = await self.cost_of(model_at, events_of, self.openai(), "openai/ours")

        assert response.cost == pytest.approx(120)

    async def test_anthropics_cache_is_counted(self, model_at, events_of):
        response = await self.cost_of(model_at, events_of, self.anthropic(), f"anthropic/{CLAUDE}")

        assert (response.usage.input_tokens, response.usage.cached_tokens) == (100, 60)
        price = load_litellm().model_cost[CLAUDE]
        expected = 10 * price["input_cost_per_token"] + 60 * price["cache_read_input_token_cost"]
        expected += 30 * price["cache_creation_input_token_cost"] + 2 * price["output_cost_per_token"]
        assert response.cost == pytest.approx(expected)

    async def test_anthropics_cache_by_the_table(self, model_at, events_of, table):
        table["anthropic/*"] = {
            **OURS,
            "cache_read_input_token_cost": 0.1,
            "cache_creation_input_token_cost": 1.25,
        }

        response = await self.cost_of(model_at, events_of, self.anthropic(), f"anthropic/{CLAUDE}")

        assert response.cost == pytest.approx(10 + 60 * 0.1 + 30 * 1.25 + 20)


@pytest.mark.parametrize(
    "usage",
    [
        SimpleNamespace(prompt_tokens=9, completion_tokens=1, cache_read_input_tokens=4, cache_creation_input_tokens=3),
        SimpleNamespace(
            prompt_tokens=9,
            completion_tokens=1,
            prompt_tokens_details=SimpleNamespace(cached_tokens=4, cache_creation_tokens=3),
        ),
    ],
)
def test_cached_tokens_under_either_name(usage):
    collector = ResponseCollector()
    collector.provider_usage = usage

    assert (collector.usage.cached_tokens, collector.cache_writes) == (4, 3)


def test_cached_tokens_of_a_server_that_calls_them_hits():
    collector = ResponseCollector()
    collector.provider_usage = SimpleNamespace(prompt_tokens=9, completion_tokens=1, prompt_cache_hit_tokens=4)

    assert (collector.usage.cached_tokens, collector.cache_writes) == (4, 0)
