"""Making and changing an agent in the admin, over HTTP as a browser does."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connections, transaction

from ravi_django import register_tool, tool
from ravi_django.admin.agents.fields import from_text, to_text
from ravi_django.admin.agents.form import AgentForm
from ravi_django.admin.agents.values import FLAT, NESTED
from ravi_django.agents.spec.spec import AgentSpec, ModelSettings, Window
from ravi_django.kernel import ExecutionBudget
from ravi_django.models import Agent, AgentVersion, Run
from tests.acceptance.admin.agent_support import (
    EVERYTHING,
    FEED,
    FORM,
    INFORMATION,
    NEWS,
    SPEC,
    add,
    faults,
    form_of,
    place,
)
from tests.support import world
from tests.support.cases import case, queries_of
from tests.support.inbox import EVIL, html_of
from tests.support.patience import BOUND_S
from tests.support.runs import on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import save_spec, submit_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(transactional_db: None) -> Agent:
    return save_spec("support/orders", SPEC)


def text_of(page: bytes) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.decode()))


# ------------------------------------------------------------------------------------------------- saving


def test_an_agent_is_made(root) -> None:
    response = add(
        root,
        **{
            "system_instructions": "Help {{ company }}.\nBe {{ tone }}.",
            "variables-0-name": "company",
            "variables-0-required": "on",
            "variables-0-description": "whose shop",
            "variables-1-name": "tone",
            "variables-1-default": "kind",
            "variables-1-sample": "not kept",
            "budget_max_tokens": "5000",
            "options_temperature": "0",
            "starter_prompts": "Where is it?\r\n\r\nHow much? ",
        },
    )

    agent = Agent.objects.get(address="support/orders")
    assert response.status_code == 302
    assert agent.source == "admin" and agent.enabled and agent.name == "Orders" and agent.version == 1
    spec = agent.spec
    assert spec["system_instructions"] == "Help {{ company }}.\nBe {{ tone }}."  # as a browser would send \r\n
    assert spec["variables"] == {
        "company": {"required": True, "description": "whose shop"},
        "tone": {"default": "kind"},
    }
    assert spec["budget"] == {"max_tokens": 5000}
    assert spec["options"] == {"temperature": 0.0}
    assert spec["starter_prompts"] == ["Where is it?", "How much?"]
    version = AgentVersion.objects.get()
    assert (version.number, version.spec, version.created_by.is_superuser) == (1, spec, True)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.is_addition()) == (str(agent.pk), True)


OF_THE_TREE = {"allow_preempt", "when_exhausted"}  # of a budget: they say nothing of a single agent's runs


def test_every_part_of_a_spec_is_in_the_form(root) -> None:
    world.sync_agents()
    agent = save_spec("support/orders", EVERYTHING)
    assert set(AgentSpec.model_fields) == {*FLAT, *NESTED, "variables", "sub_agents"}
    for part, model in (("budget", ExecutionBudget), ("options", ModelSettings), ("window", Window)):
        assert set(NESTED[part]) == set(model.model_fields) - OF_THE_TREE
    assert {*EVERYTHING, *NEWS, *FEED} == AgentSpec.model_fields.keys()

    for row in (agent, save_spec("support/news", NEWS), save_spec("support/feed", FEED)):
        response = root.post(f"{place(row)}change/", form_of(root, row))

        assert response.status_code == 302, faults(response)
        before = row.spec
        row.refresh_from_db()
        assert row.spec == before
        assert row.version == 1, "nothing was changed: no new version"


def test_a_default_that_reads_as_json_is_json_and_nothing_else_is_touched() -> None:
    for text, value in (
        *[("3", 3), ("1.5", 1.5), ("true", True), ('["a"]', ["a"]), ('"3"', "3")],
        *[("007", "007"), ("1.50", "1.50"), ("null", "null"), ("[see below]", "[see below]"), ("kind", "kind")],
    ):
        with case(text, value):
            assert from_text(text) == value and type(from_text(text)) is type(value)
            assert from_text(to_text(value)) == value


def test_a_change_is_a_new_version_and_says_what_changed(root, agent) -> None:
    response = root.post(f"{place(agent)}change/", {**form_of(root, agent), "max_iterations": "3"})

    assert response.status_code == 302, faults(response)
    agent.refresh_from_db()
    assert (agent.version, agent.spec["max_iterations"]) == (2, 3)
    assert [v.spec.get("max_iterations") for v in agent.versions.order_by("number")] == [None, 3]
    assert json.loads(LogEntry.objects.get().change_message) == [{"changed": {"fields": ["Maximum model calls"]}}]
    text = text_of(root.get(f"{place(agent)}change/").content)
    assert re.search(r"version 2 current .*? max iterations .*?version 1 .*? first version", text)


def test_its_owner_is_shown(root, operator, agent) -> None:
    Agent.objects.filter(pk=agent.pk).update(owner=get_user_model().objects.create_user("ann-the-maker"))

    for client in (root, operator("view_agent")):
        for page in ("/admin/ravi/agent/", f"{place(agent)}change/"):
            assert "ann-the-maker" in client.get(page).content.decode(), page


def test_switching_off_makes_no_version_and_the_address_stays(root, agent) -> None:
    form = {**form_of(root, agent), "address": "react/other", "source": "code"}
    del form["enabled"]

    assert root.post(f"{place(agent)}change/", form).status_code == 302

    agent.refresh_from_db()
    assert (agent.enabled, agent.version) == (False, 1)
    assert (agent.address, agent.source) == ("support/orders", "admin")


# ------------------------------------------------------------------------------------------- errors at their place


def test_a_fault_is_named_at_its_field_and_nothing_is_saved(root) -> None:
    Agent.objects.all().delete()  # that of code too: its address is taken also before `migrate` makes its row
    Agent.objects.create(address="support/taken", source="admin", spec={"model": "rehearsal"})

    for fields, where, words in (
        ({"address": "nonsense"}, "address", "type/key"),
        ({"address": "support/taken"}, "address", "already exists"),
        ({"address": "react/assistant"}, "address", "code"),
        ({"model": ""}, "model", "required"),
        ({"model": "bedrock/agentcore/arn:aws:bedrock-agentcore:evil.example/x:1:runtime/abc"}, "model", "an ARN"),
        ({"tool_names": ["calculator", "nothing"]}, "tool_names", "nothing"),
        ({"sub_agents": ["no/body"]}, "sub_agents", "no/body"),
        ({"max_iterations": "many"}, "max_iterations", "whole number"),
        ({"budget_max_tokens": "-3"}, "budget_max_tokens", "budget.max_tokens"),
        ({"window_messages": "0"}, "window_messages", "window.messages"),
        ({"options_temperature": "-1"}, "options_temperature", "options.temperature"),
        ({"options_extra": "[1]"}, "options_extra", "JSON object"),
        ({"options_extra": "{"}, "options_extra", "valid JSON"),
        ({"result_schema": '{"type": "nonsense"}'}, "result_schema", "result_schema"),
        ({"options_extra": '{"a": ' * 900 + "1" + "}" * 900}, "options_extra", "nested"),
        ({"options_extra": '{"base_url": "https://evil.example"}'}, "options_extra", "not an option of a spec"),
        ({"system_instructions": "Hi\n{{ nobody }}"}, "system_instructions", "line 2: 'nobody' is not declared"),
        ({"variables-0-name": "not a name"}, "variables", "not a name"),
        ({"variables-0-name": "", "variables-0-default": "x"}, "variables", "no name"),
        ({"variables-0-name": "a", "variables-1-name": "a"}, "variables", "twice"),
        ({**INFORMATION, "output_topic": "news"}, "output_topic", ""),
        ({"kind": "personal_feed", "tool_names": [], "follow_topics": "a/b\na/b c"}, "follow_topics", ""),
        ({"follow_topics": "a/b"}, "follow_topics", ""),
        ({"kind": "other"}, "kind", ""),
    ):
        with case(fields, where, words):
            found = faults(add(root, **fields))
            assert list(found) == [where]
            assert words in found[where]
            assert not Agent.objects.filter(address="support/orders").exists()
            assert not LogEntry.objects.exists()


def test_two_faults_are_named_at_once(root) -> None:
    found = faults(add(root, system_instructions="{{ nobody }}", max_iterations="x"))

    assert set(found) == {"system_instructions", "max_iterations"}


def test_a_tool_that_is_gone_is_shown_and_refused(root, agent) -> None:
    @tool
    def fleeting() -> str:
        """Soon gone."""
        return ""

    register_tool(fleeting)
    agent = save_spec("support/orders", {**SPEC, "tool_names": ["calculator", "fleeting"]})
    world.registry_tools.pop("fleeting")
    world.register_tool()  # collects them anew

    form = form_of(root, agent)
    page = root.get(f"{place(agent)}change/").content

    assert form["tool_names"] == ["calculator", "fleeting"]
    assert b"not available here" in page
    assert "fleeting" in faults(root.post(f"{place(agent)}change/", form))["tool_names"]


def test_tools_say_what_they_are(root) -> None:
    text = text_of(root.get("/admin/ravi/agent/add/").content)

    assert re.search(r"send_invoice high at most once Send an invoice", text)
    assert re.search(r"calculator safe idempotent Compute", text)
    assert text.index("send_invoice high") < text.index("board_add "), "the site's own are first"


def test_the_model_has_a_hint_of_the_sites_own(root, monkeypatch) -> None:
    monkeypatch.setenv("RAVI_MODEL", f"ollama/mine{EVIL}")

    page = root.get("/admin/ravi/agent/add/").content.decode()

    assert "RAVI_MODEL is ollama/mine&lt;script&gt;" in page
    assert EVIL not in page


def test_what_is_chosen_in_bad_faith_stays_text(root) -> None:
    texts = [
        *["name", "description", "model", "fallbacks", "system_instructions", "welcome", "starter_prompts"],
        *["initial_tool_choice", "options_stop", "options_reasoning_effort", "options_extra", "address", "retention"],
        *["variables-0-name", "variables-0-default", "variables-0-description", "variables-0-sample", "version"],
        *["tool_names", "sub_agents", "max_iterations", "budget_max_tokens", "result_schema"],
    ]
    for preview in ({}, {"_preview": "1"}):
        page = add(root, **dict.fromkeys(texts, EVIL), **preview).content.decode()
        assert EVIL not in page
        assert page.count("&lt;script&gt;alert(") > 10
    made = add(
        root,
        **dict.fromkeys(["name", "description", "system_instructions", "welcome", "starter_prompts"], EVIL),
        **{"variables-0-name": "x", "variables-0-default": EVIL, "variables-0-description": EVIL},
    )
    assert made.status_code == 302
    agent = Agent.objects.get(address="support/orders")
    save_spec(agent.address, {**agent.spec, "welcome": f"{EVIL} again"})
    for address in ("", f"{agent.pk}/change/", f"{agent.pk}/versions/1/", f"{agent.pk}/versions/2/", "add/"):
        page = root.get(f"/admin/ravi/agent/{address}").content.decode()
        assert EVIL not in page, address
    assert page.count("<script>") == 0


# ------------------------------------------------------------------------------------------------------ preview


def test_the_preview_renders_and_saves_nothing(root, agent, monkeypatch) -> None:
    from ravi_django.calls.rehearsal.model import RehearsalModel

    monkeypatch.setattr(RehearsalModel, "stream", lambda *args, **options: pytest.fail("a model was called"))
    form = {
        **form_of(root, agent),
        "system_instructions": "Help {{ company }} & {{ tone }} <b>{{ user.username }}</b> {{ agent.address }}",
        "sub_agents": [],
        "tool_names": ["calculator"],
        "_preview": "Preview",
    }
    row = next(name for name, value in form.items() if value == "company")
    form[row.replace("name", "sample")] = "ACME <i>"

    response = root.post(f"{place(agent)}change/", form)

    shown = response.context["preview"]
    me = get_user_model().objects.get(is_superuser=True)
    assert shown["text"] == f"Help ACME <i> & kind <b>{me.username}</b> support/orders"
    assert shown["valid"] and not shown["error"] and shown["text_tokens"] > 10
    assert b"Help ACME &lt;i&gt; &amp; kind &lt;b&gt;" in response.content
    assert [tool["name"] for tool in shown["tools"]] == ["calculator"]
    assert json.loads(shown["tools"][0]["schema"])["required"] == ["expression"]
    assert b"ACME &lt;i&gt;</textarea>" in response.content, "the sample is still there"
    agent.refresh_from_db()
    assert (agent.version, agent.spec["system_instructions"]) == (1, SPEC["system_instructions"])
    assert AgentVersion.objects.count() == 1 and not LogEntry.objects.exists()


def test_the_preview_of_a_new_agent(root) -> None:
    world.sync_agents()
    response = add(root, system_instructions="I am {{ agent.name }}.", sub_agents=["react/assistant"], _preview="1")

    shown = response.context["preview"]
    assert shown["text"] == "I am Orders."
    assert [tool["name"] for tool in shown["tools"]] == ["calculator", "handoff_assistant"]
    assert not Agent.objects.filter(address="support/orders").exists()


def test_the_preview_says_what_is_wrong(root) -> None:
    for fields, words in (
        ({"system_instructions": "{{ nobody }}"}, "'nobody' is not declared"),
        (
            {"system_instructions": "{{ a }}", "variables-0-name": "a", "variables-0-required": "on"},
            "variables.a is req",
        ),
        (
            {"system_instructions": "{{ a.b }}", "variables-0-name": "a", "variables-0-sample": "x"},
            "'a.b' has no value",
        ),
        ({"system_instructions": "{{ a }}", "variables-0-default": "a"}, "in the variables first"),
    ):
        with case(fields, words):
            response = add(root, **fields, _preview="1")
            assert words in response.context["preview"]["error"]
            assert response.context["preview"]["text"] == ""


# -------------------------------------------------------------------------------------------------- who may do what


def test_adding_and_changing_are_permissions_of_their_own(operator, agent) -> None:
    adder, changer = operator("add_agent"), operator("change_agent")

    assert add(adder, address="support/other").status_code == 302
    assert add(changer, address="support/third").status_code == 403
    assert adder.post(f"{place(agent)}change/", {**FORM, "version": "1"}).status_code == 403
    assert changer.post(f"{place(agent)}change/", {**FORM, "version": "1"}).status_code == 302
    assert {*Agent.objects.filter(source="admin").values_list("address", flat=True)} == {
        "support/orders",
        "support/other",
    }


def test_the_agents_of_code_stay_as_they_are(root) -> None:
    world.sync_agents()
    agent = Agent.objects.get(address="react/assistant")

    page = root.get(f"{place(agent)}change/").content
    root.post(f"{place(agent)}change/", {**FORM, "_preview": "1"})
    root.post(f"{place(agent)}change/", FORM)

    assert b"_preview" not in page and b'name="system_instructions"' not in page
    before = agent.spec
    agent.refresh_from_db()
    assert (agent.spec, agent.source, agent.name) == (before, "code", "assistant")
    assert root.post(f"{place(agent)}delete/", {"post": "yes"}).status_code == 403
    assert not AgentVersion.objects.exists()


# --------------------------------------------------------------------------------------------------- two at once


def test_the_second_to_save_is_told_and_loses_nothing(operator, agent) -> None:
    one, two = operator("view_agent", "change_agent"), operator("change_agent", "view_agent", "view_run")
    first, second = form_of(one, agent), form_of(two, agent)
    assert one.post(f"{place(agent)}change/", {**first, "max_iterations": "3"}).status_code == 302

    response = two.post(f"{place(agent)}change/", {**second, "welcome": "Mine & yours"})

    assert "Somebody saved" in faults(response)["__all__"]
    assert f'href="{place(agent)}versions/2/"' in response.content.decode()
    assert b"Mine &amp; yours" in response.content
    agent.refresh_from_db()
    assert (agent.version, agent.spec.get("welcome")) == (2, None)
    again = {**second, "welcome": "Mine & yours", "version": response.context["adminform"].form["version"].value()}
    assert two.post(f"{place(agent)}change/", again).status_code == 302
    agent.refresh_from_db()
    assert (agent.version, agent.spec["welcome"]) == (3, "Mine & yours")
    assert agent.versions.get(number=2).spec["max_iterations"] == 3


@on_postgresql
@pytest.mark.parametrize("address", ["change/", "versions/1/restore/"])
def test_two_who_save_at_the_very_same_time(root, agent, address) -> None:
    save_spec("support/orders", {**SPEC, "welcome": "older"})
    save_spec("support/orders", SPEC)
    form = {**form_of(root, agent), "welcome": "Mine", "version": "3"}

    def save() -> Any:
        try:
            return root.post(f"{place(agent)}{address}", form, follow=True)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Agent.objects.select_for_update().get(pk=agent.pk)
            second = pool.submit(save)
            until(somebody_waits_for_a_lock)
            save_spec("support/orders", {**SPEC, "welcome": "Theirs"})
        page = second.result(timeout=BOUND_S).content.decode()

    agent.refresh_from_db()
    assert (agent.version, agent.spec["welcome"]) == (4, "Theirs")
    assert "Somebody saved" in page or "somebody saved version" in page


def test_a_form_without_its_version_is_not_saved_over_what_is_there(root, agent) -> None:
    for version in ({"version": ""}, {"version": "x"}, {"version": "99"}, {}):
        with case(version):
            form = FORM | version
            assert faults(root.post(f"{place(agent)}change/", form))
            agent.refresh_from_db()
            assert agent.version == 1


# ------------------------------------------------------------------------------------------------------ deleting


def test_an_agent_that_nothing_names_can_be_deleted(root, agent) -> None:
    assert root.get(f"{place(agent)}delete/").status_code == 200

    assert root.post(f"{place(agent)}delete/", {"post": "yes"}).status_code == 302

    assert not Agent.objects.filter(pk=agent.pk).exists()
    assert LogEntry.objects.get().is_deletion()


def test_an_agent_with_runs_or_callers_is_disabled_instead(root, agent) -> None:
    variables = {"company": {"required": True}}
    front = {"model": "rehearsal", "sub_agents": ["support/orders"], "variables": variables}
    caller = save_spec("support/front", front)
    words = {}
    words["caller"] = root.post(f"{place(agent)}delete/", {"post": "yes"}, follow=True).content.decode()
    caller.delete()
    submit_once("support/orders", "hi", send=lambda run_id: None, metadata={"variables": {"company": "x"}})
    words["runs"] = root.post(f"{place(agent)}delete/", {"post": "yes"}, follow=True).content.decode()

    assert "support/front can hand tasks to it. Disable it instead." in words["caller"]
    assert "it has runs. Disable it instead." in words["runs"]
    assert Agent.objects.filter(pk=agent.pk).exists() and Run.objects.exists()


# ------------------------------------------------------------------------------------------------- what it costs


def test_the_page_asks_as_often_for_many_versions_as_for_few(root, agent) -> None:
    def shown() -> str:
        return html_of(root.get(f"{place(agent)}change/"))

    shown()
    few = queries_of(shown)
    people = [get_user_model().objects.create_user(f"author{n}") for n in range(30)]
    for n, author in enumerate(people, 2):
        save_spec("support/orders", {**SPEC, "max_iterations": n}, by=author)
        save_spec(f"support/other{n}", SPEC)

    assert queries_of(shown) == few < 16


def test_the_form_needs_no_javascript_of_ours(root, agent) -> None:
    page = root.get(f"{place(agent)}change/").content.decode()
    ours = page[page.index('id="content-main"') : page.rindex("</main>")]

    assert not re.search(r"\son\w+=|style=", ours)
    assert not [script for script in re.findall(r"<script[^>]*>", ours) if "admin/js/" not in script]
    assert AgentForm.base_fields["variables"].widget.media.render() == ""
