"""What the tests of the REST surface share beside their fixtures."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from ag_ui.core import Event, RunAgentInput
from django.contrib.auth.models import Permission
from pydantic import TypeAdapter
from rest_framework.test import APIClient

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.kernel import ModelError, TextBlock, ToolUseBlock, Usage
from ravi_django.models import (
    Follow,
    HumanRequest,
    InboxMessage,
    JournalEntry,
    Publication,
    Run,
    Session,
    Ticket,
    Turn,
    uuid7,
)
from ravi_django.testing import ScriptedModel
from tests.support.patience import BOUND_S
from tests.support.world import Runtime

AGENT = "react/api-helper"
RUNSERVER = {"SERVER_SOFTWARE": "WSGIServer/0.2"}  # `client.get(…, **RUNSERVER)`: no other WSGI server streams
SCRIPT = [ToolUseBlock(tool_name="calculator", arguments={"expression": "6 * 7"}, call_id="c1"), "It is 42."]
USED = Usage(input_tokens=5, cached_tokens=2, output_tokens=3)  # by each call
WRITTEN = (Session, Run, InboxMessage, JournalEntry, Turn, Ticket, Follow, Publication)


def make_agent(key: str = "api-helper", model: Any = None) -> ReActAgent:
    return ReActAgent(
        key,
        model=model or ScriptedModel(SCRIPT, chunk="words", usage=USED, cost=0.25),
        tools=[CalculatorTool()],
        context=ContextConfig(DjangoHistoryProvider()),
        system_instructions="You keep a secret: sk-secret-key.",
    )


def client_of(user: Any = None) -> APIClient:
    """Logged in by force: no query of its own, and faults are answered, not raised."""
    client = APIClient(raise_request_exception=False)
    if user is not None:
        client.force_authenticate(user)
    return client


def permit(user: Any, *codenames: str) -> None:
    """Give the user these permissions of the app."""
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="ravi", codename__in=codenames))


def drive(run_id: str) -> None:
    """Let a run come to its end, in this process. Needs committed rows."""

    async def until_the_end() -> None:
        async with Runtime() as runtime:
            await runtime.result(run_id, timeout=BOUND_S)

    asyncio.run(until_the_end())


def error_of(response: Any) -> dict[str, Any]:
    """The error, when it has the shape that all errors have."""
    body = response.json()
    assert {"error"} <= set(body) <= {"error", "errors"}, body
    if (response.status_code, body["error"]["code"]) == (400, "invalid_input"):
        assert body["errors"][0]["message"] == body["error"]["message"]
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "field"}
    assert body["error"]["message"]
    assert response["Content-Type"] == "application/json"
    return dict(body["error"])


def decide(client: Any, request: HumanRequest, body: Any, what: str = "answer") -> Any:
    """POST `requests/{id}/answer/`, or what else is said."""
    return client.post(f"/ravi/requests/{request.id}/{what}/", body, format="json")


def is_open(request: HumanRequest) -> bool:
    """Whether nothing at all has become of it."""
    request.refresh_from_db()
    return (request.status, request.answer, request.answered_by, request.version) == ("pending", None, None, 1)


# --------------------------------------------------------------- agents that ask, for clients of other protocols

PAID: list[int] = []


@tool(risk="high", effect="idempotent", approvers="owner")
def pay(amount: int) -> str:
    """Pay somebody."""
    PAID.append(amount)
    return f"paid {amount}"


def call(amount: int) -> ToolUseBlock:
    return ToolUseBlock(tool_name="pay", arguments={"amount": amount}, call_id=f"c{amount}")


def registered(key: str, script: list[Any], **options: Any) -> str:
    context = ContextConfig(DjangoHistoryProvider())
    model = ScriptedModel(script, chunk="words")
    return str(register(ReActAgent(key, model=model, context=context, **options)).id)


def register_payers() -> None:
    PAID.clear()
    final = ToolUseBlock(tool_name="final_result", arguments={"people": 3}, call_id="f")
    registered("payer", [[call(5), call(6)], "done"], tools=[pay])
    registered("careful", [call(7), "done"], tools=[pay], approvers={"pay": "staff"})
    registered("typed", [[TextBlock(text="I look it up."), final]], result_model=dict[str, int])
    registered("broken", [ModelError("no such model")])


# ----------------------------------------------------------------------------------------------------- AG-UI

ASK = [{"id": "m1", "role": "user", "content": "6 * 7?"}]


class AguiClient:
    def __init__(self, server: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
        self.web = httpx.Client(base_url=server, headers=headers, timeout=BOUND_S, trust_env=False)

    def post(self, agent: str, thread: Any, **body: Any) -> httpx.Response:
        body = {"threadId": str(thread), "runId": str(uuid7()), "messages": ASK, "tools": [], "context": [], **body}
        RunAgentInput.model_validate(body)
        return self.web.post(f"/ravi/agui/{agent}/", json=body)

    def run(self, agent: str, thread: Any, **body: Any) -> list[Any]:
        response = self.post(agent, thread, **body)
        assert response.status_code == 200, response.text
        read = TypeAdapter(Event).validate_json
        lines = response.text.split("\n\n")
        return [read(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type.value == "TEXT_MESSAGE_CONTENT")
