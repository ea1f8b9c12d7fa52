"""`AgentTool`: another agent as a tool. The model hands it a task; the tool spawns the agent and asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ravi_django.kernel import (
    AgentId,
    AskOutcome,
    ChatMessage,
    ChatPayload,
    Effect,
    InvalidInputError,
    Message,
    RunContext,
    TextBlock,
    Tool,
    ToolArgumentsError,
    ToolExecutionResult,
)

INHERITED = "inherited_variables"  # of a message that boots a run: it may have its caller's, over these
_PREFIX = "handoff_"
_MOST = 64  # characters of a tool's name that every provider takes


class AgentTool(Tool):
    """`handoff_<key>(task)`: runs the agent on the task as a child run and gives its answer.

    description: for the model, what to hand to this agent. timeout: seconds to wait for the answer; the time that
    people take to answer the agent's requests does not count. Waiting costs rows and nothing else.

    `variables` are values of the caller's own template; the agent gets those that it declares too, and before them
    what the caller's run was given as `metadata["variables"]`.

    When no answer comes, words say which way it ended: after a timeout the agent may still be at work.
    """

    effect = Effect.IDEMPOTENT  # the child and the question are journaled below the tool's own path
    context_parameter = "ctx"

    def __init__(
        self,
        agent_id: AgentId | str,
        description: str = "",
        timeout: float = 120.0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise InvalidInputError(f"timeout is a number of seconds above 0, not {timeout!r}", field="timeout")
        self.agent_id = agent_id if isinstance(agent_id, AgentId) else AgentId.parse(agent_id)
        self.ask_timeout = float(timeout)  # not `timeout`: that bounds the tool's own code, which only waits
        self.name = handoff_name(self.agent_id)
        self.variables = dict(variables or {})
        self.description = description or f"Hand a task to the agent {self.agent_id} and get its answer."
        self.parameters = {
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "All that the agent needs to know: it sees nothing else."}
            },
            "required": ["task"],
            "additionalProperties": False,
        }

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        given = super().validate(arguments)
        task = given.get("task")
        if set(given) != {"task"} or not isinstance(task, str) or not task.strip():
            raise ToolArgumentsError(f'{self.name} takes one argument: {{"task": "…"}}, a text', field="task")
        return given

    async def execute(self, **arguments: Any) -> Any:
        ctx: RunContext = arguments["ctx"]
        boot = Message(
            target=self.agent_id,
            sender=ctx.agent_id,
            payload=ChatPayload(message=ChatMessage.of("user", arguments["task"])),
            metadata={"parent_agent_id": str(ctx.agent_id), INHERITED: self.variables},
        )
        handle = await ctx.spawn(self.agent_id, boot)
        return self._answer(await ctx.ask(handle, boot, timeout=self.ask_timeout))

    def _answer(self, outcome: AskOutcome) -> Any:
        match outcome.kind:
            case "replied":
                return _text_of(outcome.result)
            case "timed_out":
                words = f"{self.agent_id} gave no answer within {self.ask_timeout:g} s; it may still be at work"
            case "target_cancelled":
                words = f"{self.agent_id} was cancelled: {_reason(outcome.result)}"
            case _:
                words = f"{self.agent_id} failed: {_reason(outcome.result)}"
        return ToolExecutionResult(content=[TextBlock(text=words)], is_error=True)


def handoff_name(agent_id: AgentId) -> str:
    """The tool's name: the address's key, in characters that every provider takes."""
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_-]', '_', agent_id.key)}"[:_MOST]


def _text_of(result: Any) -> Any:
    if isinstance(result, dict) and result.keys() == {"text"} and isinstance(result["text"], str):
        return result["text"]
    return result


def _reason(result: Any) -> str:
    if isinstance(result, dict) and isinstance(result.get("message"), str):
        return str(result["message"])
    return "no reason was given" if result is None else to_json(result, fallback=str).decode()
