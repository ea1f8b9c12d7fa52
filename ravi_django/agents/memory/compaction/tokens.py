"""How many tokens a message takes: by the model's own tokenizer, or a cheap estimate."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_json

from ravi_django.agents.current import _task_ctx, _task_model
from ravi_django.agents.memory.transcript import Transcript
from ravi_django.kernel import ChatMessage, ContentBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.content import AudioBlock, DocumentBlock, ImageBlock, VideoBlock, text_of

DEFAULT_WINDOW = 8_192  # tokens, of a model that says nothing of its own
BYTES_A_TOKEN = 4  # of UTF-8: four letters of English, more than one character of Chinese
OVERHEAD = 4  # tokens a message takes besides its content
MEDIA_TOKENS = {ImageBlock: 1_000, AudioBlock: 1_500, VideoBlock: 3_000, DocumentBlock: 3_000}

_AT_ONCE = 20_000  # characters that a tokenizer of our own process counts on the event loop: some milliseconds
_TURN_S = 0.005  # the event loop is given its turn so often

log = logging.getLogger("ravi.compaction")


class TokenCounter:
    """Counts for one model: the given one, else that of the context or the run that this code belongs to. A message
    is counted once."""

    def __init__(self, model: Any = None) -> None:
        self.model = model or _task_model.get() or getattr(_task_ctx.get(), "model", None)
        count = getattr(self.model, "count_tokens", None)
        self._count = count if callable(count) else None
        self._key = f"tokens:{getattr(self.model, 'name', '')}" if self._count else "tokens"

    async def window(self) -> int:
        """The model's context window, in tokens; DEFAULT_WINDOW when it is not known."""
        ask = getattr(self.model, "context_window", None)
        found = await self._given(ask) if callable(ask) else None
        return found if found and found > 0 else DEFAULT_WINDOW

    async def total(self, messages: Sequence[ChatMessage]) -> int:
        upto, tokens = 0, 0
        if isinstance(messages, Transcript):
            upto, tokens = messages.counted.get(self._key, (0, 0))
        unknown = [messages[place] for place in range(upto, len(messages)) if self._key not in messages[place]._wire]
        if unknown:
            await self._learn(unknown)
        tokens += self.known(messages[place] for place in range(upto, len(messages)))
        if isinstance(messages, Transcript):
            messages.counted[self._key] = (len(messages), tokens)
        return tokens

    def known(self, messages: Iterable[ChatMessage]) -> int:
        """Of messages that `total` has seen."""
        return sum(int(message._wire[self._key]) for message in messages)

    async def _learn(self, messages: Sequence[ChatMessage]) -> None:
        """All of them in one call first: a model counts what is much in a thread, and knows each of them then."""
        if self._count is not None and not inspect.iscoroutinefunction(self._count) and _are_long(messages):
            await asyncio.to_thread(self._learn_here, messages)
        elif self._count is not None and len(messages) > 1 and inspect.iscoroutinefunction(self._count):
            await self._given(self._count, messages)
        since = time.monotonic()
        for message in messages:
            if self._key not in message._wire:
                found = await self._given(self._count, [message]) if self._count else None
                message._wire[self._key] = estimate(message) if found is None else found
            if time.monotonic() - since > _TURN_S:
                await asyncio.sleep(0)
                since = time.monotonic()

    def _learn_here(self, messages: Sequence[ChatMessage]) -> None:
        for message in messages:
            try:
                found = self._count([message]) if self._count is not None else None
            except Exception:  # told where each is asked for
                return
            if isinstance(found, int):
                message._wire[self._key] = found
            elif inspect.iscoroutine(found):
                found.close()  # it wants the loop
                return

    async def _given(self, ask: Any, *args: Any) -> int | None:
        try:
            found = ask(*args)
            if inspect.isawaitable(found):
                found = await found
        except Exception:  # a tokenizer that is not there must not end the run
            log.warning("%s cannot count tokens: estimating", self.model, exc_info=True)
            return None
        return found if isinstance(found, int) else None


def _are_long(messages: Iterable[ChatMessage]) -> bool:
    return sum(len(message.text) for message in messages) > _AT_ONCE


def estimate(message: ChatMessage) -> int:
    return OVERHEAD + sum(map(_of_block, message.content))


def _of_block(block: ContentBlock) -> int:
    if isinstance(block, ToolResultBlock):
        return OVERHEAD + sum(map(_of_block, block.content))
    if isinstance(block, ToolUseBlock):
        return OVERHEAD + _of_bytes(len(block.tool_name) + len(to_json(block.arguments)))
    for kind, tokens in MEDIA_TOKENS.items():
        if isinstance(block, kind):
            return tokens
    text = getattr(block, "text", None) or text_of([block])  # reasoning is sent back too
    return _of_bytes(len(text.encode("utf-8", "replace")))


def _of_bytes(count: int) -> int:
    return -(-count // BYTES_A_TOKEN)
