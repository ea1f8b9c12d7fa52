"""Stream one answer of a model."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, cast

from ravi_django.agents.current import _task_shown
from ravi_django.bytes_budget import process_bytes
from ravi_django.calls.llm import fallback
from ravi_django.calls.llm.collector import call_ids, is_plain
from ravi_django.calls.llm.loading import aload_litellm
from ravi_django.calls.model import admission, lost, provider_waits
from ravi_django.calls.model.bill import Requests
from ravi_django.conf import conf
from ravi_django.engine.lease.state import RunState
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
from ravi_django.live.streams import hidden
from ravi_django.live.streams.frames import ARGUMENTS
from ravi_django.runs.files import media


def _limits() -> tuple[float, float]:
    """Seconds without an event, and for the whole answer."""
    return conf.MODEL_TIMEOUT_S, conf.MODEL_TOTAL_S


fallback.use_limits(_limits)


async def stream(
    ctx: RunState,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    path: str,
    *,
    show: bool = True,
    moved: list[dict[str, Any]],
    requests: Requests,
) -> ModelResponse:
    """Returns the model's response. Adds to `moved` each fallback to another model. Raises the model's errors,
    TransientError if it is silent or takes too long, ModelError if it gives no response."""
    admission.check_priced(ctx.recorder, model)
    if (loud := getattr(model, "loud", None)) is not None:  # a summary: its deltas count, and are not shown
        model, show = loud, False
    if (needs := getattr(model, "needs_library", None)) is not None and needs():
        about = {"model": model.name, "call": path}
        ctx.recorder.stream.progress(AgentStep.THINKING, {**about, "imports": True})
        await aload_litellm()  # outside of the model's time limits
        ctx.recorder.stream.progress(AgentStep.THINKING, about)
    has_media = any([message.has_media for message in messages])
    call = await _with_media(ctx, model, messages) if has_media else media.CallMedia(messages, {})
    live = _LiveOutput(ctx, path, messages) if show else None
    refusal, refused_by = cast("ModelError | None", None), model.name
    fallback.view_for.set(functools.partial(media.view_for, call.files))
    fallback.failed.set(functools.partial(provider_waits.failed, ctx.recorder, ctx.recorder.state.present()))
    async with process_bytes.holding(call.held(sum([message.size for message in messages]))):
        while True:  # without the media that the model refuses: each later message would fail too
            try:
                response = await _streamed(ctx, model, call, options, live, moved, requests, path)
                break
            except ModelError as error:
                refusal, smaller = refusal or error, media.without_refused(call, error)
                refused_by = moved[-1]["to"] if moved else refused_by
            if smaller is None:
                raise refusal
            call = smaller
    if call.refused:
        await ctx.recorder.run_sync(media.remember, call, refused_by)
    return response


async def _with_media(ctx: RunState, model: ChatModel, messages: Sequence[ChatMessage]) -> media.CallMedia:
    fetches = getattr(model, "fetches_addresses", None)
    address_bytes = media.ADDRESS_BYTES if fetches is not None and await fetches() else 0
    call: media.CallMedia = await ctx.recorder.run_sync(
        media.choose, messages, ctx.recorder.lease.run, model.name, address_bytes
    )
    return call


async def _streamed(
    ctx: RunState,
    model: ChatModel,
    call: media.CallMedia,
    options: GenerationOptions,
    live: _LiveOutput | None,
    moved: list[dict[str, Any]],
    requests: Requests,
    path: str,
) -> ModelResponse:
    response: ModelResponse | None = None
    silence, total = _limits()
    now = asyncio.get_running_loop().time
    ends = now() + total
    try:
        async with asyncio.timeout_at(min(now() + silence, ends)) as limit:
            messages = call.messages
            if call.files:  # read only here: digests and the journal have the ids
                messages = await ctx.recorder.run_sync(media.load, call, ctx.recorder.lease.run)
            mark = lost.mark(ctx.recorder, path, requests.begin(model, call.messages))
            async for event in model.stream(messages, options, ctx.meta):
                await lost.sent(mark)
                mark = lost.mark(ctx.recorder, path, requests.take(event))
                if isinstance(event, ModelResponse):
                    response = event
                elif isinstance(event, StreamRestart):
                    ends = now() + total  # the next model has its own time
                    moved.append({"to": event.model, "error": event.error_type})
                limit.reschedule(min(now() + silence, ends))
                if live is not None and not isinstance(event, ModelResponse):
                    live.take(event)
    except TimeoutError:
        late = f"did not end its answer within {total:g} s" if now() >= ends else None
        message = f"model {model.name} {late or f'gave no answer within {silence:g} s'}"
        error = TransientError(message, type="Timeout")
        error.is_sent = True
        requests.end(error)
        raise error from None
    except BaseException as raised:
        requests.end(raised)
        raise
    if response is None:
        empty = ModelError(f"model {model.name} ended its stream without a response", type="EmptyResponse")
        requests.end(empty)
        raise empty
    return response


class _LiveOutput:
    """Shows text, reasoning, the name of each tool that is about to be called, and the arguments of some."""

    def __init__(self, ctx: RunState, path: str, messages: Sequence[ChatMessage]) -> None:
        self._ctx, self._recorder, self._path, self._messages = ctx, ctx.recorder, path, messages
        self._restarts = 0
        self._has_text = False  # in this attempt
        self._tools: set[int] = set()  # calls of this attempt that were shown
        self._writes: dict[int, bool] = {}  # by call of this attempt: whether its arguments are shown
        texts = _task_shown.get()
        self._texts: list[str] = [] if texts is None else texts  # of this attempt
        self._texts.clear()

    def take(self, event: ModelEvent) -> None:
        match event:
            case TextDelta() | ReasoningDelta():
                self._has_text = True
                if event.type == "text.delta":
                    self._texts.append(event.text)
                self._delta(event.type, event.text)
            case ToolCallDelta() if event.name:
                if event.index not in self._tools:
                    self._tools.add(event.index)
                    self._recorder.stream.progress(AgentStep.THINKING, {"tool": event.name, "call": self._path})
                if event.arguments and event.index not in self._writes:
                    self._writes[event.index] = self._may_show(event)
                if event.arguments and self._writes[event.index]:
                    self._delta(ARGUMENTS, event.arguments, tool=event.name, call_id=event.call_id)
            case StreamRestart():
                self._restarts += 1
                self._tools.clear()
                self._writes.clear()
                self._texts.clear()
                if self._has_text:  # remove the text of the failed attempt
                    self._has_text = False
                    self._delta("text.delta", "")

    def _may_show(self, event: ToolCallDelta) -> bool:
        """Arguments of a known tool of the root's agent, which hides none, and whose calls nobody decides on. Where a
        middleware may change them, or the call gets another id, the client would have what is not called."""
        ctx, tool = self._ctx, self._ctx.toolbox.get(event.name)
        if tool is None or ctx.approval is None or self._recorder.stream.source.depth:
            return False
        is_renamed = not is_plain(event.call_id) or event.call_id in call_ids(self._messages)
        if is_renamed or ctx.middleware.chat or ctx.middleware.function:
            return False
        return not hidden.of_tool(tool) and not ctx.approval.may_cover(tool)

    def _delta(self, type: str, text: str, **more: str) -> None:
        epoch = self._recorder.lease.epoch
        attempt = f"{epoch}.{self._restarts}" if self._restarts else str(epoch)
        self._recorder.stream.delta(type, text, call=self._path, attempt=attempt, **more)
