"""The three levels of interceptors with the contexts that they get, and hooks, which see events and change nothing.

The agent level wraps `agent.run` and runs in every lease, also in a replay: its effects go through `ctx`. The chat and
function levels wrap the call itself, inside the journaled effect: they run only when the call is made, the journal
stores the chain's result, and a replay of that result runs none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelResponse
from ravi_django.kernel.messages import Message, ToolExecutionResult
from ravi_django.kernel.tools import Risk, Tool

if TYPE_CHECKING:
    from ravi_django.kernel.contracts import RunContext

ContextT = TypeVar("ContextT", contravariant=True)
CallNext = Callable[[], Awaitable[None]]


class Middleware(Protocol[ContextT]):
    """Call `call_next()` to continue, skip it to short-circuit, raise MiddlewareTermination to end the call."""

    async def process(self, context: ContextT, call_next: CallNext) -> None:
        """Act on `context` before and after `await call_next()`. Returns nothing: results are set on `context`."""


@dataclass(slots=True)
class AgentRunContext:
    """One call of an agent's `run`."""

    agent_id: AgentId  # the agent that runs
    ctx: RunContext  # the run's own context: effects through it are journaled
    inbox: list[Message]  # may be replaced before `call_next`
    result: Any = None  # what `run` returned; set without `call_next`, it is the run's output
    metadata: dict[str, Any] = field(default_factory=dict)  # shared by the middlewares of one chain


@dataclass(slots=True)
class ChatContext:
    """One model call that is made. Replace `messages`, `options` or `model` before `call_next`, `response` after it.
    Setting `response` without `call_next` answers in the model's place."""

    ctx: RunContext  # for its identity: effects through it are refused here
    path: str  # where in the run: with the run's id, the same for every attempt of this call
    model: ChatModel
    messages: Sequence[ChatMessage]
    options: GenerationOptions
    response: ModelResponse | None = None
    stream: bool = True  # False, set before `call_next`, shows no token before the chain has ended
    made: bool = False  # whether the model was called; set by the runtime
    metadata: dict[str, Any] = field(default_factory=dict)  # shared by the middlewares of one chain

    @property
    def agent_id(self) -> AgentId:
        """The agent that makes the call."""
        return self.ctx.agent_id


@dataclass(slots=True)
class FunctionContext:
    """One tool call that is made. Replace `arguments` before `call_next` (they are validated again), `result` after it.
    Setting `result` without `call_next` answers in the tool's place, which does not run."""

    ctx: RunContext  # before `call_next` it may ask_human, approve, log, now and pin; other calls are refused
    path: str  # where in the run
    tool: Tool  # the tool that is called
    arguments: dict[str, Any]  # as the model gave them: JSON
    call_id: str = ""  # the model's id of the call; empty without one
    attempt: int = 1  # rises when a person decides to run an uncertain effect again
    made: bool = False  # whether the tool's code was called; set by the runtime
    result: ToolExecutionResult | None = None
    metadata: dict[str, Any] = field(default_factory=dict)  # shared by the middlewares of one chain

    @property
    def agent_id(self) -> AgentId:
        """The agent that makes the call."""
        return self.ctx.agent_id

    @property
    def risk(self) -> Risk:
        """The risk of this call, from its arguments."""
        return self.tool.risk_for(self.arguments)


class AgentMiddleware(ABC):
    """Wraps `agent.run`. Runs in every lease: deterministic, or through `context.ctx`."""

    @abstractmethod
    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        """Wrap `agent.run` in one lease. MiddlewareTermination ends the run with its result."""


class ChatMiddleware(ABC):
    """Wraps a model call, inside its journaled effect."""

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Wrap one model call. An exception is recorded and raised to the agent."""


class FunctionMiddleware(ABC):
    """Wraps a tool's execution, inside its journaled effect: after the approval, around the started row.

    Once the tool has run, an exception of a middleware undoes nothing: the call is recorded as happened, with an error
    for the model. A transactional tool has committed when `call_next` returns. GuardrailError is not an error for the
    model: it is recorded with the call and raised to the agent, by a replay too.

    Before `call_next` it may ask a person through `context.ctx` (`ask_human`, `approve`), `log`, and use `now` and
    `pin`. Any other call of `context.ctx`, and any after `call_next`, fails the run with InvalidInputError.
    """

    @abstractmethod
    async def process(self, context: FunctionContext, call_next: CallNext) -> None:
        """Wrap one tool call. An exception is an error for the model."""


@runtime_checkable
class AgentContextProtocol(Protocol):
    """The part of an agent's memory that the agent loop reads."""

    @property
    def agent_id(self) -> AgentId:
        """The agent that the memory belongs to."""

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """The conversation for the model: the history after the compaction pipeline."""


class HookEvent(StrEnum):
    """The moments of a run at which hooks are called. The comment names the keys of `HookCall.data`."""

    RUN_START = "run_start"
    RUN_END = "run_end"  # status, output, error
    STEP_START = "step_start"  # one iteration of the loop
    STEP_END = "step_end"
    LLM_START = "llm_start"  # model, messages (how many), path
    LLM_END = "llm_end"  # model, usage, cost, error, path
    TOOL_START = "tool_start"  # tool, arguments, path
    TOOL_END = "tool_end"  # tool, is_error, path
    FLOW_START = "flow_start"  # the handling of one message
    FLOW_END = "flow_end"
    HANDOFF = "handoff"  # target, run: a child was spawned
    GUARDRAIL_TRIP = "guardrail_trip"  # guardrail, reason


@dataclass(frozen=True, slots=True)
class HookCall:
    """The argument of a hook. The hook is called when the event happens, not when a replay passes it.

    Starts and ends come in pairs, unless a lease ends in between: after a crash, or a transient failure of a tool, the
    start comes again. A model call that is retried later ends with its error and starts again. A tool that waits (for a
    person, a timer, a child) starts once and ends when it has a result, perhaps in another process. A run starts once,
    `continue_as_new` included. It ends when its own code led to a final status: a run that is cancelled while it waits
    has no end, and a retried run has two.
    """

    event: HookEvent  # what happens
    run_id: str  # the UUID of the run
    session_id: str  # the UUID of its conversation
    agent_id: AgentId  # the agent of the run
    data: Mapping[str, Any] = field(default_factory=dict)  # by the event, see HookEvent
