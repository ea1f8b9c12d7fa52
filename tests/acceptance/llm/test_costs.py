"""What a call cost, from the price table to the page: and unknown is unknown, never nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from ravi_django.kernel import Usage
from ravi_django.models import Run
from ravi_django.testing import ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}


@pytest.fixture
def ran(web: Any, agent: Callable[[Any], str], drive: Callable[[str], None]) -> Callable[..., dict[str, Any]]:
    def run(**said: Any) -> dict[str, Any]:
        model = ScriptedModel("hello", name="ours/big", usage=Usage(input_tokens=100, output_tokens=20), **said)
        run_id = web.post("/ravi/runs/", {"agent": agent(model), "input": "hi"}, format="json").json()["id"]
        drive(run_id)
        found: dict[str, Any] = web.get(f"/ravi/runs/{run_id}/").json()
        return found

    return run


def shown(browser: Any, run: dict[str, Any]) -> str:
    page = browser.get(f"/ravi/ui/runs/{run['id']}/")
    assert page.status_code == 200
    return str(page.content.decode())


def test_an_unknown_price_is_shown_as_unknown(ran, web, browser):
    run = ran()

    row = Run.objects.get()
    assert (row.cost_unknown, row.input_tokens) == (True, 100)
    assert run["usage"]["cost"] is None
    journal = web.get(f"/ravi/runs/{run['id']}/journal/").json()["results"]
    assert [entry["usage"]["cost"] for entry in journal if entry["kind"] == "llm.call"] == [None]
    assert "unknown" in shown(browser, run)


def test_the_table_prices_what_is_unknown(ran, settings, browser):
    settings.RAVI = {**settings.RAVI, "PRICES": {"ours/*": PRICES}}

    run = ran()

    assert run["usage"]["cost"] == pytest.approx(0.3)
    assert Run.objects.get().cost_unknown is False
    assert "unknown" not in shown(browser, run).lower().split("cost", 1)[1][:200]


def test_what_the_model_knows_itself_stays(ran, settings):
    settings.RAVI = {**settings.RAVI, "PRICES": {"*": PRICES}}

    assert ran(cost=0.0)["usage"]["cost"] == 0.0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "not a dict"),
        ({"gpt-4o": 3}, r"\['gpt-4o'\] is no dict"),
        ({"gpt-4o": {**PRICES, "price": 1}}, r"\['gpt-4o'\] has an unknown key 'price'"),
        ({"gpt-4o": {**PRICES, "input_cost_per_token": -1}}, r"\['gpt-4o'\]\['input_cost_per_token'\] is -1"),
        ({"gpt-4o": {**PRICES, "input_cost_per_token": "1"}}, "is '1', not dollars"),
        ({"gpt-4o": {**PRICES, "input_cost_per_token": True}}, "is True, not dollars"),
        ({"gpt-4o": {**PRICES, "input_cost_per_token": float("nan")}}, "is nan, not dollars"),
        ({"gpt-4o": {"input_cost_per_token": 1}}, "has no 'output_cost_per_token'"),
    ],
)
def test_the_check_names_what_is_wrong_with_the_table(settings, table, words):
    settings.RAVI = {**settings.RAVI, "PRICES": table}

    with pytest.raises(SystemCheckError, match=words) as caught:
        call_command("check")

    assert "ravi.E007" in str(caught.value)
    full = {**PRICES, "cache_read_input_token_cost": 0, "cache_creation_input_token_cost": 1.5}
    settings.RAVI = {**settings.RAVI, "PRICES": {"gpt-4o": PRICES, "ours/*": full}}
    call_command("check")
