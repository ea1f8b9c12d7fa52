"""A budget in dollars and a model without a price: an error that names the model and the ways out."""

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from ravi_django import ReActAgent, register, submit
from ravi_django.agents import OrchestratorAgent, SubAgentConfig
from ravi_django.calls.llm import FallbackModel, LLMFactory
from ravi_django.kernel import ChatMessage, ExecutionBudget, ModelResponse, TextBlock, UnpricedModelError
from ravi_django.models import JournalEntry, Run
from ravi_django.testing import ScriptedModel
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

DOLLARS = {"max_cost_usd": 1.0}


class Plain:
    """A model that says nothing of its price."""

    name = "plain"

    async def stream(self, messages, options, meta):
        yield ModelResponse.of([TextBlock(text="hello")], usage={"input_tokens": 3, "output_tokens": 2})


async def ask(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def test_rest_names_the_model_and_the_ways_out():
    register(ReActAgent("plain", model=Plain()), access="authenticated", replace=True)
    client = APIClient()
    client.force_authenticate(User.objects.create_user("ada"))
    answer = client.post("/ravi/runs/", {"agent": "react/plain", "input": "hi", "budget": DOLLARS}, format="json")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (400, "unpriced_model", "budget")
    assert all(way in error["message"] for way in ("'plain'", "prices=", 'RAVI["PRICES"]', 'RAVI["UNKNOWN_PRICE"]'))
    assert not Run.objects.exists()
    assert client.post("/ravi/runs/", {"agent": "react/plain", "input": "hi"}, format="json").status_code == 201


def test_fallbacks_and_sub_agents_count_too():
    priced = ScriptedModel("hello")
    helper = ReActAgent("helper", model=Plain())
    limited = ReActAgent("limited", model=Plain(), budget=ExecutionBudget(**DOLLARS))
    for agent, budget in (
        (ReActAgent("a", model=FallbackModel([priced, Plain()])), DOLLARS),
        (OrchestratorAgent("a", model=priced, sub_agents=[SubAgentConfig(agent=helper)]), DOLLARS),
        (limited, None),
        (ReActAgent("a", model=priced, tools=[limited]), None),
    ):
        register(agent, replace=True)
        with pytest.raises(UnpricedModelError, match="'plain'"):
            submit(agent, "hi", budget=budget)


def test_a_daily_budget_in_dollars_stops_the_first_request(settings):
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"tenant": DOLLARS}}
    code(ask, model=Plain())
    run = drive(make_run(tenant="shop"))
    assert (run.status, run.error["type"], run.input_tokens) == ("failed", "UnpricedModelError", 0)
    assert JournalEntry.objects.get(kind="llm.call").error["type"] == "UnpricedModelError"


@pytest.mark.parametrize(("price", "cost"), [("allow", 0), (1000.0, 0.005)])
def test_the_site_may_set_a_price_for_all_other_models(settings, price, cost):
    settings.RAVI = {**settings.RAVI, "UNKNOWN_PRICE": price}
    code(ask, model=Plain())
    run = drive(make_run(budget=DOLLARS))
    assert (run.output, float(run.cost), run.cost_unknown) == ("hello", cost, price == "allow")


def test_a_model_has_a_price_by_its_own_the_table_or_the_list(settings):
    settings.RAVI = {**settings.RAVI, "PRICES": {"pl*": {"input_cost_per_token": 1, "output_cost_per_token": 1}}}
    for model in (Plain(), LLMFactory("gpt-4o", "any-key").build(), LLMFactory("rehearsal").build()):
        register(ReActAgent("b", model=model), replace=True)
        assert submit("react/b", "hi", budget=DOLLARS)
