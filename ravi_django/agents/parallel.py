"""The tool calls of one assistant turn, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from ravi_django.kernel import ToolResultBlock, ToolUseBlock

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
