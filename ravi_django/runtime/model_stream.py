"""One answer of a model, shown to whoever watches while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentStep,
    ChatMessage,
    ChatModel,
    GenerationOptions,
    ModelError,
    ModelEvent,
    ModelResponse,
    ReasoningDelta,
    StreamRestart,
    TextDelta,
    ToolCallDelta,
    TransientError,
)
from ravi_django.runtime import frames

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext
    from ravi_django.runtime.effects import Effects


async def stream(
    ctx: DurableContext,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    path: str,
    *,
    show: bool = True,
    moved: list[dict[str, Any]],
) -> ModelResponse:
    """The model's response. `moved` takes in who failed before the one that answered. Raises what the model raises,
    TransientError when it takes too long, ModelError when it gives no response."""
    shown = _Shown(ctx.effects, path) if show else None
    response: ModelResponse | None = None
    try:
        async with asyncio.timeout(conf.MODEL_TIMEOUT_S) as limit:
            async for event in model.stream(messages, options, ctx.meta):
                if isinstance(event, ModelResponse):
                    response = event
                    continue
                if isinstance(event, StreamRestart):
                    limit.reschedule(asyncio.get_running_loop().time() + conf.MODEL_TIMEOUT_S)
                    moved.append({"to": event.model, "error": event.error_type})
                if shown is not None:
                    shown.take(event)
    except TimeoutError:
        raise TransientError(
            f"model {model.name} gave no answer within {conf.MODEL_TIMEOUT_S:g} s", type="Timeout"
        ) from None
    if response is None:
        raise ModelError(f"model {model.name} ended its stream without a response", type="EmptyResponse")
    return response


class _Shown:
    """What of a stream is shown: its text, its reasoning, and the name of each tool that is about to be called."""

    def __init__(self, effects: Effects, path: str) -> None:
        self._effects, self._path = effects, path
        self._restarts = 0
        self._said = False  # in this attempt
        self._tools: set[int] = set()  # calls of this attempt that were shown

    def take(self, event: ModelEvent) -> None:
        match event:
            case TextDelta() | ReasoningDelta():
                self._said = True
                self._delta(event.type, event.text)
            case ToolCallDelta() if event.name and event.index not in self._tools:
                self._tools.add(event.index)
                content = {"tool": event.name, "call": self._path}
                self._effects.emit(frames.progress(self._effects.source, AgentStep.THINKING, content))
            case StreamRestart():
                self._restart()

    def _restart(self) -> None:
        self._restarts += 1
        self._tools.clear()
        if self._said:  # whatever comes now, what was shown goes
            self._said = False
            self._delta("text.delta", "")

    def _delta(self, type: str, text: str) -> None:
        source = self._effects.source
        attempt = f"{source.epoch}.{self._restarts}" if self._restarts else str(source.epoch)
        self._effects.emit(frames.delta(source, type, text, call=self._path, attempt=attempt))
