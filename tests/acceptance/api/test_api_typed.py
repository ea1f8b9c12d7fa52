"""Typed results over REST: the validated JSON, and its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from rest_framework.test import APIClient

from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.agents.memory.transcript import CORRECTION
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Turn
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import drive
from tests.support import world

TYPED = "react/api-typed"


class City(BaseModel):
    name: str
    people: int


def make(kind: Any = City, **arguments: Any) -> None:
    call = ToolUseBlock(tool_name="final_result", arguments=arguments, call_id="c1")
    memory = ContextConfig(DjangoHistoryProvider())
    world.register(ReActAgent("api-typed", model=ScriptedModel([call]), result_model=kind, context=memory))


@pytest.fixture(autouse=True)
def typed() -> None:
    world.bodies_forget()
    make(name="Bern", people=140000)


@pytest.mark.django_db
def test_an_agent_shows_the_schema_of_its_answers(client: APIClient, agent: str) -> None:
    shown = client.get(f"/ravi/agents/{TYPED}/").json()["result_schema"]

    assert (shown["required"], shown["properties"]["people"]) == (["name", "people"], {"type": "integer"})
    assert client.get(f"/ravi/agents/{agent}/").json()["result_schema"] is None


@pytest.mark.django_db(transaction=True)
def test_a_runs_output_is_json_and_comes_with_its_schema(client, agent, django_assert_num_queries) -> None:
    started = client.post("/ravi/runs/", {"agent": TYPED, "input": "which?"}, format="json").json()
    assert "output_schema" not in client.get(f"/ravi/runs/{started['id']}/").json()
    drive(started["id"])
    make(list[int], result=[1])  # the code is another by now

    done = client.get(f"/ravi/runs/{started['id']}/").json()

    assert json.loads(done["output"]) == {"name": "Bern", "people": 140000}
    assert done["output_schema"]["required"] == ["name", "people"]
    with django_assert_num_queries(2):
        client.get(f"/ravi/runs/{started['id']}/")
    said = client.get(f"/ravi/sessions/{done['session']}/messages/").json()["results"]
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant"]
    assert said[-1]["content"] == [{"type": "text", "text": done["output"]}]


@pytest.mark.django_db(transaction=True)
def test_what_the_model_was_told_of_a_wrong_answer_was_not_said(client: APIClient, agent: str) -> None:
    def answer(messages: Any, options: Any) -> str:
        wrong = not any(message.name == CORRECTION for message in messages)
        return "in words" if wrong else '{"name": "Bern", "people": 140000}'

    memory, model = ContextConfig(DjangoHistoryProvider()), ScriptedModel([answer])
    world.register(ReActAgent("api-typed", model=model, result_model=City, context=memory), replace=True)
    run = client.post("/ravi/runs/", {"agent": TYPED, "input": "which?"}, format="json").json()
    drive(run["id"])

    said = client.get(f"/ravi/sessions/{run['session']}/messages/").json()["results"]

    assert [message["role"] for message in said] == ["user", "assistant", "assistant"]
    assert "not a valid result" not in str(said)
    assert Turn.objects.filter(session=run["session"]).count() == 4
