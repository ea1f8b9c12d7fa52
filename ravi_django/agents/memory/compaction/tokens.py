"""Count the tokens of messages, by the model's own tokenizer or by an estimate."""

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

DEFAULT_WINDOW = 8_192  # tokens, for a model with an unknown window
BYTES_A_TOKEN = 4  # UTF-8 bytes per token of English text
OVERHEAD = 4  # tokens per message besides its content
MEDIA_TOKENS = {ImageBlock: 1_000, AudioBlock: 1_500, VideoBlock: 3_000, DocumentBlock: 3_000}

_AT_ONCE = 20_000  # characters; more are counted in a thread, as they would block the event loop for some milliseconds
_TURN_S = 0.005  # yield to the event loop this often

log = logging.getLogger("ravi.compaction")


class TokenCounter:
    """Counts for one model: the given one, else the model of the current context or run. Counts each message once."""

    def __init__(self, model: Any = None) -> None:
        self.model = model or _task_model.get() or getattr(_task_ctx.get(), "model", None)
        count = getattr(self.model, "count_tokens", None)
        self._count = count if callable(count) else None
        self._key = f"tokens:{getattr(self.model, 'name', '')}" if self._count else "tokens"

    async def window(self) -> int:
        """The model's context window in tokens; DEFAULT_WINDOW if unknown."""
        ask = getattr(self.model, "context_window", None)
        size = await self._tokens_by(ask) if callable(ask) else None
        return size if size and size > 0 else DEFAULT_WINDOW

    async def total(self, messages: Sequence[ChatMessage]) -> int:
        upto, tokens = 0, 0
        if isinstance(messages, Transcript):
            upto, tokens = messages.counted.get(self._key, (0, 0))
        unknown = [messages[index] for index in range(upto, len(messages)) if self._key not in messages[index]._wire]
        if unknown:
            await self._learn(unknown)
        tokens += self.known([messages[index] for index in range(upto, len(messages))])
        if isinstance(messages, Transcript):
            messages.counted[self._key] = (len(messages), tokens)
        return tokens

    def known(self, messages: Iterable[ChatMessage]) -> int:
        """The tokens of messages that `total` has counted."""
        return sum([int(message._wire[self._key]) for message in messages])

    async def _learn(self, messages: Sequence[ChatMessage]) -> None:
        """Count all in one call first: a model counts long texts in a thread, and remembers each message."""
        if self._count is not None and inspect.iscoroutinefunction(self._count):
            if len(messages) > 1:
                await self._tokens_by(self._count, messages)
        elif self._count is not None and sum(len(message.text) for message in messages) > _AT_ONCE:
            await asyncio.to_thread(self._learn_here, messages)
        since = time.monotonic()
        for message in messages:
            if self._key not in message._wire:
                tokens = await self._tokens_by(self._count, [message]) if self._count else None
                message._wire[self._key] = estimate(message) if tokens is None else tokens
            if time.monotonic() - since > _TURN_S:
                await asyncio.sleep(0)
                since = time.monotonic()

    def _learn_here(self, messages: Sequence[ChatMessage]) -> None:
        for message in messages:
            try:
                tokens = self._count([message]) if self._count is not None else None
            except Exception:  # logged when each message is counted
                return
            if isinstance(tokens, int):
                message._wire[self._key] = tokens
            elif inspect.iscoroutine(tokens):
                tokens.close()  # it needs the event loop
                return

    async def _tokens_by(self, ask: Any, *args: Any) -> int | None:
        try:
            tokens = ask(*args)
            if inspect.isawaitable(tokens):
                tokens = await tokens
        except Exception:  # a missing tokenizer must not end the run
            log.warning("%s cannot count tokens: estimating", self.model, exc_info=True)
            return None
        return tokens if isinstance(tokens, int) else None


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
