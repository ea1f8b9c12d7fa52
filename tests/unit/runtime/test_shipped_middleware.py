"""The shipped middlewares on one agent: in their order, through crashes, and one facade for all of them."""

import json
import re
import subprocess
import sys

import pytest
from django.core.cache import caches

import ravi_django.middleware as facade
from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ModelResponse, TextBlock, ToolUseBlock, Usage
from ravi_django.middleware import (
    AuditLog,
    InputGuardrail,
    OutputGuardrail,
    PIIRedaction,
    ResponseCache,
    ToolGuardrail,
    UserRateLimit,
)
from ravi_django.models import AuditRecord, Status
from ravi_django.testing import ScriptedModel
from tests.support.docs import Page
from tests.support.runs import drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

BOB = "bob@example.org"
DOCS = Page("middleware")


@pytest.fixture
def kept(settings):
    """What the cache holds."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "all"}}
    cache = caches["default"]
    cache.clear()
    yield lambda: list(cache._cache.values())
    cache.clear()


def guarded(ran, told):
    """An agent with all of them; it mails whom it is asked to."""

    @tool(effect="at_most_once")
    def send(to: str) -> str:
        ran.append(to)
        return f"sent to {to}"

    ask = [ToolUseBlock(tool_name="send", arguments={"to": "[email 1]"}, call_id="c1")]
    answer = ModelResponse.of([TextBlock(text="Sent to [email 1].")], usage=Usage(input_tokens=3), cost=0.1)
    agent = ReActAgent(
        "code",
        id="test/code",
        model=ScriptedModel([ask, answer]),
        tools=[send],
        middleware=[
            AuditLog(arguments=True),
            UserRateLimit(2, per_s=60),
            InputGuardrail(lambda text, ctx: "damn" in text, name="polite"),
            OutputGuardrail(lambda text, ctx: None if BOB in text else "it is not restored yet", name="restored"),
            ToolGuardrail(check_arguments=lambda given, context: None if given["to"] == BOB else "who?", name="known"),
            PIIRedaction(),
            ResponseCache(),
        ],
        hooks=[{"guardrail_trip": told.append}],
    )
    register(agent)
    return agent


def test_all_of_them_at_once(kept, ann, ran, clock):
    told = []
    agent = guarded(ran, told)
    first, second = (drive(make_run(text=f"Write to {BOB}", owner=ann)) for _ in range(2))
    third = drive(make_run(text=f"Write to {BOB}", owner=ann))
    fourth = drive(make_run(text="damn", owner=None))
    assert first.output == second.output == f"Sent to {BOB}."
    assert ran == [BOB, BOB]
    assert len(agent.model.calls) == 2, "the second run's answers are kept ones"
    assert BOB not in str([call.messages for call in agent.model.calls])
    assert len(kept()) == 2
    assert BOB.encode() not in b"".join(map(bytes, kept())), "what is kept was redacted"
    assert third.error["type"] == "RateLimitedError"
    assert fourth.error["type"] == "GuardrailError"
    assert [call.data["guardrail"] for call in told] == ["polite"]
    outcomes = [
        (row.event, row.detail.get("step") or row.detail.get("outcome", "attempted"))
        for row in AuditRecord.objects.filter(run_id=second.id).order_by("id")
    ]
    assert outcomes == [
        ("run", "started"), ("model", "middleware"), ("tool", "attempted"), ("tool", "ok"), ("model", "middleware"),
        ("run", "ended"),
    ]  # fmt: skip


def test_the_facade_has_every_name_and_needs_no_django_until_it_does():
    assert all(getattr(facade, name) for name in ("AuditLog", "Hooks", "ResponseCache", "UserRateLimit"))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = facade.Nothing
    code = "import sys, ravi_django.middleware as m; m.PIIRedaction(); sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", re.findall(r"```python\n# (.*)", DOCS.text))
def test_what_the_docs_show_runs(name, kept, ann):
    space = {"__name__": f"docs.{name}", "model": ScriptedModel(["Hello."]), "lookup": tool(lookup)}
    exec(DOCS.code(name), space)
    run = drive(make_run("react/helper", text="hi", owner=ann))
    assert run.status == Status.COMPLETED, run.error
    assert json.dumps(run.output)


def lookup(name: str) -> str:
    """Look a name up."""
    return name
