"""`BaseAgentProxy`: an agent of one's own, written as a generator of events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Self

from pydantic_core import to_json

from ravi_django.agents.current import _task_agent_id, _task_agent_label, _task_parent_agent_id, _task_thread_id
from ravi_django.agents.hooks import Hooks
from ravi_django.agents.instructions import Instructions, pinned, shown
from ravi_django.agents.memory.agent_context import ContextConfig, Thread, drop_turns
from ravi_django.agents.messages import deliver, message_to_chat
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.proxy.events import Prompt
from ravi_django.agents.proxy.generator import Steps, own_copy
from ravi_django.agents.proxy.turn import ProxyTurn
from ravi_django.agents.react.result import Result, ResultType, deliver_result
from ravi_django.agents.react.spec import _promises
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    ChatModel,
    InvalidInputError,
    LeaseLostError,
    Message,
    Role,
    RunContext,
    ToolRegistry,
    TopicId,
)


class BaseAgentProxy:
    """Subclass it, call this constructor, and write `next_turn` as a generator that yields events.

        class Greeter(BaseAgentProxy):
            async def next_turn(self, prompt):
                name = yield WaitForInput("What is your name?")
                yield TurnEnd(f"Hello {name.text}!")

    A replay runs `next_turn` again from the top: what was asked and called before is answered from the journal at
    once, so keep all other code deterministic. Each request (each message of a run, and each replay of it) has a copy
    of the agent for itself, see `for_request`.

    name: shown to people; in the address `agent/<name>` what no address takes becomes "_" (`id` is another address).
    instructions: a text, or a function (ctx) -> str, that `window` begins with. welcome: shown before the first
    message. prompts: named starters, {name: text}. description: for the model of an agent that has this one as a tool.
    model: what `self.ctx.llm` calls. tools: what `self.ctx.tool` calls. result_model: what a turn's result has to be,
    see ResultType. context: the memory, see ContextConfig. output_topic: where answers go when nobody asked for a
    reply. middleware, hooks: see AgentMiddleware, ChatMiddleware, FunctionMiddleware and Hooks.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: Instructions = "",
        welcome: str = "",
        prompts: Mapping[str, str] | None = None,
        description: str = "",
        model: ChatModel | None = None,
        tools: ToolRegistry | Iterable[Any] | None = None,
        result_model: Any = None,
        context: ContextConfig | None = None,
        output_topic: TopicId | None = None,
        middleware: Iterable[Any] | None = None,
        hooks: Any = None,
        id: AgentId | str | None = None,
    ) -> None:
        if model is not None and not callable(getattr(model, "stream", None)):
            raise TypeError(f"model must be a ChatModel, not {model!r}; build one, e.g. LLMFactory(name).build()")
        self.id = _address(name) if id is None else AgentId.parse(str(id))
        self.name = name
        self.instructions = instructions
        self.welcome = welcome
        self.prompts = dict(prompts or {})
        self.description = description
        self.model = model
        self.tools = Toolbox.of(tools)
        self.result = ResultType.of(result_model)
        self.output_topic = output_topic
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.context = (context or ContextConfig()).bind(self.id, model=model)
        self._ctx: RunContext | None = None
        self._thread: Thread | None = None

    def next_turn(self, prompt: Prompt) -> AsyncGenerator[Any, Any] | Generator[Any, Any, Any]:
        """Answer the prompt: an async generator, or a plain one that does not block. What it may yield, and what the
        yield gives:

        - ChatOutput: streams a text to whoever watches; None.
        - ToolCall, SubagentCall: a ToolExecutionResult; an AskOutcome.
        - WaitForInput, PauseForInputResult: asks a person; a ResumeWithInput.
        - PauseForChildResult: waits for a spawned run; an AskOutcome.
        - TurnEnd: delivers the result and closes the generator. Without one its end does, with what was output last.
        - FinishAgentResult: hands over to another agent and closes the generator, `finally` blocks can do nothing more.

        What goes wrong is raised at the yield.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method: async def next_turn(self, prompt), with yield"
        )

    @property
    def ctx(self) -> RunContext:
        """The RunContext of this request: model calls, tools, children, timers. There inside `next_turn` alone."""
        if self._ctx is None:
            raise RuntimeError(f"agent {self.id} has a ctx while it answers a request: use self.ctx inside next_turn")
        return self._ctx

    async def window(self) -> list[ChatMessage]:
        """What to show a model: the instructions, the conversation as far as `context` keeps it, and this prompt."""
        if self._thread is None:
            raise RuntimeError(f"agent {self.id} has a window while it answers a request: use it inside next_turn")
        return await self.context.view(self._thread)

    def for_request(self) -> Self:
        """What one request runs on: a copy, with copies of the lists, dicts and sets that were set on the agent or its
        class. Other objects are shared (a client, a pool); override this to give a request its own."""
        return own_copy(self, shared=_SHARED, base=BaseAgentProxy)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Answer each message. Raises ResultInvalidError when a turn's result is not what `result_model` asks for."""
        _task_agent_id.set(str(self.id))
        _task_agent_label.set(self.name)
        answer: Any = None
        try:
            for number, message in enumerate(inbox, 1):
                ctx.check()
                if number == 1:
                    answer = await self.for_request()._answer(ctx, message)
                    continue
                with ctx.scope(f"msg{number}"):
                    answer = await self.for_request()._answer(ctx, message)
        except LeaseLostError:  # the turns are the next worker's now
            raise
        except Exception:  # the run ends; a suspended one does not, its turns stay
            await self._drop_turns(ctx)
            raise
        await self._drop_turns(ctx)
        return answer

    async def _answer(self, ctx: RunContext, message: Message) -> Any:
        """One request, on the copy of its own."""
        self._ctx = ctx
        session_id = ctx.session_id or message.correlation_id or ctx.run_id
        _task_thread_id.set(session_id)
        _task_parent_agent_id.set(message.metadata.get("parent_agent_id") or None)
        self._thread = await self.context.open(session_id, await self._system(ctx))
        await self.context.add(self._thread, message_to_chat(message))
        turn = ProxyTurn(ctx, message, f"agent {self.id}", self.result)
        supervision = ctx.meta.supervision
        prompt = Prompt(message, 0 if supervision is None else supervision.depth)
        await Steps(self.next_turn(prompt), f"{type(self).__name__}.next_turn").run(turn.perform)
        return await self._deliver(message, turn.end())

    async def _deliver(self, message: Message, result: Any) -> Any:
        if isinstance(result, Result):
            await self._keep(result.text)
            await deliver_result(self.ctx, message, result, output_topic=self.output_topic)
            return result.text
        await self._keep(_as_text(result))
        sent = {"text": result} if isinstance(result, str) else result
        await deliver(self.ctx, message, sent, sender=self.id, output_topic=self.output_topic)
        return result

    async def _keep(self, text: str) -> None:
        assert self._thread is not None
        await self.context.add(self._thread, ChatMessage.of(Role.ASSISTANT, str(text)))

    async def _system(self, ctx: RunContext) -> list[ChatMessage]:
        said = self.instructions
        if callable(said):
            said = await pinned(ctx, partial(said, ctx), name=f"instructions.{self.id}"[:200])
        return [ChatMessage.of(Role.SYSTEM, said)] if said else []

    async def _drop_turns(self, ctx: RunContext) -> None:
        await drop_turns(self.context, self.id, ctx.session_id or ctx.run_id, ctx.run_id)

    def spec(self) -> dict[str, Any]:
        """What this agent is, as JSON: enough to show it and to see that it has changed."""
        said = {
            "description": self.description,
            "welcome": self.welcome,
            "starter_prompts": list(self.prompts.values()),
            "result_schema": None if self.result is None else self.result.schema,
            "output_topic": None if self.output_topic is None else str(self.output_topic),
        }
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "instructions": shown(self.instructions),
            "model": None if self.model is None else getattr(self.model, "name", type(self.model).__name__),
            "tools": [{**tool.spec.model_dump(), **_promises(tool)} for tool in self.tools],
            "retention": self.context.retention.value,
            **{name: value for name, value in said.items() if value},
        }


_SHARED = frozenset(
    ("context", "hooks", "id", "instructions", "middleware", "model", "name", "output_topic", "result", "tools")
)


def _as_text(result: Any) -> str:
    """What a run whose output is this result shows of it."""
    if isinstance(result, dict) and result.keys() == {"text"}:
        result = result["text"] if isinstance(result["text"], str) else result
    if isinstance(result, str):
        return result
    try:
        return to_json(result, fallback=str).decode()
    except ValueError:  # a circle
        return str(result)


def _address(name: str) -> AgentId:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError(f"name is a text, not {name!r}", field="name")
    return AgentId("agent", re.sub(r"[^A-Za-z0-9_.:@+-]", "_", name.strip())[:100])
