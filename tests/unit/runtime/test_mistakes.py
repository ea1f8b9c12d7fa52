"""The mistakes of docs' reviewers, one row each: what is wrong is named with its fix, at the earliest moment."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.template import Context, Template
from django.test import RequestFactory

from ravi_django import register, register_tool, run_sync, save_spec, schedule, submit, tool
from ravi_django.agents import AgentTool, ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.middleware import Hooks
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import AgentId, AgentNotFoundError, ConflictError, InvalidInputError
from ravi_django.models import Agent
from ravi_django.testing import ScriptedModel, registered, scripted
from tests.acceptance.api.api_support import client_of, error_of
from tests.support import world
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)
SHAPE = "an address looks like type/key or namespace/type/key, not 'code'"
SPAN = "is a number of seconds or a timedelta"
TEXT: Any = "1h"
LISTED = "no agent is registered as 'test/cod'. Did you mean 'test/code'? Registered agents: "


async def story(ctx: Any, inbox: Any) -> str:
    return "done"


def model() -> ScriptedModel:
    return ScriptedModel(["ok"])


def nodoc(part: str) -> str:
    return part


@tool(risk="high")
def refund(order: int) -> str:
    """Refund."""
    return "refunded"


class Plain:
    id = AgentId("test", "plain")

    async def run(self, ctx: Any, inbox: Any) -> str:
        return "done"


class Sync(Plain):
    def run(self, ctx: Any, inbox: Any) -> str:  # type: ignore[override]
        return "done"


class Short(Plain):
    async def run(self, ctx: Any) -> str:  # type: ignore[override]
        return "done"


def unannotated(order: int, ctx):  # type: ignore[no-untyped-def]
    """Read."""


async def booked(order: int) -> str:
    """Book."""
    return "booked"


other_refund = tool(name="refund")(nodoc)


def react(**options: Any) -> ReActAgent:
    return ReActAgent("x", **{"model": model(), **options})


# One row: the mistake, and a part of its error that names the value and the fix.
ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "an address with a typo": (lambda: submit("test/cod", "hi"), LISTED),
    "a script for a typo": (lambda: scripted("test/cod", ["ok"]).__enter__(), LISTED),
    "an address without a type": (lambda: submit("code", "hi"), f"{SHAPE}. Did you mean 'test/code'?"),
    "an option of a model": (
        lambda: LLMFactory("gpt-4o", tempature=0.2),
        "LLMFactory has no option 'tempature'. Did you mean 'temperature'?",
    ),
    "a parameter of a model": (
        lambda: LLMFactory("gpt-4o", fallback=["x"]),
        "no option 'fallback'. Did you mean 'fallbacks'?",
    ),
    "an empty key": (lambda: LLMFactory("gpt-4o", ""), "api_key is empty, and litellm would take the key of the env"),
    "an option of an agent": (
        lambda: react(instructions="Be brief."),
        "ReActAgent has no option 'instructions'. Did you mean 'system_instructions'?",
    ),
    "another option of an agent": (
        lambda: react(system_prompt="Be brief."),
        "ReActAgent has no option 'system_prompt'. Did you mean 'system_instructions'?",
    ),
    "a key with the type": (
        lambda: ReActAgent("react/helper", model=model()),
        "not 'react/helper'. Leave the type out: the class sets it",
    ),
    "an option of a tool": (lambda: tool(approver="staff")(nodoc), "@tool has no option 'approver'"),
    "an option of model calls": (
        lambda: react(base_options={"reasoning_efort": "low"}),
        "base_options has no field 'reasoning_efort'. Did you mean 'reasoning_effort'?",
    ),
    "a retention": (lambda: react(retention="nothing"), "must be one of none, run, permanent, not 'nothing'"),
    "a factory as model": (lambda: react(model=LLMFactory("gpt-4o")), "not LLMFactory('gpt-4o'); call its build()"),
    "two tools of one name": (lambda: react(tools=[refund, other_refund]), "two tools have the name refund; rename"),
    "a limit of a budget": (
        lambda: submit("test/code", "hi", budget={"max_cost": 3}),
        "budget: max_cost: Extra inputs are not permitted. Did you mean 'max_cost_usd'?",
    ),
    "an unknown limit of a budget": (
        lambda: submit("test/code", "hi", budget={"max_dollars": 3}),
        "max_dollars: Extra inputs are not permitted; a budget has max_",
    ),
    "a timeout": (lambda: run_sync("test/code", "hi", timeout=TEXT), f"timeout {SPAN}, not '1h'"),
    "a period": (
        lambda: schedule("test/code", "hi", name="daily", every=TEXT),
        "every is a timedelta or a whole number of seconds, not '1h'",
    ),
    "a class": (lambda: register(Plain), "Plain is a class; register an object of it: register(Plain(…))"),
    "a sync run": (
        lambda: register(Sync()),
        "agent test/plain has no async method run (a decorator of one needs functools.wraps): write async def run(",
    ),
    "a run without inbox": (lambda: register(Short()), "cannot take ctx and inbox (too many positional arguments)"),
    "a name as user": (lambda: submit("test/code", "hi", user="ada"), "user must be a user object or None, not 'ada'"),
    "a key as user": (
        lambda: schedule("test/code", "hi", name="daily", cron="0 9 * * *", user=1),
        "user must be a user object or None, not 1",
    ),
    "ctx without type": (lambda: tool(unannotated), "write ctx: RunContext"),
    "transactional and async": (lambda: tool(effect="transactional")(booked), "needs a plain def"),
    "a provider as context": (
        lambda: ReActAgent("x", model=ScriptedModel([]), context=DjangoHistoryProvider()),
        "use ContextConfig(…) around it",
    ),
    "a hook event": (lambda: Hooks.of({"tool_ended": story}), "Did you mean 'tool_end'?"),
    "an approved tool": (
        lambda: react(tools=[refund], approvers={"refnd": "staff"}),
        "the tools are: refund. Did you mean 'refund'?",
    ),
    "a time zone": (
        lambda: schedule("test/code", "hi", name="daily", cron="0 9 * * *", timezone="Europe/Berln"),
        "not 'Europe/Berln'. Did you mean 'Europe/Berlin'?",
    ),
    "a tool of a row": (
        lambda: save_spec("react/row", {"model": "rehearsal", "tool_names": ["calculater"]}),
        "Did you mean 'calculator'?",
    ),
    "a field of a row": (
        lambda: save_spec("react/row", {"model": "rehearsal", "tool_name": ["clock"]}),
        "Did you mean 'tool_names'?",
    ),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_a_mistake_is_refused_with_its_fix(mistake: str) -> None:
    code(story)
    make, text = ERRORS[mistake]
    with pytest.raises((InvalidInputError, AgentNotFoundError, TypeError, ValueError)) as refused:
        make()
    assert text in str(refused.value)


CHECKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown setting": ({"LEASES": 30}, "ravi.E002", "RAVI has an unknown key 'LEASES'. Did you mean 'LEASE_S'?"),
    "an unknown limit": ({"LIMITS": {"submits": 1}}, "ravi.E030", "Did you mean 'submit'?"),
    "an unknown file setting": ({"FILES": {"max_m": 1}}, "ravi.E035", "Did you mean 'max_mb'?"),
    "an unknown daily limit": (
        {"DAILY_BUDGETS": {"user": {"max_cost": 1}}},
        "ravi.E011",
        "Did you mean 'max_cost_usd'?",
    ),
    "a number as a text": ({"LEASE_S": "30"}, "ravi.E009", "RAVI['LEASE_S'] is '30'"),
    "a number of runs as a text": ({"MAX_RUNS": "5"}, "ravi.E009", "RAVI['MAX_RUNS'] is '5'"),
    "a period of 0": ({"SWEEP_S": 0}, "ravi.E009", "RAVI['SWEEP_S'] is 0"),
    "a module that no app has": ({"AGENTS_MODULE": "agentz"}, "ravi.W013", "RAVI['AGENTS_MODULE'] is 'agentz', and no"),
    "a price": ({"PRICES": {"m": {"input_cost": 1}}}, "ravi.E007", "known: input_cost_per_token"),
    "a tool without a description": (
        {},
        "ravi.W011",
        "The tool nodoc has no description: a model sees its name alone.",
    ),
    "a tool that nobody approves": (
        {"ADDRESSEES": {"approval": None}},
        "ravi.W012",
        "react/shop: refund has high risk and no approvers: each call is rejected.",
    ),
    "a row's tool that nobody approves": (
        {"ADDRESSEES": {"approval": None}},
        "ravi.W012",
        "agents in the database that name no approvers: refund has high risk and no approvers: each call is rejected.",
    ),
}


@pytest.mark.parametrize("mistake", CHECKS)
def test_a_mistake_is_named_by_check(settings: Any, mistake: str) -> None:
    changes, id, text = CHECKS[mistake]
    settings.RAVI = {**settings.RAVI, **changes}
    register(ReActAgent("shop", model=model(), tools=[nodoc, refund]))
    register_tool(refund)

    assert [one for one in run_checks(tags=["ravi"]) if one.id == id and text in one.msg and one.hint]


def test_a_risky_tool_with_approvers_is_not_named(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"approval": None}}
    for key, options in {"a": {"approvers": "staff"}, "b": {"approval_handler": lambda *call: True}}.items():
        register(ReActAgent(key, model=model(), tools=[refund], **options))

    assert [one.msg for one in run_checks(tags=["ravi"]) if one.id == "ravi.W012"] == []


def test_a_second_agent_of_an_address_is_a_conflict_that_names_both(settings: Any, monkeypatch: Any) -> None:
    first = register(ReActAgent("twice", model=model()))

    with pytest.raises(ConflictError) as refused:
        register(ReActAgent("twice", model=model()))
    text = str(refused.value)
    assert text.count(f"ravi_django.agents.react.agent.ReActAgent by {__name__}:") == 2 and "replace=True" in text
    assert register(first, access="staff") is first
    register(ReActAgent("twice", model=model()), replace=True)

    from django.apps import apps

    monkeypatch.setattr(apps, "ready", False)  # as while the agents modules are imported
    world.patch(monkeypatch, "registry_conflicts", [])
    second = ReActAgent("twice", model=model())
    assert register(second) is second and world.get_agent("react/twice") is not second
    (error,) = [one for one in run_checks(tags=["ravi"]) if one.id == "ravi.E038"]
    assert error.is_serious() and "react/twice is registered twice" in error.msg and "replace=True" in error.hint


def test_what_is_imported_again_or_was_a_team_member_is_no_conflict() -> None:
    made = [register(ReActAgent("again", model=model())) for _ in range(2)]  # the same line
    assert world.get_agent("react/again") is made[1]

    member = ReActAgent("member", model=model())
    register(ReActAgent("lead", model=model(), tools=[AgentTool(member, "Helps.")]))
    alone = register(ReActAgent("member", model=model()))
    assert world.get_agent("react/member") is alone


def test_registered_restores_the_agents_of_the_site() -> None:
    before = register(ReActAgent("site", model=model()), access="staff")
    other = ReActAgent("site", model=model())

    with registered(other):
        register(ReActAgent("passing", model=model()))
        assert (world.get_agent("react/site"), world.registry_access["react/site"]) == (other, "staff")
    assert (world.get_agent("react/site"), world.registry_access["react/site"]) == (before, "staff")
    with pytest.raises(AgentNotFoundError):
        world.get_agent("react/passing")

    @registered(other, access="authenticated")
    def decorated() -> Any:
        return world.get_agent("react/site"), world.registry_access["react/site"]

    assert decorated() == decorated() == (other, "authenticated")
    assert world.get_agent("react/site") is before


@pytest.mark.asyncio
async def test_registered_decorates_an_async_test() -> None:
    other = ReActAgent("asynchronous", model=model())

    @registered(other)
    async def decorated() -> Any:
        return world.get_agent("react/asynchronous")

    assert await decorated() is other
    with pytest.raises(AgentNotFoundError):
        world.get_agent("react/asynchronous")


def test_a_user_learns_only_of_agents_that_they_may_see(django_user_model: Any) -> None:
    ann, boss = django_user_model.objects.create_user("ann"), django_user_model.objects.create_superuser("boss")
    code(story)
    register(ReActAgent("codex", model=model()), access="private")

    def answer(user: Any, agent: str) -> tuple[int, str]:
        response = client_of(user).post("/ravi/runs/", {"agent": agent, "input": "hi"}, format="json")
        return response.status_code, error_of(response)["message"]

    status, text = answer(ann, "test/cod")
    assert status == 404 and text.startswith(LISTED) and "react/codex" not in text
    assert answer(ann, "code")[1].endswith("not 'code'. Did you mean 'test/code'?")
    assert "react/codex" not in answer(ann, "codex")[1]
    assert answer(boss, "codex")[1].endswith("Did you mean 'react/codex'?")
    assert "react/codex" in answer(boss, "test/cod")[1]
    Agent.objects.create(address="react/codex", enabled=False)
    assert answer(boss, "react/codex")[1] == "agent 'react/codex' is disabled; enable it in the admin"
    assert answer(ann, "react/codex")[1].startswith("no agent is registered as 'react/codex'. ")
    with pytest.raises(AgentNotFoundError, match="agent 'react/codex' is disabled; enable it in the admin"):
        submit("react/codex", "hi")


@pytest.mark.parametrize("call", ["ask", "spawn", "send"])
@pytest.mark.parametrize(("address", "error"), [
    ("test/cod", "no agent is registered as 'test/cod'; register it in an agents.py or in the admin"),
    ("code", SHAPE),
])  # fmt: skip
def test_a_typo_in_a_run_is_named_in_the_log_and_not_to_its_owner(
    caplog: Any, call: str, address: str, error: str
) -> None:
    async def asking(ctx: Any, inbox: Any) -> None:
        await getattr(ctx, call)(address, *([] if call == "spawn" else ["hi"]))

    code(asking)
    run = drive(make_run())

    assert run.error["message"] == error
    assert "Did you mean 'test/code'?" in caplog.text


MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a blocking user": (lambda ctx: ctx.user, "would block the event loop: use `await ctx.auser()`"),
    "a text as time": (lambda ctx: ctx.sleep(TEXT), f"duration {SPAN}, not '1h'"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_of_ctx_fails_the_run_with_its_fix(misuse: str) -> None:
    call, text = MISUSES[misuse]

    async def misusing(ctx: Any, inbox: Any) -> None:
        await call(ctx)

    code(misusing)
    assert text in drive(make_run()).error["message"]


@pytest.mark.parametrize(
    "agent, why",
    [
        ("test/cod", "Did you mean &#x27;test/code&#x27;?"),
        ("react/own", "may not run react/own: register(agent, access=…)"),
    ],
)
def test_an_empty_chat_tag_says_why_with_debug(django_user_model: Any, settings: Any, agent: str, why: str) -> None:
    code(story)
    register(ReActAgent("own", model=model()), access="private")
    request = RequestFactory().get("/")
    request.user = django_user_model.objects.create_user("ann")

    def page(**context: Any) -> str:
        return Template("{% load ravi %}{% ravi_chat agent %}").render(Context({"agent": agent, **context}))

    assert page(request=request) == ""
    settings.DEBUG = True
    assert why in page(request=request) and page(request=request).startswith("<!-- ravi_chat: ")
    assert "the template has no request" in page()


def test_a_default_of_none_is_an_optional_argument() -> None:
    @tool
    def add(a: int, b: int = None) -> int:  # type: ignore[assignment]  # noqa: RUF013
        """Add."""
        return a + (b or 0)

    assert add.validate({"a": 1, "b": None}) == {"a": 1, "b": None}
    assert add.parameters["properties"]["b"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]


def test_the_orm_in_an_async_tool_names_its_fix_in_the_log(caplog: Any, django_user_model: Any) -> None:
    @tool
    async def count_users() -> int:
        """Count."""
        return int(django_user_model.objects.count())

    async def counting(ctx: Any, inbox: Any) -> str:
        return str((await ctx.tool("count_users")).text)

    code(counting, tools=[count_users])
    drive(make_run())

    assert "raised SynchronousOnlyOperation: make the tool a plain def" in caplog.text
