"""Typed results through the real litellm: what goes over the wire, and a takeover amid the tries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.capabilities.llm import warm
from ravi_django.integrations.llm import LLMFactory
from ravi_django.models import Status
from tests.support.openai_server import Body, OpenAIServer, Reply
from tests.support.runs import drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = '{"name":"Bern","people":140000}'


class City(BaseModel):
    name: str
    people: int


def by_text(body: Body) -> Reply:
    tried = sum(message["role"] == "assistant" for message in body["messages"])
    return Reply(text=TEXT if tried else '{"name": "Bern"}')


def by_tool(body: Body) -> Reply:
    tried = sum(message["role"] == "assistant" for message in body["messages"])
    return Reply(tool_calls=(("final_result", json.loads(TEXT) if tried else {"people": "many", "name": "Bern"}),))


@pytest.mark.parametrize(
    ("name", "script"), [("openai/gpt-4o", by_text), ("openai/gpt-3.5-turbo", by_tool)], ids=["schema", "tool"]
)
def test_a_result_is_asked_for_as_the_provider_can_and_tries_are_not_repeated(name: str, script: Any, clock: Any):
    warm()  # an import amid the run takes longer than a busy machine leaves it
    with OpenAIServer(script) as server:
        model = LLMFactory(name, "sk-test", api_base=server.base_url).build()
        register(ReActAgent("wired", model=model, result_model=City))

        run = drive(make_run("react/wired"), dies=2)
        run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, TEXT), run.error
    bodies = [request.body for request in server.requests]
    tries = [sum(message["role"] == "assistant" for message in body["messages"]) for body in bodies]
    assert tries == [0, 1, 1]  # the one that was in flight is made again, the recorded one is not
    assert json.dumps(bodies[1]) == json.dumps(bodies[2])  # a provider's prompt cache goes by bytes
    assert "people" in bodies[1]["messages"][-1]["content"]
    if script is by_text:
        described = bodies[0]["response_format"]["json_schema"]
        assert (described["name"], described["strict"]) == ("City", True)
        assert described["schema"]["required"] == ["name", "people"]
        assert "tools" not in bodies[0]
    else:
        (shown,) = bodies[0]["tools"]
        assert shown["function"]["name"] == "final_result"
        assert shown["function"]["parameters"]["required"] == ["name", "people"]
        assert "response_format" not in bodies[0]
        assert bodies[1]["messages"][-1]["role"] == "tool"
