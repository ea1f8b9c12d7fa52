"""What docs/howto/models.md and docs/howto/costs.md show does what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ravi_django.calls.llm import FallbackModel, LiteLLMModel
from ravi_django.calls.llm.wire import to_wire
from ravi_django.kernel import ChatMessage, TransientError
from ravi_django.models import Status
from ravi_django.testing import FakeClock, ScriptedModel
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import code, drive, make_run

PAGE, COSTS, MEDIA = Page("models"), Page("costs"), Page("media")


def test_every_block_is_tested() -> None:
    names = re.findall(r"```python\n(?:# models: (\w+))?", PAGE.text + COSTS.text + MEDIA.text)
    assert set(names) == {"one", "fallbacks", "limits", "media", "prices", "own", "thinking", "tenants"}


def test_limits() -> None:
    assert [*world.limit_errors(PAGE.run("models: limits")["RAVI"]["MODEL_LIMITS"])] == []


def test_one() -> None:
    model = PAGE.run("models: one")["model"]

    assert isinstance(model, LiteLLMModel)
    assert model.name == "openai/any-name"


def test_fallbacks() -> None:
    model = PAGE.run("models: fallbacks")["model"]

    assert isinstance(model, FallbackModel)
    assert [member.name for member in model.models] == ["gpt-4o", "anthropic/claude-sonnet-4-5", "openai/ours"]
    assert model.retry is not None and model.retry.retry_on == {403}


def test_media() -> None:
    (wired,) = to_wire([MEDIA.run("models: media")["message"]])

    assert [part["type"] for part in wired["content"]] == ["text", "image_url", "file"]


def test_prices() -> None:
    assert list(world.prices_errors(COSTS.run("models: prices")["RAVI"]["PRICES"])) == []


@pytest.mark.django_db(transaction=True)
def test_own() -> None:
    async def ask(ctx: Any, inbox: Any) -> str:
        return str((await ctx.llm([ChatMessage.of("user", "hello")])).text)

    code(ask, model=PAGE.run("models: own")["Parrot"]())

    run = drive(make_run())

    assert (run.status, run.output, run.cost_unknown) == (Status.COMPLETED, "hello", False)


def test_thinking() -> None:
    page = PAGE.run("models: thinking")

    assert page["claude"].params["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert page["planner"].model is page["claude"]
    assert page["helper"].model == "gpt-5"


class Keyed:
    """`LLMFactory` of the page's code."""

    models: dict[str, Any] = {}

    def __init__(self, name: str, key: str) -> None:
        self.key = key

    def build(self) -> Any:
        return self.models[self.key]


@pytest.mark.django_db(transaction=True)
def test_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(ctx: Any, inbox: Any) -> str:
        return str((await ctx.llm([ChatMessage.of("user", "hello")])).text)

    async def key_of(tenant: str) -> str:
        return keys[tenant]

    def refuse(messages: Any, options: Any) -> str:
        raise TransientError("slow down", status=429, retry_after=40)

    world.patch(monkeypatch, "PROVIDERS_MEMORY_S", 0.0)
    models = {"k1": PAGE.run("models: own")["Parrot"](), "k2": ScriptedModel([refuse]), "k3": ScriptedModel(["again"])}
    monkeypatch.setattr(Keyed, "models", models)
    keys = {"": "k1", "acme": "k2"}
    page = PAGE.run("models: tenants")
    page["PerTenant"].stream.__globals__["LLMFactory"] = Keyed
    code(ask, model=page["PerTenant"](key_of))

    with FakeClock() as clock:
        acme = drive(make_run(tenant="acme"))
        assert (acme.status, drive(make_run()).output) == (Status.SUSPENDED, "hello"), "a limit is its tenant's alone"
        keys["acme"] = "k3"
        clock.advance(60)
        world.permits_grant()
        assert drive(acme).output == "again", "a new key counts from the next call on"
