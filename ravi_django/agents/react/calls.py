"""What a model is offered with each call: tools, a response format, the tool it has to begin with.

The tool calls of one assistant turn, several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ravi_django.agents.react.result import TOOL_NAME, ResultType, free_name
from ravi_django.kernel import (
    AgentId,
    ChatModel,
    GenerationOptions,
    InvalidInputError,
    ToolRegistry,
    ToolResultBlock,
    ToolUseBlock,
)
from ravi_django.kernel.tools import specs_of


@dataclass(frozen=True, slots=True)
class Offer:
    """The options of a message's model calls. Built once for an agent: their digests are computed once."""

    first: GenerationOptions  # of a message's first call
    later: GenerationOptions


@dataclass(frozen=True, slots=True)
class Offers:
    """An agent's: without a result type `plain` is all there is."""

    plain: GenerationOptions  # what the agent was made with, and its tools
    by_tool: Offer  # the result is given by calling a tool
    by_schema: Offer  # the provider holds the answer to the schema
    result_tool: str  # the name of that tool

    @classmethod
    def of(
        cls,
        agent_id: AgentId,
        base: GenerationOptions | None,
        tools: ToolRegistry,
        first_choice: str | None,
        result: ResultType | None,
    ) -> Offers:
        """Raises InvalidInputError when the tool to begin with is none of the agent's."""
        base = base or GenerationOptions()
        plain = _built(base, tools=specs_of(base.tools or tools.all()))
        names = [spec.name for spec in plain.tools]
        _check_choice(agent_id, first_choice, names)
        if result is None:
            offer = _offer(plain, first_choice)
            return cls(plain, offer, offer, TOOL_NAME)
        name = free_name([*names, *tools.names()])
        by_tool = _built(plain, tools=[*plain.tools, result.tool_spec(name)])
        by_schema = _built(plain, response_format=result.response_format)
        return cls(plain, _offer(by_tool, first_choice), _offer(by_schema, first_choice), name)

    async def choose(self, model: ChatModel) -> Offer:
        """By what the model's provider can do."""
        if self.by_tool is self.by_schema:
            return self.by_tool
        supports: Any = getattr(model, "supports_schema", None)
        return self.by_schema if supports is not None and await supports() else self.by_tool


def _offer(options: GenerationOptions, first_choice: str | None) -> Offer:
    return Offer(options if first_choice is None else _built(options, tool_choice=first_choice), options)


def _built(base: GenerationOptions, **changes: Any) -> GenerationOptions:
    # Built anew, not copied: a copy would carry the digests that were cached for the original.
    values = {name: getattr(base, name) for name in GenerationOptions.model_fields}
    return GenerationOptions(**{**values, **changes})


def _check_choice(agent_id: AgentId, choice: str | None, names: Iterable[str]) -> None:
    names = list(names)
    if choice is None or choice in ("auto", "none", *(names and ["required"]), *names):
        return
    raise InvalidInputError(
        f"initial_tool_choice {choice!r} is no tool of {agent_id}; it has {', '.join(names) or 'none'}",
        field="initial_tool_choice",
    )


Numbered = tuple[int, ToolUseBlock]  # a call, and its index in the assistant's message
Slot = Callable[[bool], AbstractAsyncContextManager[None]]  # around what a call does; True: it takes one


async def call_all(
    calls: Sequence[Numbered],
    call_one: Callable[[int, ToolUseBlock, Slot], Awaitable[ToolResultBlock]],
    *,
    at_once: int,
) -> list[ToolResultBlock]:
    """The results in the order of the calls, whichever finishes first. `at_once` bounds what they do inside of
    their slot; before it, all of them wait for people at the same time.

    Those that have started end, and are recorded, before the failure of one is passed on: an effect that is abandoned
    half-way would be an uncertain one.
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

    return _results_or_raise(await asyncio.gather(*(bounded(*call) for call in calls), return_exceptions=True))


def _results_or_raise(outcomes: list[ToolResultBlock | BaseException]) -> list[ToolResultBlock]:
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:  # a suspension or a cancelled task is the runtime's own doing and goes before any error
        raise min(failures, key=lambda failure: isinstance(failure, Exception))
    return [outcome for outcome in outcomes if isinstance(outcome, ToolResultBlock)]
