"""Give a task to another agent: the tool that the model sees, the child run, and its outcome in words.

Any agent can call an `AgentTool`. A `DelegateTool` is never called: its orchestrator does the work. A model reads an
agent's description, or the first sentence of its docstring.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ravi_django.kernel import AgentNotFoundError, InvalidInputError, PermanentError, ToolArgumentsError, ToolRefused
from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.content import TextBlock
from ravi_django.kernel.contracts import Agent, AskOutcome, RunContext
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import ChatPayload, Message, ToolExecutionResult
from ravi_django.kernel.supervision import Priority
from ravi_django.kernel.tools import Effect, Tool

INHERITED = "inherited_variables"  # of a message that boots a run: it may have its caller's, over these
LATE, DROP = "late_reply", "drop"  # of a message that is asked: its reply after the timeout is recorded, and no message
_PREFIX = "handoff_"
_MOST = 64  # characters of a tool's name that every provider takes


class HandoffTool(Tool):
    """`handoff_<key>(task)`: its name, description and one argument, for the agent `agent_id`.

    An agent that is given as an object is `agent` then: `register` of the tool's owner registers it too. Without a
    `description` its own is taken, see `description_of`.
    """

    effect = Effect.IDEMPOTENT  # the child and the question are journaled at, or below, the call's own path

    def __init__(self, agent: Agent | AgentId | str, description: str = "") -> None:
        self.agent: Agent | None = None if isinstance(agent, AgentId | str) else agent
        self.agent_id = address_of(agent)
        self.name = handoff_name(self.agent_id)
        own = f"Hand a task to the agent {self.agent_id} and get its answer."
        self.description = description or (own if self.agent is None else description_of(self.agent))
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


class AgentTool(HandoffTool):
    """`handoff_<key>(task)`: runs the agent on the task as a child run and gives its answer.

    description: for the model, what to hand to this agent. timeout: seconds to wait for the answer; the time that
    people take to answer the agent's requests does not count. Waiting costs rows and nothing else.

    `variables` are values of the caller's own template; the agent gets those that it declares too, and before them
    what the caller's run was given as `metadata["variables"]`.

    When no answer comes, words say which way it ended: after a timeout the agent may still be at work.
    """

    context_parameter = "ctx"

    def __init__(
        self,
        agent_id: Agent | AgentId | str,
        description: str = "",
        timeout: float = 120.0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(agent_id, description)
        self.ask_timeout = check_seconds(
            "timeout", timeout
        )  # not `timeout`: that bounds the tool's own code, which waits
        self.variables = dict(variables or {})

    async def execute(self, **arguments: Any) -> Any:
        given = {INHERITED: self.variables}
        return await delegate(arguments["ctx"], self.agent_id, arguments["task"], self.ask_timeout, metadata=given)


class DelegateTool(HandoffTool):
    """What an orchestrator shows its model of a sub-agent. Calling it as a tool is refused."""

    def execute(self, **arguments: Any) -> Any:
        raise ToolRefused(
            f"{self.name} is no tool to call: the orchestrator that has it spawns {self.agent_id} itself; "
            f"any other agent needs an AgentTool({str(self.agent_id)!r})"
        )


async def delegate(
    ctx: RunContext,
    agent_id: AgentId,
    task: str,
    timeout: float,
    *,
    priority: Priority | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ToolExecutionResult:
    """Run the agent on the task as a child and wait `timeout` seconds for its reply: the call's result, for the model.

    Whatever else happens to the child is an error result that says what it means.
    """
    boot = Message(
        target=agent_id,
        sender=ctx.agent_id,
        payload=ChatPayload(message=ChatMessage.of("user", task)),
        correlation_id=ctx.session_id,
        metadata={"parent_agent_id": str(ctx.agent_id), **(metadata or {}), LATE: DROP},
    )
    try:
        # Named only where it is another: a context of one's own may know nothing of priorities.
        handle = await (ctx.spawn(agent_id, boot) if priority is None else ctx.spawn(agent_id, boot, priority=priority))
    except (AgentNotFoundError, PermanentError) as error:
        return _unanswered(f"{agent_id} was not started, nothing has been done: {error}")
    return outcome_as_result(agent_id, await ctx.ask(handle, boot, timeout=timeout), timeout)


def without_late_reply(message: Message) -> Message:
    """The same message, to ask with: what is replied after the timeout begins no turn of the one who asked."""
    return message.model_copy(update={"metadata": {**message.metadata, LATE: DROP}})


def outcome_as_result(agent_id: AgentId, outcome: AskOutcome, timeout: float | None) -> ToolExecutionResult:
    """What became of an ask of this agent, as the result of the call that made it. Only a reply is no error."""
    if outcome.kind == "replied":
        return _answer_of(outcome.result)
    return _unanswered(_words(agent_id, outcome, timeout or 0.0))


def _words(agent_id: AgentId, outcome: AskOutcome, timeout: float) -> str:
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


def _unanswered(words: str) -> ToolExecutionResult:
    return ToolExecutionResult(
        content=[TextBlock(text=f"{words}. Ask another, ask differently, or go on without it.")], is_error=True
    )


def _answer_of(result: Any) -> ToolExecutionResult:
    if isinstance(result, dict) and result.keys() == {"text"} and isinstance(result["text"], str):
        result = result["text"]
    text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
    return ToolExecutionResult(content=[TextBlock(text=text)])


def _reason(result: Any) -> str:
    if isinstance(result, dict) and isinstance(result.get("message"), str):
        return str(result["message"])
    return "no reason was given" if result is None else to_json(result, fallback=str).decode()


def address_of(agent: Agent | AgentId | str) -> AgentId:
    if isinstance(agent, AgentId | str):
        return agent if isinstance(agent, AgentId) else AgentId.parse(agent)
    if not is_agent(agent):
        raise InvalidInputError(f"agent is an agent or an address, type/key, not {agent!r}", field="agent")
    return agent.id


def handoff_name(agent_id: AgentId) -> str:
    """The tool's name: the address's key, in characters that every provider takes."""
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_-]', '_', agent_id.key)}"[:_MOST]


_SENTENCE = 300  # characters of a sentence that describes an agent


def is_agent(value: Any) -> bool:
    """Whether it is an object that can be registered as an agent; a tool is none."""
    is_object = not isinstance(value, type | Tool)
    return is_object and isinstance(getattr(value, "id", None), AgentId) and callable(getattr(value, "run", None))


def description_of(agent: Agent) -> str:
    """What a model is told of an agent: its `description`; else the first sentence of its class's docstring (not of
    the library's own classes), or of its instructions; else its address alone."""
    described = getattr(agent, "description", None)
    if isinstance(described, str) and described.strip():
        return described.strip()
    words = f"Hand a task to the agent {agent.id} and get its answer."
    said = _docstring(type(agent)) or _instructions(agent)
    return f"{words} {said}" if said else words


def _docstring(cls: type) -> str:
    doc = cls.__dict__.get("__doc__")
    is_ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    if not isinstance(doc, str) or is_ours or doc.startswith(f"{cls.__name__}("):  # a dataclass's own
        return ""
    return _first_sentence(doc)


def _instructions(agent: Agent) -> str:
    for name in ("system_instructions", "instructions"):
        said = getattr(agent, name, None)
        if isinstance(said, str) and said.strip():
            return _first_sentence(said)
    return ""


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s|\n\s*\n", " ".join(text.strip().split(" ")), maxsplit=1)[0]
    line = " ".join(sentence.split())
    return line if len(line) <= _SENTENCE else f"{line[:_SENTENCE]}…"
