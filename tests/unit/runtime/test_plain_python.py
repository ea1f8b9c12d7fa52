"""What a Django developer writes without looking it up: names of models, users, seconds, addresses as texts."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import models, transaction

from ravi_django import register, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.integrations.llm import LiteLLMModel
from ravi_django.kernel import IllegalTransitionError, RunContext, RunFailedError
from ravi_django.models import Run
from ravi_django.testing import FakeClock, ScriptedModel, run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import CodeAgent, code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_models_name_is_enough_also_for_a_member_of_a_team() -> None:
    member = ReActAgent("member", model="gpt-4o-mini", base_options={"reasoning_effort": "low"})
    team = register(OrchestratorAgent("lead", model="gpt-4o", sub_agents=[SubAgentConfig(member, "Helps.")]))

    assert isinstance(team.model, LiteLLMModel) and isinstance(member.model, LiteLLMModel)
    assert (team.model.name, member.model.name) == ("gpt-4o", "gpt-4o-mini")
    assert member.context.model is member.model


def test_a_tool_and_an_agent_read_the_runs_user_as_the_site_has_it() -> None:
    user = User.objects.create(username="ada")
    seen: list[models.Model | None] = []

    @tool
    def whose(ctx: RunContext) -> str:
        """Say whose run it is."""
        seen.append(ctx.user)
        return "read"

    async def story(ctx: Any, inbox: Any) -> str:
        await ctx.tool("whose")
        seen.append(await ctx.auser())
        return "read"

    code(story, tools=[whose])
    drive(make_run(owner=user))
    drive(make_run())

    assert seen == [user, user, None, None]


def test_the_pages_tools_read_the_user() -> None:
    user = User.objects.create(username="ada")
    user.groups.create(name="buyers")
    page = Page("users").run("shop/profile.py")

    async def story(ctx: Any, inbox: Any) -> str:
        return ", ".join([(await ctx.tool(name)).text for name in ("my_name", "my_groups", "my_shop")])

    code(story, tools=[page["my_name"], page["my_groups"], page["my_shop"]])

    outputs = [drive(make_run(**of)).output for of in ({"owner": user, "tenant": "acme"}, {})]
    assert outputs == ['ada, ["buyers"], acme', "nobody, [], no shop"]


def test_seconds_and_an_address_as_text(clock: FakeClock) -> None:
    async def echo(ctx: Any, inbox: Any) -> str:
        return "here"

    async def story(ctx: Any, inbox: Any) -> list[str]:
        await ctx.sleep(5)
        child = await ctx.spawn("test/echo", "are you there?")
        await ctx.send("test/echo", "one more")
        asked = await ctx.ask("test/echo", "are you there?", timeout=60)
        return [str((await ctx.join(child)).result), str(asked.result)]

    register(CodeAgent(echo, key="echo"))
    code(story)
    run = make_run()
    run_until_idle()
    clock.advance(6)
    run_until_idle()
    run.refresh_from_db()
    assert run.output == '["here","here"]', run.error


async def test_a_wait_on_an_event_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="to_thread"):
        Run().wait()


def test_a_run_is_awaited_cancelled_and_retried_by_its_row() -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        if not heals:
            raise LookupError("no order")
        return "read"

    heals: list[bool] = []
    code(story)
    run = make_run()
    with pytest.raises(TimeoutError, match="is pending after 0 s"):
        run.wait(0)
    with transaction.atomic(), pytest.raises(RuntimeError, match="inside a transaction"):
        run.wait()
    drive(run)
    with pytest.raises(RunFailedError, match="no order"):
        run.result()
    heals.append(True)
    drive(run.retry())
    assert (run.result(), run.wait().status) == ("read", "completed")
    with pytest.raises(IllegalTransitionError):
        run.cancel()
    other = make_run()
    other.cancel("not needed")
    assert other.wait().error == {"type": "Cancelled", "message": "not needed"}


def test_the_pages_tool_shows_how_far_it_is() -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.tool("import_orders", pages=2)).text)

    code(story, tools=[Page("tools").run("shop/imports.py")["import_orders"]])
    run = drive(make_run())

    states = [frame["state"] for frame in world.events_page(run.id)[0] if frame["type"] == "state"]
    assert (run.output, states) == ("2 pages are imported", [{"page": 1, "of": 2}, {"page": 2, "of": 2}])


def test_the_pages_view_saves_its_row_and_submits_or_neither() -> None:
    register(ReActAgent("helper", model=ScriptedModel(["Read."])), replace=True)
    complain = Page("start-runs").run("shop/filing.py")["complain"]
    order = SimpleNamespace(pk=7, customer=User.objects.create(username="ada"), save=lambda: None)

    run = complain(order, "It is late.")
    order.save = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        complain(order, "It is broken.")

    assert (order.complaint, run.metadata, Run.objects.count()) == ("It is broken.", {"order": 7}, 1)
