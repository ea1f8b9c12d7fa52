"""The three levels of interceptors, and what each of them is given.

Agent level wraps `agent.run` and runs in every lease, a replay too: what it does to the world goes through `ctx`. Chat
and function level wrap the call itself, inside the journaled effect: they run only when the call is really made, what
comes out of the chain is what the journal keeps, and a replay runs none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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
    """Call `call_next()` to go on, skip it to short-circuit, raise MiddlewareTermination to end the call."""

    async def process(self, context: ContextT, call_next: CallNext) -> None: ...


@dataclass(slots=True)
class AgentRunContext:
    """One call of an agent's `run`."""

    agent_id: AgentId
    ctx: RunContext  # the run's own context: effects through it are journaled
    inbox: list[Message]  # may be replaced before `call_next`
    result: Any = None  # what `run` returned; set without `call_next`, it is the run's output
    metadata: dict[str, Any] = field(default_factory=dict)  # for the middlewares of one chain to tell each other


@dataclass(slots=True)
class ChatContext:
    """One model call that is really made. Replace `messages`, `options` or `model` before `call_next`, `response`
    after it; setting `response` without `call_next` answers in the model's place."""

    ctx: RunContext  # for its identity; effects through it are refused here
    path: str  # where in the run: with the run's id, the same for every attempt of this call
    model: ChatModel
    messages: Sequence[ChatMessage]
    options: GenerationOptions
    response: ModelResponse | None = None
    stream: bool = True  # set it to False before `call_next` and no token is shown before the chain is through
    made: bool = False  # whether the model was called; set by the runtime
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def agent_id(self) -> AgentId:
        return self.ctx.agent_id


@dataclass(slots=True)
class FunctionContext:
    """One tool call that is really made. Replace `arguments` before `call_next` (they are validated again), `result`
    after it; setting `result` without `call_next` answers in the tool's place, which is not run then."""

    ctx: RunContext  # for its identity; effects through it are refused here
    path: str  # where in the run
    tool: Tool
    arguments: dict[str, Any]  # as the model gave them: JSON
    call_id: str = ""
    attempt: int = 1  # rises when a person decides that an uncertain effect is run again
    made: bool = False  # whether the tool's code was called; set by the runtime
    result: ToolExecutionResult | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def agent_id(self) -> AgentId:
        return self.ctx.agent_id

    @property
    def risk(self) -> Risk:
        return self.tool.risk_for(self.arguments)


class AgentMiddleware(ABC):
    """Wraps `agent.run`. Runs in every lease: deterministic, or through `context.ctx`."""

    @abstractmethod
    async def process(self, context: AgentRunContext, call_next: CallNext) -> None: ...


class ChatMiddleware(ABC):
    """Wraps a model call, inside its journaled effect."""

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None: ...


class FunctionMiddleware(ABC):
    """Wraps a tool's execution, inside its journaled effect: behind the approval, around the started row.

    Once the tool has run, nothing that a middleware raises undoes it: the call is recorded as having happened, with
    an error for the model. A transactional tool has committed when `call_next` returns. GuardrailError is no error for
    the model: the call is recorded with it, and then it is raised to the agent, by a replay too.

    Nobody is asked for an approval here: the call is journaled already, and nothing in it can wait for days. Approvals
    are the agent's (`approval_handler=` of ReActAgent), before the call is begun.
    """

    @abstractmethod
    async def process(self, context: FunctionContext, call_next: CallNext) -> None: ...


@runtime_checkable
class AgentContextProtocol(Protocol):
    """What the agent loop reads of an agent's memory."""

    @property
    def agent_id(self) -> AgentId: ...

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """The conversation as the model is shown it: history through the compaction pipeline."""
        ...
