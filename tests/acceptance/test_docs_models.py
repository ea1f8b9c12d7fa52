"""What docs/models.md shows does what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ravi_django.calls.llm import FallbackModel, LiteLLMModel
from ravi_django.calls.llm.wire import to_wire
from ravi_django.kernel import ChatMessage
from ravi_django.models import Status
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import code, drive, make_run

PAGE = Page("models")


def test_every_block_is_tested() -> None:
    names = re.findall(r"```python\n(?:# models: (\w+))?", PAGE.text)
    assert set(names) == {"one", "fallbacks", "limits", "media", "prices", "own"}


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
    assert model.retry is not None and model.retry.retry_on == {409}


def test_media() -> None:
    (wired,) = to_wire([PAGE.run("models: media")["message"]])

    assert [part["type"] for part in wired["content"]] == ["text", "image_url", "file"]


def test_prices() -> None:
    assert list(world.prices_errors(PAGE.run("models: prices")["RAVI"]["PRICES"])) == []


@pytest.mark.django_db(transaction=True)
def test_own() -> None:
    async def ask(ctx: Any, inbox: Any) -> str:
        return str((await ctx.llm([ChatMessage.of("user", "hello")])).text)

    code(ask, model=PAGE.run("models: own")["Parrot"]())

    run = drive(make_run())

    assert (run.status, run.output, run.cost_unknown) == (Status.COMPLETED, "hello", False)
