"""Mistral: its order of messages, its ids, and no field that it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import RetryPolicy
from ravi_django.kernel.content import ImageBlock, TextBlock
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import Body, Provider, answer, call_piece, chunk, says
from tests.support.providers.mistral import check_mistral
from tests.unit.capabilities.llm.conftest import echo
from tests.unit.capabilities.llm.test_gemini import PNG, chart
from tests.unit.capabilities.llm.test_responses import Parcel

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]


NAMED = (("D681PevKs", "chart"), ("toolu_2", "echo"))


def model_at(server: Provider, name: str) -> Any:
    options = {"api_base": f"{server.url}/v1", "base_model": "mistral/mistral-large-latest"}
    return LLMFactory(name, "a-key-of-the-test", retry=RetryPolicy(max_attempts=1), **options).build()


def check(request: Body) -> str | None:
    """Other servers with Mistral's models take one more field."""
    return check_mistral({name: value for name, value in request.items() if name != "stream_options"})


def test_a_conversation_with_words_calls_images_and_a_correction(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": None}
    load_litellm()
    thinks = chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]})
    calls = [call_piece(at, id, name=name, arguments="{ }") for at, (id, name) in enumerate(NAMED)]
    first = answer(thinks, chunk({"content": "I look."}), *calls, reason="tool_calls")
    for name in ("mistral/mistral-large-latest", "mistral/magistral-medium-latest", "openai/devstral"):
        answers = first, first, says("no JSON"), says('{"order": 3}')  # the second one with the ids of the first
        with case(name), Provider(*answers, checker=check if name == "openai/devstral" else check_mistral) as server:
            agent = ReActAgent("mistral", model=model_at(server, name), tools=[echo, chart], result_model=Parcel)
            run = submit(register(agent, replace=True), [ImageBlock(data=PNG), TextBlock(text="look")])
            run_until_idle()
            run.refresh_from_db()
            assert (run.output, server.refused) == ('{"order":3}', []), run.error
            assert "I look." in str(server.requests[1]) and str(server.requests[1]).count(PNG) == 2
