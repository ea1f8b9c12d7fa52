"""Agents that are rows, over REST: found, run and shown as those of code are, and nothing of their insides."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django.models import Agent, Run
from ravi_django.testing import ScriptedModel
from tests.acceptance.admin.agent_support import faults, form_of
from tests.acceptance.api.api_support import SCRIPT, drive, error_of
from tests.support import world

pytestmark = pytest.mark.django_db
ROW = "react/api-row"
SPEC: dict[str, Any] = {
    "model": "gpt-4o-mini",
    "system_instructions": "The secret of {{ customer }} is sk-secret-key.",
    "variables": {"customer": {"description": "whom", "required": True}, "tone": {"default": "kind"}},
    "tool_names": ["calculator"],
    "sub_agents": ["react/api-helper"],
    "starter_prompts": ["What is 6 * 7?"],
    "welcome": "Good day.",
    "name": "Adder",
    "description": "Adds.",
    "options": {"extra": {"user": "secret-user"}},
    "fallbacks": ["secret-model"],
}
ASKED = {"agent": ROW, "input": "6 * 7?", "metadata": {"variables": {"customer": "Ada"}}}


@pytest.fixture
def row(user: Any, agent: str) -> Agent:
    return world.save_spec(ROW, SPEC, access="authenticated")


def addresses(client: APIClient) -> list[str]:
    return [found["agent"] for found in client.get("/ravi/agents/").json()["results"]]


def test_a_row_is_shown_to_who_may_run_it_without_its_insides(client: APIClient, agent: str, row: Agent) -> None:
    shown = client.get(f"/ravi/agents/{ROW}/").json()

    assert {name: shown[name] for name in ("agent", "type", "key", "namespace", "class", "version")} == {
        **{"agent": ROW, "type": "react", "key": "api-row", "namespace": "default", "class": "ReActAgent"},
        "version": 1,
    }
    assert (shown["name"], shown["description"], shown["model"]) == ("Adder", "Adds.", "gpt-4o-mini")
    assert (shown["welcome"], shown["starter_prompts"]) == ("Good day.", ["What is 6 * 7?"])
    assert shown["variables"] == {
        "customer": {"description": "whom", "required": True},
        "tone": {"description": "", "required": False},  # its default is text of the instructions
    }
    assert [(tool["name"], tool["risk"], tool["effect"]) for tool in shown["tools"]] == [
        ("calculator", "safe", "idempotent"),
        ("handoff_api-helper", "safe", "idempotent"),
    ]
    assert shown in client.get("/ravi/agents/").json()["results"]
    assert b"secret" not in client.get(f"/ravi/agents/{ROW}/").content + client.get("/ravi/agents/").content
    code = client.get(f"/ravi/agents/{agent}/").json()
    assert code.keys() == shown.keys()
    assert (code["version"], code["welcome"], code["starter_prompts"], code["variables"]) == (None, "", [], {})


def test_what_cannot_be_run_is_not_there(client: APIClient, row: Agent) -> None:
    for change in ({"enabled": False}, {"enabled": True, "source": "code"}):
        Agent.objects.filter(address=ROW).update(**change)
        assert client.get(f"/ravi/agents/{ROW}/").status_code == 404, change
        assert ROW not in addresses(client)
        response = client.post("/ravi/runs/", ASKED, format="json")
        assert (response.status_code, error_of(response)["field"]) == (404, "agent"), change
    assert not Run.objects.exists()


def test_a_row_whose_tool_is_gone_or_of_a_later_release_is_shown(client: APIClient, agent: str, row: Agent) -> None:
    Agent.objects.filter(address=ROW).update(spec={"model": "m", "tool_names": ["nonsense", "calculator"]})
    assert [tool["name"] for tool in client.get(f"/ravi/agents/{ROW}/").json()["tools"]] == ["calculator"]

    Agent.objects.filter(address=ROW).update(spec={"model": "m", "a_new_field": 1, "tool_names": ["calculator"]})
    assert {agent, ROW} <= set(addresses(client))


def test_variables_that_do_not_fit_are_a_400(client: APIClient, row: Agent) -> None:
    for variables, field in (
        ({}, "metadata.variables.customer"),
        ({"customer": "Ada", "colour": "red"}, "metadata.variables.colour"),
        ("Ada", "metadata.variables"),
    ):
        response = client.post("/ravi/runs/", {**ASKED, "metadata": {"variables": variables}}, format="json")
        assert (response.status_code, error_of(response)["field"]) == (400, field)
    session = client.post("/ravi/sessions/", {}, format="json").json()["id"]
    response = client.post(f"/ravi/sessions/{session}/messages/", {"agent": ROW, "text": "hi"}, format="json")
    assert (response.status_code, error_of(response)["field"]) == (400, "metadata.variables.customer")
    assert not Run.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_run_of_a_row_says_its_version_and_is_its_owners_alone(client, strange_client, row, monkeypatch) -> None:
    world.patch(monkeypatch, "build_model", lambda name, **options: ScriptedModel(SCRIPT))
    started = client.post("/ravi/runs/", ASKED, format="json")
    assert (started.status_code, started.json()["agent_version"]) == (201, 1)
    world.save_spec(ROW, {**SPEC, "welcome": "Hello."})
    address = f"/ravi/runs/{started.json()['id']}/"

    drive(started.json()["id"])

    done = client.get(address).json()
    assert (done["status"], done["output"], done["agent_version"]) == ("completed", "It is 42.", 1)
    assert client.get("/ravi/runs/").json()["results"][0]["agent_version"] == 1
    assert client.get(f"/ravi/agents/{ROW}/").json()["version"] == 2
    assert client.post("/ravi/runs/", ASKED, format="json").json()["agent_version"] == 2
    assert strange_client.get(address).status_code == 404
    session = {**ASKED, "session": done["session"]}
    assert error_of(strange_client.post("/ravi/runs/", session, format="json"))["field"] == "session"


@pytest.mark.django_db(transaction=True)
def test_a_withdrawn_version_is_neither_forked_nor_retried_and_a_new_message_takes_the_present_one(
    client, row, admin_client, monkeypatch
) -> None:
    tools: list[list[str]] = []

    def answer(messages: Any, options: Any) -> str:
        tools.append([tool.name for tool in options.tools])
        return "fine"

    world.patch(monkeypatch, "build_model", lambda name, **options: ScriptedModel([answer]))
    first = client.post("/ravi/runs/", ASKED, format="json").json()["id"]
    drive(first)
    world.save_spec(ROW, {**SPEC, "tool_names": [], "sub_agents": []})

    def fork(**body: Any) -> Any:
        return client.post(f"/ravi/runs/{first}/fork/", body, format="json")

    kept, edited = fork(after_seq=1), fork(input="Again?")

    assert [answer.json()["agent_version"] for answer in (kept, edited)] == [1, 2]
    for response in (kept, edited):
        drive(response.json()["id"])
    assert sorted(bool(names) for names in tools) == [False, True, True]
    assert client.get(f"/ravi/runs/{edited.json()['id']}/").json()["output"] == "fine"
    change = f"/admin/ravi/agent/{row.pk}/change/"
    fields = form_of(admin_client, row)
    saved = [admin_client.post(change, {**fields, "oldest_version": oldest}) for oldest in ("3", "2")]
    assert [answer.status_code for answer in saved] == [200, 302]
    assert faults(saved[0]) == {"oldest_version": "The newest version is 2."}
    assert Agent.objects.get(pk=row.pk).oldest_version == 2
    Run.objects.filter(id=first).update(status="failed")
    late = [fork(after_seq=1), client.post(f"/ravi/runs/{first}/retry/")]
    assert [answer.status_code for answer in late] == [409, 409]
    assert all(f"version 1 of agent {ROW}" in error_of(answer)["message"] for answer in late)
    assert fork(input="And now?").json()["agent_version"] == 2
    assert fork(input="And now?").status_code == 201
    world.save_spec(
        ROW, {**SPEC, "tool_names": [], "sub_agents": [], "variables": {**SPEC["variables"], "new": {"required": True}}}
    )
    assert fork(input="x").status_code == 400
