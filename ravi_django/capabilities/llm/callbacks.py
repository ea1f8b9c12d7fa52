"""The callbacks that a site has registered with litellm, for answers that its wrapper has not read."""

from __future__ import annotations

import logging
from typing import Any

from ravi_django.capabilities.llm.collector import ResponseCollector

log = logging.getLogger("ravi.llm")

LISTS = (
    "callbacks",
    "input_callback",
    "success_callback",
    "failure_callback",
    "_async_success_callback",
    "_async_failure_callback",
)
_OF_LITELLM = "cache"  # it registers this one itself


async def tell(litellm: Any, stream: Any, collector: ResponseCollector) -> None:
    """Call them with the whole answer. An error of theirs is logged."""
    if not any(name != _OF_LITELLM for kind in LISTS for name in getattr(litellm, kind, None) or ()):
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
