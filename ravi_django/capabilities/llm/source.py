"""Where the chunks of a streamed answer come from, and whether they were all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence
from typing import Any

from ravi_django.capabilities.llm.knowledge import text_tokens, tokens_of
from ravi_django.kernel.chat import ChatMessage

CALLBACK_LISTS = (
    "callbacks",
    "input_callback",
    "success_callback",
    "failure_callback",
    "_async_success_callback",
    "_async_failure_callback",
)


def fastest_source(litellm: Any, stream: Any) -> AsyncIterable[Any]:
    """The provider's own chunks where they are in OpenAI's format already, else litellm's.

    litellm's wrapper costs about 1 ms of CPU a token, the client below it a third of that: with hundreds of
    streams in one process this is what the loop spends its time on. A site that has litellm callbacks gets the
    wrapper, which calls them.
    """
    import openai

    source = getattr(stream, "completion_stream", None)
    observed = any(getattr(litellm, name, None) for name in CALLBACK_LISTS)
    return source if isinstance(source, openai.AsyncStream) and not observed else stream


def is_finished(source: Any, last_reason: str) -> bool:
    """Whether the provider said that it was done: a stream may just end, and half an answer is none."""
    if hasattr(source, "received_finish_reason"):  # litellm's wrapper makes up a "stop" for its last chunk
        return bool(source.received_finish_reason or source.intermittent_finish_reason)
    return bool(last_reason)


async def estimated_usage(litellm: Any, model: str, messages: Sequence[ChatMessage], answer: str) -> Any:
    """Usage by litellm's tokenizers, for a server that reports none."""
    given = await tokens_of(litellm, model, messages)
    made = await asyncio.to_thread(text_tokens, litellm, model, answer)
    return litellm.Usage(prompt_tokens=given, completion_tokens=made, total_tokens=given + made)
