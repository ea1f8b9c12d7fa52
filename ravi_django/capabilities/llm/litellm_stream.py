"""A stream that litellm's wrapper reads: how it opens, and its signs of life. The wrapper drops pings, comments and
empty pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

ALIVE: dict[str, Any] = {}  # a piece with nothing in it


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
    """The wrapper's chunks, with `ALIVE` among them while the provider sends what the wrapper does not show."""
    came = asyncio.Event()
    if hasattr(stream.completion_stream, "__aiter__"):  # a few providers' are read in a thread
        stream.completion_stream = _noticing(stream.completion_stream, came)
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


async def _noticing(source: Any, came: asyncio.Event) -> AsyncIterator[Any]:
    try:
        async for piece in source:
            came.set()
            yield piece
    finally:
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is not None and asyncio.iscoroutine(closing := close()):
            await closing
