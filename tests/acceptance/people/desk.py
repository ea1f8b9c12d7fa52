"""An agent that pays people when finance approves, and what it waits for."""

from __future__ import annotations

from typing import Any

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import Role, ToolUseBlock
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import ScriptedModel


def desk(pay: Any, *turns: dict[str, dict[str, Any]], key: str = "desk", **options: Any) -> ScriptedModel:
    """An agent whose model asks for these payments, by call id, a turn a mapping; then it says what it was told."""
    calls = [
        [ToolUseBlock(tool_name="pay", arguments=arguments, call_id=call_id) for call_id, arguments in turn.items()]
        for turn in turns
    ]
    model = ScriptedModel([*calls, _heard])
    context = ContextConfig(DjangoHistoryProvider())
    who = {"approvers": "group:finance", **options}
    register(ReActAgent(key, model=model, tools=[pay], context=context, **who))
    return model


def _heard(messages: Any, options: Any) -> str:
    """What each call of the last user's turn came to."""
    told = {}
    for message in messages:
        for block in message.content if message.role is Role.TOOL else ():
            told[block.call_id] = "".join(part.text for part in block.content)
    return " | ".join(f"{call_id}: {text}" for call_id, text in sorted(told.items()))


def waiting(run: Run) -> dict[str, HumanRequest]:
    """The open approvals of a run, by whom is to be paid."""
    assert run.status == Status.SUSPENDED, (run.status, run.error)
    return {row.arguments["to"]: row for row in HumanRequest.objects.filter(run=run, status="pending")}
