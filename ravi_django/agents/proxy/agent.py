"""`BaseAgentProxy`: a custom agent, written as a generator of events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Self

from ravi_django.agents.current import enter_agent, enter_message
from ravi_django.agents.memory.agent_context import ContextConfig, Thread, drop_turns
from ravi_django.agents.messages import (
    Instructions,
    checked_model,
    deliver,
    instructions_text,
    model_name,
    spec_text,
    system_messages,
)
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline
from ravi_django.agents.proxy.events import Prompt
from ravi_django.agents.proxy.turn import ProxyTurn, Steps, own_copy
from ravi_django.agents.react.result import Result, ResultType, deliver_result, wanted_of
from ravi_django.agents.react.spec import non_empty, tools_spec
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentId,
    ChatMessage,
    ChatModel,
    Message,
    Role,
    RunContext,
    ToolRegistry,
    TopicId,
)
from ravi_django.kernel.errors import InvalidInputError, LeaseLostError
from ravi_django.kernel.messages import as_text


class BaseAgentProxy:
    """Subclass it, call this constructor, and write `next_turn` as a generator that yields events.

        class Greeter(BaseAgentProxy):
            async def next_turn(self, prompt):
                name = yield WaitForInput("What is your name?")
                yield TurnEnd(f"Hello {name.text}!")

    A replay runs `next_turn` again from the top and answers recorded calls from the journal, so all other code must be
    deterministic. Each request (each message of a run, and each replay of it) has its own copy of the agent, see
    `for_request`.

    name: shown to people. In the address `agent/<name>` invalid characters become "_"; `id` sets another address.
    instructions: a text, or a function (ctx) -> str; `window` begins with it. welcome: shown before the first message.
    prompts: named starters, {name: text}. description: for the model of an agent that has this one as a tool.
    model: for `self.ctx.llm`. tools: for `self.ctx.tool`. result_model: the type of a turn's result, see ResultType.
    context: the memory (ContextConfig); None keeps nothing. output_topic: where answers go if nobody asked for a reply.
    middleware, hooks: see AgentMiddleware, ChatMiddleware, FunctionMiddleware and Hooks.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: Instructions = "",
        welcome: str = "",
        prompts: Mapping[str, str] | None = None,
        description: str = "",
        model: ChatModel | str | None = None,
        tools: ToolRegistry | Iterable[Any] | None = None,
        result_model: Any = None,
        context: ContextConfig | AgentContextProtocol | None = None,
        output_topic: TopicId | None = None,
        middleware: Iterable[Any] | None = None,
        hooks: Any = None,
        id: AgentId | str | None = None,
    ) -> None:
        self.id = _address(name) if id is None else AgentId.parse(str(id))
        self.name = name
        self.instructions = instructions
        self.welcome = welcome
        self.prompts = dict(prompts or {})
        self.description = description
        self.model = None if model is None else checked_model(model)
        self.tools = Toolbox.of(tools)
        self.result = ResultType.of(result_model)
        self.output_topic = output_topic
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.context = ContextConfig.of(context).bind(self.id, model=model)
        self._ctx: RunContext | None = None
        self._thread: Thread | None = None

    def next_turn(self, prompt: Prompt) -> AsyncGenerator[Any, Any] | Generator[Any, Any, Any]:
        """Answer the prompt: an async generator, or a plain one that does not block. Events, and what a yield returns:

        - ChatOutput: streams a text; None.
        - ToolCall, SubagentCall: a ToolExecutionResult; an AskOutcome.
        - WaitForInput, PauseForInputResult: asks a person; a HumanInput.
        - PauseForChildResult: waits for a spawned run; an AskOutcome.
        - TurnEnd: delivers the result and closes the generator. Without it, the end delivers the last output.
        - FinishAgentResult: hands over to another agent and closes the generator; its `finally` blocks have no effects.

        Errors are raised at the yield.
        """
        raise NotImplementedError(f"{type(self).__name__} needs the async generator method next_turn(self, prompt)")

    @property
    def ctx(self) -> RunContext:
        """The RunContext of this request: model calls, tools, children, timers. Only inside `next_turn`."""
        if self._ctx is None:
            raise RuntimeError(f"agent {self.id} has a ctx only while it answers a request; use it inside next_turn")
        return self._ctx

    async def window(self) -> list[ChatMessage]:
        """Messages for a model call: the instructions, the conversation that `context` keeps, and this prompt."""
        if self._thread is None:
            raise RuntimeError(f"agent {self.id} has a window only while it answers a request; use it inside next_turn")
        return await self.context.view(self._thread)

    def for_request(self) -> Self:
        """A copy of the agent for one request, with copies of the lists, dicts and sets of the agent and its class.
        Other objects (a client, a pool) are shared; override this to give a request its own."""
        return own_copy(self, shared=_SHARED, base=BaseAgentProxy)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Answer each message. Raises ResultInvalidError if a turn's result does not fit `result_model`."""
        enter_agent(self)
        answer: Any = None
        try:
            for number, message in enumerate(inbox, 1):
                ctx.check()
                with nullcontext() if number == 1 else ctx.scope(f"msg{number}"):
                    answer = await self.for_request()._answer(ctx, message)
        except LeaseLostError:  # the next worker needs the turns
            raise
        except Exception:  # the run ends; a suspension is no Exception and keeps the turns
            await self._drop_turns(ctx)
            raise
        await self._drop_turns(ctx)
        return answer

    async def _answer(self, ctx: RunContext, message: Message) -> Any:
        self._ctx = ctx
        self._thread = await self.context.open(enter_message(ctx, message), await self._system(ctx))
        await self.context.take(self._thread, message)
        turn = ProxyTurn(ctx, message, f"agent {self.id}", wanted_of(ctx, self.result))
        supervision = ctx.meta.supervision
        prompt = Prompt(message, 0 if supervision is None else supervision.depth)
        await Steps(self.next_turn(prompt), f"{type(self).__name__}.next_turn").run(turn.perform)
        return await self._deliver(message, turn.end())

    async def _deliver(self, message: Message, result: Any) -> Any:
        if isinstance(result, Result):
            await self._keep(result.text)
            await deliver_result(self.ctx, message, result, output_topic=self.output_topic)
            return result.text
        await self._keep(as_text(result))
        sent = {"text": result} if isinstance(result, str) else result
        await deliver(self.ctx, message, sent, sender=self.id, output_topic=self.output_topic)
        return result

    async def _keep(self, text: str) -> None:
        assert self._thread is not None
        await self.context.add(self._thread, ChatMessage.of(Role.ASSISTANT, str(text)))

    async def _system(self, ctx: RunContext) -> list[ChatMessage]:
        return system_messages(await instructions_text(ctx, self.instructions, self.id))

    async def _drop_turns(self, ctx: RunContext) -> None:
        await drop_turns(self.context, self.id, ctx.session_id or ctx.run_id, ctx.run_id)

    def spec(self) -> dict[str, Any]:
        """JSON for the admin, and to see that the agent has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "instructions": spec_text(self.instructions),
            "model": model_name(self.model),
            "tools": tools_spec(self.tools),
            "retention": self.context.retention.value,
            **non_empty(
                description=self.description,
                welcome=self.welcome,
                starter_prompts=list(self.prompts.values()),
                result_schema=None if self.result is None else self.result.schema,
                output_topic=None if self.output_topic is None else str(self.output_topic),
            ),
        }


_SHARED = frozenset(
    ("context", "hooks", "id", "instructions", "middleware", "model", "name", "output_topic", "result", "tools")
)


def _address(name: str) -> AgentId:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError(f"name must be a string, not {name!r}", field="name")
    return AgentId("agent", re.sub(r"[^A-Za-z0-9_.:@+-]", "_", name.strip())[:100])
