"""Agents that are rows: how a spec is kept, found and made an agent."""

from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError

from ravi_django import register, register_tool, submit, tasks, tool
from ravi_django.agents import AgentSpec
from ravi_django.kernel import AgentId, AgentNotFoundError, InvalidInputError, NotFoundError
from ravi_django.models import Agent, AgentVersion, Run
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import case, refused
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, in_background, make_run, on_postgresql
from tests.support.world import sync_agents

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = {"model": "rehearsal", "tool_names": ["calculator"], "system_instructions": "Be brief."}
ADDRESS = "react/helper"


async def nothing(ctx, inbox):
    return None


def numbers(address=ADDRESS):
    return sorted(AgentVersion.objects.filter(agent__address=address).values_list("number", flat=True))


def test_a_spec_is_kept_as_a_row_with_its_first_version():
    ann = get_user_model().objects.create_user("ann")
    row = world.save_spec(ADDRESS, {**SPEC, "name": "Helper", "description": "Helps."}, by=ann)
    row.refresh_from_db()
    assert (row.address, row.source, row.name, row.description) == (ADDRESS, "admin", "Helper", "Helps.")
    assert (row.version, row.enabled, row.spec["tool_names"]) == (1, True, ["calculator"])
    version = row.versions.get()
    assert (version.number, version.spec, version.created_by) == (1, row.spec, ann)
    row = world.save_spec(ADDRESS, {**SPEC, "name": "Old"}, name="New", description="It helps.")
    assert (row.name, row.spec["name"], row.description) == ("New", "New", "It helps.")


def test_a_spec_that_says_the_same_makes_no_version_and_a_change_the_next_one():
    first = world.save_spec(ADDRESS, SPEC).spec
    for again in (SPEC, {**SPEC, "max_iterations": 10}, AgentSpec(**SPEC)):
        row = world.save_spec(ADDRESS, again, enabled=False)
        assert (row.version, row.enabled, numbers()) == (1, False, [1])
    row = world.save_spec(ADDRESS, {**SPEC, "system_instructions": "Be long."}, enabled=False)
    assert (row.version, row.enabled, numbers()) == (2, False, [1, 2])
    assert row.versions.get(number=1).spec == first, "the former stays as it is"
    assert row.versions.get(number=2).spec == row.spec
    assert row.spec["system_instructions"] == "Be long."


def test_what_makes_no_agent_is_not_kept():
    register(CodeAgent(nothing))
    for address, change, field in (
        ("helper", {}, "agent"),
        (ADDRESS, {"tool_names": ["nonsense"]}, "tool_names.0"),
        (ADDRESS, {"sub_agents": ["react/nobody"]}, "sub_agents.0"),
        (ADDRESS, {"system_instructions": "Hello {{ nobody }}"}, "system_instructions"),
        (ADDRESS, {"system_instructions": "{% if %}"}, "system_instructions"),
        (ADDRESS, {"variables": {"not a name": {}}}, "variables.not a name"),
        (ADDRESS, {"budget": {"max_cost_usd": -1}}, "budget.max_cost_usd"),
        ("test/code", {}, "address"),
    ):
        with case(address, change), refused(field):
            world.save_spec(address, {**SPEC, **change})
    assert not Agent.objects.filter(address=ADDRESS).exists()


@on_postgresql
def test_racing_savers_get_a_version_each():
    changes = [{**SPEC, "max_iterations": number} for number in range(1, 9)]
    rows = [done.result(BOUND_S) for done in [in_background(world.save_spec, ADDRESS, change) for change in changes]]
    assert sorted(row.version for row in rows) == numbers() == list(range(1, 9))
    row = Agent.objects.get(address=ADDRESS)
    assert row.spec == row.versions.get(number=row.version).spec
    assert row.version == 8


def test_a_row_made_anew_takes_no_number_that_a_run_knows_and_one_of_a_fixture_runs_without_versions():
    world.save_spec(ADDRESS, SPEC)
    world.save_spec(ADDRESS, {**SPEC, "max_iterations": 3})
    make_run(ADDRESS, agent_version=2)
    Agent.objects.get(address=ADDRESS).delete()
    assert world.save_spec(ADDRESS, {**SPEC, "max_iterations": 5}).version == 3
    spec = world.check_spec(SPEC).to_json()
    Agent.objects.create(address="react/fixed", source=Agent.Source.ADMIN, spec=spec)
    found = world.specs_find("react/fixed")
    assert found.version == 1
    assert world.specs_load(found.address, 1).system_instructions == "Be brief."


def test_a_row_that_code_had_taken_over_goes_on_counting():
    world.save_spec(ADDRESS, SPEC)
    Agent.objects.filter(address=ADDRESS).update(source="code", spec={"class": "ReActAgent"})
    row = world.save_spec(ADDRESS, SPEC)
    assert (row.source, row.version, row.spec["model"], numbers()) == ("admin", 2, "rehearsal", [1, 2])


def test_a_sub_agent_may_be_code_or_a_row():
    register(CodeAgent(nothing))
    world.save_spec("react/writer", SPEC)
    row = world.save_spec(ADDRESS, {**SPEC, "sub_agents": ["test/code", "react/writer"]})
    names = [tool.name for tool in world.specs_load(ADDRESS, row.version).tools]
    assert names == ["calculator", "handoff_code", "handoff_writer"]


def test_a_row_is_found_with_its_newest_version_in_one_query_and_code_of_its_address_wins(django_assert_num_queries):
    world.save_spec("test/code", SPEC)
    world.save_spec("test/code", {**SPEC, "max_iterations": 3})
    with django_assert_num_queries(1):
        found = world.specs_find("test/code")
    assert (str(found.address), found.version, found.spec["max_iterations"]) == ("test/code", 2, 3)
    register(CodeAgent(nothing))
    with django_assert_num_queries(1):
        found = world.specs_find("test/code")
    assert found.version is None
    assert submit("test/code", "hi").agent_version is None


@pytest.mark.parametrize("change", [{"enabled": False}, {"source": "code"}])
def test_what_is_switched_off_or_was_code_is_unknown(change):
    world.save_spec(ADDRESS, SPEC)
    Agent.objects.filter(address=ADDRESS).update(**change)
    with pytest.raises(AgentNotFoundError):
        submit(ADDRESS, "hi")
    assert not Run.objects.exists()


def test_a_version_is_built_once_and_looked_up_by_one_query(django_assert_num_queries):
    version = world.save_spec(ADDRESS, SPEC).version
    agent = world.specs_load(ADDRESS, version)
    with django_assert_num_queries(1):
        assert world.specs_load(ADDRESS, version) is agent
    assert (str(agent.id), agent.system_instructions) == (ADDRESS, "Be brief.")
    world.save_spec(ADDRESS, {**SPEC, "max_iterations": 3})
    assert [world.specs_load(ADDRESS, number).max_iterations for number in (1, 2, 1)] == [10, 3, 10]
    with pytest.raises(NotFoundError, match=f"version 7 of agent {ADDRESS}"):
        world.specs_load(ADDRESS, 7)
    Agent.objects.get(address=ADDRESS).delete()
    assert world.save_spec(ADDRESS, {**SPEC, "max_iterations": 5}).version == 1
    assert world.specs_load(ADDRESS, 1).max_iterations == 5, "made anew, it is not taken for the one before"


def test_a_tool_registered_later_is_the_one_that_is_used():
    @tool(name="lookup")
    def first() -> str:
        return "first"

    @tool(name="lookup")
    def second() -> str:
        return "second"

    register_tool(first)
    version = world.save_spec(ADDRESS, {**SPEC, "tool_names": ["lookup"]}).version
    assert world.specs_load(ADDRESS, version).tools.get("lookup") is first
    register_tool(second)
    assert world.specs_load(ADDRESS, version).tools.get("lookup") is second
    world.registry_tools.clear()
    world.replace("registry_known", None)
    with pytest.raises(InvalidInputError, match=f"agent {ADDRESS}, version 1: .*unknown tool 'lookup'") as caught:
        world.specs_load(ADDRESS, version)
    assert caught.value.field == "tool_names.0"


def test_known_tools_are_the_built_in_ones_those_of_agents_and_the_registered_ones(step):
    @tool
    def lookup() -> str:
        return ""

    @tool(name="step")
    def mine() -> str:
        return ""

    odd = CodeAgent(nothing, key="odd")
    odd.tools = "hammer"  # it means something else by it
    register(odd)
    register(CodeAgent(nothing, tools=[step]))
    register_tool(lookup)
    known = world.known_tools()
    assert {"calculator", "current_time", "step", "lookup"} <= set(known.names())
    assert known.get("step") is step
    assert world.known_tools() is known
    register_tool(mine)
    assert world.known_tools().get("step") is mine
    world.unregister("test/code")
    for wrong in ("lookup", 3, ScriptedModel):
        with pytest.raises((TypeError, ValueError)):
            register_tool(wrong)


VARIABLES = {
    **SPEC,
    "system_instructions": "Serve {{ customer }} in {{ language }}.",
    "variables": {"customer": {"required": True, "description": "whom"}, "language": {"default": "English"}},
}


def test_variables_are_checked_when_the_run_is_made():
    world.save_spec(ADDRESS, VARIABLES)
    for metadata, field, words in (
        (None, "metadata.variables.customer", "whom"),
        ({"variables": {}}, "metadata.variables.customer", "required"),
        ({"variables": {"customer": None}}, "metadata.variables.customer", "required"),
        ({"variables": {"customer": "Ada", "colour": "red"}}, "metadata.variables.colour", "customer, language"),
        ({"variables": ["Ada"]}, "metadata.variables", "object"),
    ):
        with case(metadata), refused(field, words):
            submit(ADDRESS, "hi", metadata=metadata)
    assert not Run.objects.exists()
    register(CodeAgent(nothing))
    assert submit("test/code", "hi", metadata={"variables": 3}).metadata == {"variables": 3}, "its own affair"


def test_the_use_of_a_model_by_a_row_is_known():
    world.save_spec(ADDRESS, SPEC)
    assert not world.uses_litellm()
    world.save_spec("react/other", {"model": "gpt-4o-mini"})
    assert world.uses_litellm()
    world.save_spec("react/other", {"model": "gpt-4o-mini"}, enabled=False)
    assert not world.uses_litellm()


@pytest.mark.parametrize(
    ("found", "did"), [(True, ["look", "import"]), (False, ["look"]), (OperationalError(), ["look"])]
)
def test_a_worker_looks_for_work_before_it_imports_the_library_of_a_model(monkeypatch, found, did):
    done = []

    def uses_litellm():
        if isinstance(found, Exception):
            raise found
        return found

    worker = SimpleNamespace(keep_looking=lambda: done.append("look"), engine=SimpleNamespace(name="w"))
    world.patch(monkeypatch, "get_worker", lambda: worker)
    monkeypatch.setattr(tasks.gc, "freeze", lambda: None)
    world.patch(monkeypatch, "uses_litellm", uses_litellm)
    world.patch(monkeypatch, "warm_models", lambda: done.append("import"))
    world.tasks_start()
    assert done == did


def test_a_sub_agents_required_variables_are_declared_by_who_hands_over():
    world.save_spec("react/writer", {"model": "rehearsal", "variables": {"tone": {"required": True}}})
    boss = {"model": "rehearsal", "sub_agents": ["react/writer"]}
    for variables in ({}, {"tone": {}}):
        with pytest.raises(InvalidInputError, match="'tone'") as caught:
            world.save_spec("react/boss", {**boss, "variables": variables})
        assert caught.value.field == "sub_agents.0"
    for variables in ({"tone": {"required": True}}, {"tone": {"default": "kind"}}):
        world.save_spec("react/boss", {**boss, "variables": variables})


def test_a_row_that_code_had_taken_is_an_agent_again_when_the_code_is_gone():
    world.save_spec(ADDRESS, SPEC)
    world.save_spec(ADDRESS, {**SPEC, "name": "Helper", "system_instructions": "Be long."})
    agent = CodeAgent(nothing, key="helper")
    agent.id = AgentId.parse(ADDRESS)
    register(agent)
    sync_agents()
    assert Agent.objects.get(address=ADDRESS).source == "code"
    world.unregister(ADDRESS)
    assert sync_agents() == [ADDRESS]
    row = Agent.objects.get(address=ADDRESS)
    assert (row.source, row.version, row.name, numbers()) == ("admin", 2, "Helper", [1, 2])
    assert world.specs_find(ADDRESS).spec["system_instructions"] == "Be long."
    assert sync_agents() == []


@pytest.mark.parametrize("change", ["variable", "disabled"])
def test_a_repeat_gets_its_first_run_whatever_has_become_of_the_agent(change, monkeypatch):
    world.silence(monkeypatch, "dispatch_send")
    world.save_spec(ADDRESS, SPEC)
    first = submit(ADDRESS, "hi", idempotency_key="k")
    if change == "variable":
        world.save_spec(ADDRESS, {**SPEC, "variables": {"tone": {"required": True}}})
    else:
        Agent.objects.filter(address=ADDRESS).update(enabled=False)
    assert submit(ADDRESS, "hi", idempotency_key="k") == first
    with pytest.raises((InvalidInputError, AgentNotFoundError)):
        submit(ADDRESS, "hi", idempotency_key="other")
    assert Run.objects.count() == 1
