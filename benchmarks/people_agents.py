"""Agents that ask people before they act. Registered with the others; see `agents`."""

from __future__ import annotations

import time
from typing import Any

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import AgentId, Message, RunContext, ToolUseBlock
from ravi_django.testing import ScriptedModel

APPROVERS = "bench-approvers"  # a group


@tool(risk="high", effect="idempotent")
async def pay(amount: int, asked_at: float) -> str:
    """Pay somebody. Says when it was called."""
    return str(time.time())


def _asking(messages: Any, options: Any) -> ToolUseBlock:
    """The model's call, which says when it was made."""
    return ToolUseBlock(tool_name="pay", arguments={"amount": 5, "asked_at": time.time()}, call_id="c1")


def _told(messages: Any, options: Any) -> str:
    """The tool's own words."""
    return "".join(part.text for part in messages[-1].content[0].content)


class Payer:
    """Asks for one approval by its own code, and says when it went on."""

    id = AgentId("test", "bench-approval")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        decision = await ctx.approve("pay", {"amount": 5}, to=f"group:{APPROVERS}")
        return f"{decision.decision} {time.time()}"


payer = register(Payer(), access="authenticated")
register(
    ReActAgent(
        "bench-payer",
        model=ScriptedModel([_asking, _told], record=False),
        tools=[pay],
        context=ContextConfig(DjangoHistoryProvider()),
        approvers=f"group:{APPROVERS}",
    ),
    access="authenticated",
)
