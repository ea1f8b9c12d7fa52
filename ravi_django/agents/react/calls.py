"""The options of a model call, the parallel tool calls of one assistant turn, and the turn that hands over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from ravi_django.agents.messages import with_options
from ravi_django.agents.react.result import TOOL_NAME, ResultType, free_name, supports_schema
from ravi_django.agents.tools.client_tool import ClientTool
from ravi_django.kernel import AgentId, ChatMessage, FinishAgentResult, Message, Role, RunContext, ToolRegistry
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.errors import ConflictError, InvalidInputError, NotFoundError, PermanentError
from ravi_django.kernel.llm import ChatModel, GenerationOptions
from ravi_django.kernel.tools import specs_of


@dataclass(frozen=True, slots=True)
class Offer:
    """The options of a message's model calls. Built once for an agent, so their digests are computed once."""

    first: GenerationOptions  # of a message's first call
    later: GenerationOptions


_without_schema: set[tuple[str, str]] = set()  # names and endpoints of the models that have refused one here


def _address(model: ChatModel) -> tuple[str, str]:
    return model.name, str(getattr(model, "endpoint", ""))


@dataclass(frozen=True, slots=True)
class Offers:
    """An agent's options. Without a result type, `by_tool` and `by_schema` are the same Offer of `plain`."""

    plain: GenerationOptions  # the base options with the agent's tools
    by_tool: Offer  # the model gives the result by calling a tool
    by_schema: Offer  # the provider enforces the schema
    result_tool: str  # the name of that tool
    result: ResultType | None = None

    @classmethod
    def of(
        cls,
        agent_id: AgentId,
        base: GenerationOptions | None,
        tools: ToolRegistry,
        first_choice: str | None,
        result: ResultType | None,
    ) -> Offers:
        """Raises InvalidInputError if `first_choice` is not a tool of the agent."""
        base = base or GenerationOptions()
        plain = with_options(base, tools=specs_of(base.tools or tools.all()))
        names = [spec.name for spec in plain.tools]
        _check_choice(agent_id, first_choice, names)
        if result is None:
            offer = _offer(plain, first_choice)
            return cls(plain, offer, offer, TOOL_NAME)
        name = free_name([*names, *tools.names()])
        by_tool = with_options(plain, tools=[*plain.tools, result.tool_spec(name)], result_by="tool")
        by_schema = with_options(plain, response_format=result.response_format, result_by="schema")
        return cls(plain, _offer(by_tool, first_choice), _offer(by_schema, first_choice), name, result)

    def of_run(
        self, agent_id: AgentId, tools: ToolRegistry, first_choice: str | None, result: ResultType | None
    ) -> Offers:
        """With the tools of the run's client, and the type of result that its request asks for."""
        of_client = [tool.spec for tool in tools.all() if isinstance(tool, ClientTool)]
        plain = with_options(self.plain, tools=[*self.plain.tools, *of_client])
        return Offers.of(agent_id, plain, tools, first_choice, result)

    async def choose(self, model: ChatModel) -> Offer:
        """The offer that fits the model's provider."""
        if self.by_tool is self.by_schema or _address(model) in _without_schema:
            return self.by_tool
        return self.by_schema if await supports_schema(model, beside_tools=bool(self.plain.tools)) else self.by_tool

    def without_schema(self, model: ChatModel) -> Offer:
        """The offer for a model that has just refused a schema. Later runs of this process begin with it."""
        _without_schema.add(_address(model))
        return self.by_tool


def _offer(options: GenerationOptions, first_choice: str | None) -> Offer:
    return Offer(options if first_choice is None else with_options(options, tool_choice=first_choice), options)


def _check_choice(agent_id: AgentId, choice: str | None, names: Iterable[str]) -> None:
    names = list(names)
    if choice is None or choice in ("auto", "none", *(names and ["required"]), *names):
        return
    raise InvalidInputError(
        f"initial_tool_choice {choice!r} is not a tool of {agent_id}; its tools: {', '.join(names) or 'none'}",
        field="initial_tool_choice",
    )


Numbered = tuple[int, ToolUseBlock]  # a call, and its index in the assistant's message
Slot = Callable[
    [bool], AbstractAsyncContextManager[None]
]  # a context manager around a call's work; True: it takes a slot


async def call_all(
    calls: Sequence[Numbered],
    call_one: Callable[[int, ToolUseBlock, Slot], Awaitable[ToolResultBlock]],
    *,
    at_once: int,
) -> list[ToolResultBlock]:
    """The results in the order of the calls. `at_once` limits the work inside the slots; waiting for approvals happens
    outside and has no limit.

    If one call fails, those that have started still end and are recorded first: an abandoned effect would be uncertain.
    """
    if len(calls) == 1:
        return [await call_one(*calls[0], lambda takes: nullcontext())]
    slots = asyncio.Semaphore(at_once)
    ended: list[BaseException] = []

    @asynccontextmanager
    async def slot(takes: bool) -> AsyncIterator[None]:
        async with slots if takes else nullcontext():
            if ended:  # the run is unwinding: start nothing more
                raise ended[0]
            yield

    async def bounded(index: int, call: ToolUseBlock) -> ToolResultBlock:
        try:
            return await call_one(index, call, slot)
        except BaseException as error:
            ended.append(error)
            raise

    outcomes = await asyncio.gather(*(bounded(*call) for call in calls), return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:  # a suspension or a cancellation (no Exception) comes before any error
        raise min(failures, key=lambda failure: isinstance(failure, Exception))
    return [outcome for outcome in outcomes if isinstance(outcome, ToolResultBlock)]


def asks_for(target: object) -> str:
    """The result of a call that asks for a handoff, before the handoff is made."""
    return f"asks to hand over to {target}"


_REFUSALS = (ConflictError, InvalidInputError, NotFoundError, PermanentError)


class LastTurn:
    """A turn with calls that ask for a handoff. `calls` are all its calls, `results` those of the `made` ones in their
    order; `finishes` has the handoffs by the index of their call."""

    def __init__(
        self,
        calls: Sequence[ToolUseBlock],
        made: Sequence[Numbered],
        results: Sequence[ToolResultBlock],
        finishes: Mapping[int, FinishAgentResult],
    ) -> None:
        self._calls = calls
        self._results = {index: result for (index, _), result in zip(made, results, strict=True)}
        self._finishes = dict(sorted(finishes.items()))

    async def hand_over(
        self, ctx: RunContext, answers: Message, scope: str, close: Callable[[ChatMessage], Awaitable[None]]
    ) -> list[ToolResultBlock]:
        """Make the first handoff that is allowed: `close` stores the turn's results, then this does not return. The
        other handoffs become errors.

        If all are refused, returns the results with the refusals in them, and the agent continues.
        """
        for index, finish in list(self._finishes.items()):
            closing = partial(self._close, close, index, str(finish.target))
            try:
                with ctx.scope(f"{scope}.handoff{index}"):
                    await ctx.handoff(
                        finish.target, finish.task, answers=answers, closing=closing, context=finish.context
                    )
            except _REFUSALS as error:
                self._results[index] = self._error(index, f"not handed over: {error}")
                del self._finishes[index]
        return list(self._results.values())

    async def _close(self, close: Callable[[ChatMessage], Awaitable[None]], chosen: int, target: str) -> None:
        content: list[ContentBlock] = []
        for index in range(len(self._calls)):
            if index == chosen:
                content.append(self._done(index, target))
            elif index in self._results and index not in self._finishes:
                content.append(self._results[index])
            else:
                content.append(self._error(index, f"not done: the conversation was already handed over to {target}"))
        await close(ChatMessage(role=Role.TOOL, content=content))

    def _done(self, index: int, target: str) -> ToolResultBlock:
        """The result of the call that hands over; a tool's own text stays."""
        result = self._results[index]
        if [block.text for block in result.content if isinstance(block, TextBlock)] != [asks_for(target)]:
            return result
        return result.model_copy(update={"content": [TextBlock(text=f"handed over to {target}")]})

    def _error(self, index: int, message: str) -> ToolResultBlock:
        call = self._calls[index]
        return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=message)], is_error=True)
