"""A model that answers from a script."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import Block, ContentBlock, TextBlock, ToolUseBlock
from ravi_django.kernel.llm import GenerationOptions, ModelEvent, ModelResponse
from ravi_django.kernel.messages import TextDelta
from ravi_django.kernel.supervision import RunMeta

Say = str | ContentBlock | Sequence[ContentBlock] | ModelResponse | Exception
ScriptItem = Say | Callable[[Sequence[ChatMessage], GenerationOptions], Say]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a ScriptedModel."""

    messages: tuple[ChatMessage, ...]
    options: GenerationOptions
    run_id: str
    turn: int  # the index of the script's item


class ScriptedModel:
    """A ChatModel that answers from a script.

        ScriptedModel([ToolUseBlock(tool_name="calculator", arguments={"expression": "1+1"}, call_id="c1"), "2"])

    An item is an answer's text, a block or a list of blocks, a ModelResponse, an exception to raise, or a callable
    `(messages, options)`, also async, that returns one of these. The index of the item is the number of assistant turns
    since the last user message. So replays, retries and concurrent runs of one object each read the script from its
    beginning. After its end the model raises AssertionError; with `loop=True` it starts again, with new call ids.

    `delay` is in seconds before the first delta. `chunk="words"` streams one delta per word. Every answer except a
    ModelResponse reports `usage` and `cost`. `record=False` keeps no `calls`, for benchmarks.
    """

    reports_cost = True

    def __init__(
        self,
        script: Sequence[ScriptItem] | str,
        *,
        name: str = "scripted",
        delay: float = 0.0,
        chunk: Literal["words"] | None = None,
        loop: bool = False,
        usage: Usage | None = None,
        cost: float | None = None,
        record: bool = True,
    ) -> None:
        self.name = name
        self.delay = delay
        self.chunk = chunk
        self.loop = loop
        self.record = record
        self.script: list[ScriptItem] = [script] if isinstance(script, str) else list(script)
        self.calls: list[ModelCall] = []  # in their order; append is atomic
        self._usage = usage or Usage()
        self._cost = cost

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {len(self.script)} items)"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield the item's text as deltas, then its ModelResponse. Raises an exception of the script."""
        turn = self.turn_of(messages)
        if self.record:
            self.calls.append(ModelCall(tuple(messages), options, meta.run_id, turn))
        if self.delay:
            await asyncio.sleep(self.delay)
        response = self._response(await self._item(turn, messages, options), turn)
        for text in self._deltas(response):
            yield TextDelta(text=text)
        yield response

    def turn_of(self, messages: Sequence[ChatMessage]) -> int:
        """The place in the script."""
        return turns_since_user(messages)

    async def _item(self, turn: int, messages: Sequence[ChatMessage], options: GenerationOptions) -> Any:
        if turn >= len(self.script) and not (self.loop and self.script):
            raise AssertionError(
                f"the script of {self.name!r} has {len(self.script)} items and item {turn + 1} was requested; "
                "add it, or pass loop=True"
            )
        item: Any = self.script[turn % len(self.script)]
        if callable(item):
            item = item(messages, options)
            if inspect.isawaitable(item):
                item = await item
        if isinstance(item, Exception):
            raise item.with_traceback(None)  # else the traceback grows with each raise
        return item

    def _response(self, item: Any, turn: int) -> ModelResponse:
        if isinstance(item, ModelResponse):
            return item
        if isinstance(item, str):
            item = TextBlock(text=item)
        content: list[Any] = [item] if isinstance(item, Block) else list(item)
        if round_ := turn // len(self.script):
            content = [_renumbered(block, round_) for block in content]
        calls = any(isinstance(block, ToolUseBlock) for block in content)
        return ModelResponse.of(
            content,
            usage=self._usage,
            cost=self._cost,
            model=self.name,
            finish_reason="tool_calls" if calls else "stop",
        )

    def _deltas(self, response: ModelResponse) -> list[str]:
        texts = [block.text for block in response.content if isinstance(block, TextBlock) and block.text]
        return _split_text(texts) if self.chunk == "words" else texts


def turns_since_user(messages: Sequence[ChatMessage]) -> int:
    """The number of assistant messages after the last user message."""
    user, assistant = Role.USER, Role.ASSISTANT  # a lookup of a member takes as long as the rest of the loop
    count = 0
    for message in reversed(messages):
        role = message.role
        if role is user:
            break
        if role is assistant:
            count += 1
    return count


def _split_text(texts: Sequence[str]) -> list[str]:
    """The words, each with the space after it."""
    chunks: list[str] = []
    for text in texts:
        *heads, last = text.split(" ")
        chunks += [f"{head} " for head in heads]
        chunks += [last] if last else []
    return chunks


def _renumbered(block: ContentBlock, round_: int) -> ContentBlock:
    if isinstance(block, ToolUseBlock):
        return block.model_copy(update={"call_id": f"{block.call_id}_{round_ + 1}"})
    return block
