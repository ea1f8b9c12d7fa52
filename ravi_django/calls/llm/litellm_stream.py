"""A stream of litellm: how it opens and is read, its signs of life, its end, and the callbacks behind it. litellm's
wrapper drops pings, comments and empty pieces.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

from ravi_django.calls.llm import sse
from ravi_django.calls.llm.collector import ResponseCollector
from ravi_django.kernel.errors import TransientError
from ravi_django.kernel.llm import FinishReason

log = logging.getLogger("ravi.llm")

ALIVE: dict[str, Any] = {}  # a piece with nothing in it
CALLBACK_LISTS = (
    "callbacks",
    "input_callback",
    "success_callback",
    "failure_callback",
    "_async_success_callback",
    "_async_failure_callback",
)
_OF_LITELLM = "cache"  # it registers this one itself


async def opened(call: Callable[..., Awaitable[Any]], **request: Any) -> Any:
    """The stream of a call. Gemini's would be opened by the first read: its errors are the call's."""
    stream = await call(**request)
    if getattr(stream, "completion_stream", stream) is None:
        try:
            await stream.fetch_stream()
        except Exception as error:
            from litellm.litellm_core_utils.exception_mapping_utils import exception_type

            maker = stream.custom_llm_provider
            raise exception_type(model=stream.model, custom_llm_provider=maker, original_exception=error) from error
    return stream


async def chunks(stream: Any) -> AsyncIterator[Any]:
    """The wrapper's chunks, with `ALIVE` among them while the provider sends what the wrapper does not show, and the
    usage that the provider has sent first."""
    came, usage = asyncio.Event(), list[Any]()
    if hasattr(stream.completion_stream, "__aiter__"):  # a few providers' are read in a thread
        stream.completion_stream = _noticing(stream.completion_stream, came, usage)
    wrapper = aiter(stream)
    task: asyncio.Task[Any] | None = None
    try:
        while True:
            task = task or asyncio.ensure_future(anext(wrapper))
            sign = asyncio.ensure_future(came.wait())
            try:
                await asyncio.wait({task, sign}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sign.cancel()
            came.clear()
            if usage and usage[-1] is not None:
                yield {"usage": usage[-1]}
                usage.append(None)
            if not task.done():
                yield ALIVE
                continue
            try:
                chunk = task.result()
            except StopAsyncIteration:
                return
            finally:
                task = None
            yield chunk
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


async def _noticing(source: Any, came: asyncio.Event, usage: list[Any]) -> AsyncIterator[Any]:
    try:
        async for piece in source:
            came.set()
            if not usage and (
                first := piece.get("usage") if isinstance(piece, dict) else getattr(piece, "usage", None)
            ):
                usage.append(first)
            yield piece
    finally:
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is not None and asyncio.iscoroutine(closing := close()):
            await closing


async def call_callbacks(litellm: Any, stream: Any, collector: ResponseCollector) -> None:
    """Call the callbacks that the site has registered with litellm, with the whole answer of a stream that its wrapper
    has not read. An error of a callback is logged."""
    if not any(name != _OF_LITELLM for kind in CALLBACK_LISTS for name in getattr(litellm, kind, None) or ()):
        return
    response = collector.response(cost=None, taken_ids=set())
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.tool_name, "arguments": str(call.arguments)}}
        for call in response.message.tool_calls
    ]
    message = {"role": "assistant", "content": response.text, "tool_calls": calls or None}
    usage = {
        "prompt_tokens": response.usage.input_tokens,
        "completion_tokens": response.usage.output_tokens,
        "total_tokens": response.usage.total,
    }
    choices = [{"index": 0, "message": message, "finish_reason": str(response.finish_reason)}]
    try:
        answer = litellm.ModelResponse(model=response.model, choices=choices, usage=usage)
        await stream.logging_obj.dispatch_success_handlers(answer, prefer_async_handlers=True)
    except Exception:
        log.exception("a callback of litellm failed")


def source_of(stream: Any) -> tuple[AsyncIterable[Any], bool]:
    """The chunks of a stream, and whether they are the provider's own: those in OpenAI's format are not read by
    litellm's wrapper, which takes about 1 ms of CPU per token."""
    import openai
    from litellm.llms.openai.chat.gpt_transformation import OpenAIChatCompletionStreamingHandler
    from litellm.llms.openrouter.chat.transformation import OpenRouterChatCompletionStreamingHandler

    source = getattr(stream, "completion_stream", None)
    if isinstance(source, openai.AsyncStream):
        return sse.chunks(source.response), True
    if hasattr(stream, "stream_iterator"):  # of Responses
        return sse.chunks(stream.response), True
    if isinstance(source, OpenAIChatCompletionStreamingHandler | OpenRouterChatCompletionStreamingHandler):
        response = getattr(source, "http_response", None)
        if response is not None and not source.json_mode:
            return sse.chunks(response), True
    return chunks(stream), False


def check_end(wrapper: Any, collector: ResponseCollector) -> None:
    """Raises TransientError for an answer that the provider has not ended. `wrapper`: litellm's, if it has read it."""
    if collector.finish_reason is FinishReason.ERROR:
        raise TransientError("the provider ended the answer with an error", type="StreamError")
    if hasattr(wrapper, "received_finish_reason"):  # it adds a "stop" to the last chunk itself
        is_finished = bool(wrapper.received_finish_reason or wrapper.intermittent_finish_reason)
    else:
        is_finished = bool(collector.finish_reason) or collector.is_done
    if not is_finished:
        raise TransientError("the provider's stream ended before the answer was complete", type="StreamCut")
