"""The last turn of an agent that hands over: who takes its place, and what each of the turn's calls is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from ravi_django.agents.react.calls import Numbered
from ravi_django.kernel import (
    ChatMessage,
    ConflictError,
    ContentBlock,
    FinishAgentResult,
    InvalidInputError,
    Message,
    NotFoundError,
    PermanentError,
    Role,
    RunContext,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)


def asks_for(target: object) -> str:
    """The result of a call that hands over, as long as nothing has happened yet."""
    return f"asks to hand over to {target}"


_REFUSALS = (ConflictError, InvalidInputError, NotFoundError, PermanentError)


class LastTurn:
    """A turn of which some calls hand over. `calls` are all of its calls, `results` those of the `made` ones, in their
    order; `finishes` says by a call's index who is to take over."""

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
        """Hand over to the first that nothing forbids; `close` is given the turn's results right before. Then this
        does not return.

        When each was refused, returns the results with the refusals in them: the agent goes on.
        """
        for index, finish in list(self._finishes.items()):
            closing = partial(self._close, close, index, str(finish.target))
            try:
                with ctx.scope(f"{scope}.handoff{index}"):
                    await ctx.handoff(finish.target, finish.task, answers=answers, closing=closing)
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
        """The result of the call that hands over; a tool's own words stay."""
        result = self._results[index]
        if [block.text for block in result.content if isinstance(block, TextBlock)] != [asks_for(target)]:
            return result
        return result.model_copy(update={"content": [TextBlock(text=f"handed over to {target}")]})

    def _error(self, index: int, words: str) -> ToolResultBlock:
        call = self._calls[index]
        return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=words)], is_error=True)
