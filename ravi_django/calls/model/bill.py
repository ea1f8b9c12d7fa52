"""The requests of one model call, and what each has used. The usage of the answer is on the call's own row. Each other
request that reached its provider gets a row of kind `llm.paid`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ravi_django.agents.memory.compaction.tokens import TokenCounter
from ravi_django.calls.llm import pricing
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import (
    CancellationError,
    ChatMessage,
    ChatModel,
    ModelEvent,
    ModelResponse,
    ReasoningDelta,
    StreamAlive,
    StreamRestart,
    TextDelta,
    ToolCallDelta,
    Usage,
)

PAID = "llm.paid"


@dataclass(slots=True)
class Request:
    """One request to a provider."""

    model: ChatModel
    messages: Sequence[ChatMessage]
    number: int = 0  # in its call and lease
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    texts: list[str] = field(default_factory=list)  # that were streamed
    tools: set[int] = field(default_factory=set)  # calls whose name was streamed
    reported: StreamAlive | None = None
    response: ModelResponse | None = None
    is_sent: bool = False
    reason: str = "refused"  # of an answer that is not used

    def take(self, event: ModelEvent) -> None:
        self.is_sent = True
        match event:
            case ModelResponse():
                self.response, self.ended = event, time.monotonic()
            case StreamAlive() if event.usage is not None:
                self.reported = event
            case TextDelta() | ReasoningDelta():
                self.texts.append(event.text)
            case ToolCallDelta():
                name = "" if event.index in self.tools else event.name
                self.tools |= {event.index} if name else set()
                self.texts.append(name + event.arguments)

    def end(self, reason: str, *, is_sent: bool = False) -> None:
        self.is_sent = self.is_sent or is_sent
        self.reason, self.ended = reason, time.monotonic()

    async def used(self) -> tuple[Usage, float | None]:
        """The usage and its cost: as reported with the end of the answer, else counted."""
        if self.response is not None:
            whole: Any = self.response
        elif self.reported is not None and self.reported.is_whole:
            whole = self.reported
        else:
            usage = await self._counted()
            return usage, self._cost(usage)
        return whole.usage, whole.cost if whole.cost is not None else self._cost(whole.usage)

    async def _counted(self) -> Usage:
        """Usage that came before the end of the answer counts for the input."""
        counter, early = TokenCounter(self.model), self.reported and self.reported.usage
        read = (early and early.input_tokens) or await counter.total(self.messages)
        cached = early.cached_tokens if early else 0
        wrote = await tokens_of(self.model, "".join(self.texts))
        return Usage(input_tokens=read, cached_tokens=cached, output_tokens=wrote, estimated=True)

    def _cost(self, usage: Usage) -> float | None:
        prices = pricing.prices_of(self.model, self.response.model if self.response else "")
        return None if prices is None else pricing.cost_by(prices, usage)


async def tokens_of(model: ChatModel, text: str) -> int:
    """The tokens of an answer."""
    if not text:
        return 0
    # Beside one token, so that the tokens of a message itself do not count.
    counter, (whole, one) = TokenCounter(model), (ChatMessage.of("assistant", content) for content in (text, "."))
    return max(0, await counter.total([whole]) - await counter.total([one]) + 1)


class Requests:
    """The requests of one call whose usage is not on a row yet."""

    def __init__(self) -> None:
        self.begun = 0  # requests of this call and lease
        self._open: list[Request] = []
        self._root: Any = None

    def begin(self, model: ChatModel, messages: Sequence[ChatMessage]) -> Request:
        self._root = model
        return self._begin(named(model, model.name), messages)

    def _begin(self, model: ChatModel, messages: Sequence[ChatMessage]) -> Request:
        self._open.append(Request(model, messages, self.begun))
        self.begun += 1
        return self._open[-1]

    def take(self, event: ModelEvent) -> Request | None:
        """Returns the request that begins with this event, if one does."""
        last = self._open[-1]
        if not isinstance(event, StreamRestart):
            last.take(event)
            return None
        last.end("empty" if event.error_type == "EmptyResponse" else "fallback")
        return self._begin(named(self._root, event.model), last.messages)

    def end(self, error: BaseException) -> None:
        """The last request has ended with this error, unless it was answered or not begun."""
        if not self._open or self._open[-1].ended is not None:
            return
        is_stopped = isinstance(error, CancellationError | asyncio.CancelledError)
        kind = getattr(error, "type", "")
        reason = "timeout" if "Timeout" in kind else "empty" if kind == "EmptyResponse" else "cut"
        is_sent = isinstance(error, asyncio.CancelledError) or getattr(error, "is_sent", False)
        self._open[-1].end("stopped" if is_stopped else reason, is_sent=is_sent)

    def answered(self, response: ModelResponse) -> ModelResponse:
        """The response that is used, with the usage of its request, unless it has its own. A middleware's own sum
        counts for all answers of the call."""
        answers = [request for request in self._open if request.response is not None]
        if not answers:
            return response
        used = next((request for request in answers if request.response is response), answers[-1])
        assert used.response is not None
        is_sum = response.usage.total and response.usage != used.response.usage
        self._open = [one for one in self._open if one is not used and not (is_sum and one in answers)]
        if response.usage.total:
            return response
        return response.model_copy(update={"usage": used.response.usage, "cost": used.response.cost})

    async def charge(self, entry: Entry) -> None:
        """Put the last request of a call that has failed on the call's own row."""
        if self._open and self._open[-1].is_sent:
            entry.usage, entry.cost = await self._open.pop().used()

    async def note(self, recorder: Recorder, path: str) -> None:
        """Record the requests with the next commit."""
        requests, self._open = [request for request in self._open if request.is_sent], []
        for request in requests:
            usage, cost = await request.used()
            entry = Entry(PAID, f"@paid.{path}#{recorder.lease.epoch}.{request.number}", request.model.name)
            entry.usage, entry.cost = usage, cost
            entry.result = {"estimated": usage.estimated, "reason": request.reason}
            entry.elapsed_s = (request.ended or time.monotonic()) - request.begun
            recorder.record_with_next_once(entry)


def named(model: Any, name: str) -> Any:
    """The model with this name among those of a fallback list."""
    inner = [one for part in getattr(model, "models", ()) if (one := named(part, name)) is not None]
    return inner[0] if inner else model if model.name == name else None
