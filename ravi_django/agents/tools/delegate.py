"""Delegate a task to another agent: the tool that the model sees, the child run, and its outcome as text.

Any agent can call an `AgentTool`. A `DelegateTool` is never called: its orchestrator starts the run itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic_core import to_json

from ravi_django.kernel import AgentNotFoundError, InvalidInputError, PermanentError, ToolArgumentsError, ToolRefused
from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.content import TextBlock
from ravi_django.kernel.contracts import Agent, AskOutcome, RunContext
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import ChatPayload, Message, ToolExecutionResult, as_text
from ravi_django.kernel.supervision import Priority
from ravi_django.kernel.tools import Effect, Tool

INHERITED = (
    "inherited_variables"  # metadata of a message that starts a run: variables; those of its caller override them
)
LATE, DROP = "late_reply", "drop"  # metadata of a question: record a reply after the timeout, but send no message
CONVERSATION, NONE = "conversation", "none"  # how long a delegated agent remembers
_PREFIX = "handoff_"
_MOST = 64  # characters of a tool's name that every provider accepts


class HandoffTool(Tool):
    """`handoff_<key>(task)`: the name, description and one argument of a tool for the agent `agent_id`.

    `agent` is the agent object, if there is one: `register` of the tool's owner registers it too. Without a
    `description` the agent's own is used, see `description_of`.
    """

    effect = Effect.IDEMPOTENT  # the child and the question are journaled below the call's path

    def __init__(self, agent: Agent | AgentId | str, description: str = "") -> None:
        self.agent: Agent | None = None if isinstance(agent, AgentId | str) else agent
        self.agent_id = address_of(agent)
        self.name = handoff_name(self.agent_id)
        default = f"Hand a task to the agent {self.agent_id} and get its answer."
        self.description = description or (default if self.agent is None else description_of(self.agent))
        self.parameters = {
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "All that the agent needs to know: it sees nothing else."}
            },
            "required": ["task"],
            "additionalProperties": False,
        }

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`{"task": text}`. Other arguments, without a task, are the task as JSON text."""
        checked = super().validate(arguments)
        if checked and "task" not in checked:
            checked = {"task": to_json(checked).decode()}
        task = checked.get("task")
        if set(checked) != {"task"} or not isinstance(task, str) or not task.strip():
            raise ToolArgumentsError(f'{self.name} takes one argument: {{"task": "…"}}, a text', field="task")
        return checked


class AgentTool(HandoffTool):
    """`handoff_<key>(task)`: runs the agent on the task as a child run and returns its answer.

    description: tells the model which tasks to delegate. timeout: seconds to wait for the answer, without the time that
    people take to answer the agent's requests. Waiting costs only rows.
    variables: values of the caller's own template. The agent gets those that it declares too; the caller's
    `metadata["variables"]` override them.
    memory: "conversation": the agent remembers its earlier tasks of this conversation; "none": it does not.

    Without an answer the result says why. After a timeout the agent may still be at work.
    """

    context_parameter = "ctx"

    def __init__(
        self,
        agent_id: Agent | AgentId | str,
        description: str = "",
        timeout: float | timedelta = 120.0,
        variables: Mapping[str, Any] | None = None,
        memory: str = CONVERSATION,
    ) -> None:
        super().__init__(agent_id, description)
        self.memory = check_memory(memory)
        self.ask_timeout = check_seconds("timeout", timeout)  # `timeout` would limit the tool's own code, which waits
        self.variables = dict(variables or {})

    async def execute(self, **arguments: Any) -> Any:
        metadata, ctx = {INHERITED: self.variables}, arguments["ctx"]
        return await delegate(
            ctx, self.agent_id, arguments["task"], self.ask_timeout, metadata=metadata, memory=self.memory
        )


class DelegateTool(HandoffTool):
    """A sub-agent as an orchestrator's model sees it. Calling it as a tool is refused."""

    def execute(self, **arguments: Any) -> Any:
        raise ToolRefused(
            f"{self.name} is not callable as a tool: its orchestrator spawns {self.agent_id} itself; another agent "
            f"needs an AgentTool({str(self.agent_id)!r})"
        )


async def delegate(
    ctx: RunContext,
    agent_id: AgentId,
    task: str,
    timeout: float,
    *,
    priority: Priority | None = None,
    metadata: Mapping[str, Any] | None = None,
    memory: str = CONVERSATION,
) -> ToolExecutionResult:
    """Run the agent on the task as a child and wait `timeout` seconds. Returns its reply, or an error result that says
    how the child ended."""
    boot = Message(
        target=agent_id,
        sender=ctx.agent_id,
        payload=ChatPayload(message=ChatMessage.of("user", task)),
        metadata={"parent_agent_id": str(ctx.agent_id), **(metadata or {}), LATE: DROP},
    )
    options: dict[str, Any] = {} if priority is None else {"priority": priority}
    options |= {} if memory == NONE else {"memory": memory}
    try:
        handle = await ctx.spawn(agent_id, boot, **options)  # a custom context may not know the options
    except (AgentNotFoundError, PermanentError) as error:
        return _unanswered(f"{agent_id} was not started, nothing has been done: {error}")
    return outcome_as_result(agent_id, await ctx.ask(handle, boot, timeout=timeout), timeout)


def check_memory(memory: Any) -> str:
    """Raises InvalidInputError."""
    if memory not in (CONVERSATION, NONE):
        raise InvalidInputError(f'memory must be "{CONVERSATION}" or "{NONE}", not {memory!r}', field="memory")
    return str(memory)


def without_late_reply(message: Message) -> Message:
    """The message as a question whose reply after the timeout starts no turn of the caller."""
    return message.model_copy(update={"metadata": {**message.metadata, LATE: DROP}})


def outcome_as_result(agent_id: AgentId, outcome: AskOutcome, timeout: float | None) -> ToolExecutionResult:
    """The outcome of asking the agent as the tool call's result. Everything but a reply is an error."""
    if outcome.kind == "replied":
        return ToolExecutionResult(content=[TextBlock(text=as_text(outcome.result))])
    return _unanswered(_outcome_text(agent_id, outcome, timeout or 0.0))


def _outcome_text(agent_id: AgentId, outcome: AskOutcome, timeout: float) -> str:
    match outcome.kind:
        case "timed_out":
            return (
                f"{agent_id} gave no answer within {timeout:g} s; it may still be at work. "
                "This is no failure: the task may yet be done as long as this run goes on, and is done twice when it "
                "is given again"
            )
        case "target_cancelled":
            return f"{agent_id} was cancelled: {_reason(outcome.result)}. What it had done until then stands"
        case _:
            return f"{agent_id} failed: {_reason(outcome.result)}"


def _unanswered(reason: str) -> ToolExecutionResult:
    return ToolExecutionResult(
        content=[TextBlock(text=f"{reason}. Ask another, ask differently, or go on without it.")], is_error=True
    )


def _reason(result: Any) -> str:
    if isinstance(result, dict) and isinstance(result.get("message"), str):
        return str(result["message"])
    return "no reason was given" if result is None else to_json(result, fallback=str).decode()


def address_of(agent: Agent | AgentId | str) -> AgentId:
    if isinstance(agent, AgentId | str):
        return agent if isinstance(agent, AgentId) else AgentId.parse(agent)
    if not is_agent(agent):
        raise InvalidInputError(f"agent must be an agent or an address like type/key, not {agent!r}", field="agent")
    return agent.id


def handoff_name(agent_id: AgentId) -> str:
    """The tool's name: the key of the address, in characters that every provider accepts."""
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_-]', '_', agent_id.key)}"[:_MOST]


_SENTENCE = 300  # characters of a sentence that describes an agent


def is_agent(value: Any) -> bool:
    """Whether it is an object that can be registered as an agent. A tool is not."""
    is_object = not isinstance(value, type | Tool)
    return is_object and isinstance(getattr(value, "id", None), AgentId) and callable(getattr(value, "run", None))


def description_of(agent: Agent) -> str:
    """An agent's description for a model: its `description`; else the first sentence of its class's docstring (not of
    the library's own classes), or of its instructions; else only its address."""
    description = getattr(agent, "description", None)
    if isinstance(description, str) and description.strip():
        return description.strip()
    default = f"Hand a task to the agent {agent.id} and get its answer."
    about = _docstring(type(agent)) or _instructions(agent)
    return f"{default} {about}" if about else default


def _docstring(cls: type) -> str:
    doc = cls.__dict__.get("__doc__")
    is_ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    if not isinstance(doc, str) or is_ours or doc.startswith(f"{cls.__name__}("):  # made by @dataclass
        return ""
    return _first_sentence(doc)


def _instructions(agent: Agent) -> str:
    texts = (getattr(agent, name, None) for name in ("system_instructions", "instructions"))
    return next((_first_sentence(text) for text in texts if isinstance(text, str) and text.strip()), "")


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s|\n\s*\n", " ".join(text.strip().split(" ")), maxsplit=1)[0]
    line = " ".join(sentence.split())
    return line if len(line) <= _SENTENCE else f"{line[:_SENTENCE]}…"
