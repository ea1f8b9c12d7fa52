"""`InformationAgent`: turns incoming items into news for its followers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ravi_django.agents.messages import Instructions, deliver, spec_text, summarize
from ravi_django.agents.spec.spec import checked_signal, topic_of
from ravi_django.kernel import DataPayload, InvalidInputError, Message, RunContext, TopicId
from ravi_django.wings.feeds.news.agent import NewsAgent
from ravi_django.wings.feeds.news.items import (
    OURS,
    OUTSIDE,
    Item,
    is_asked,
    items_of,
    note_failure,
)

Handle = Callable[[RunContext, Item, dict[str, Any]], Any | Awaitable[Any]]

SUMMARIZE = "Summarize the item for a reader of news, in at most three sentences. Give the summary alone."


class InformationAgent(NewsAgent):
    """A newsroom: each message that its run begins with is an item, then each signal `source_signal`, forever.

    The result of an item is the reply if somebody asked for it, else it is published to `output_topic`, else it is the
    run's output. An item that fails is logged as `feed.failed`, and the run continues. A child run answers and ends.

    key: the address is `information/<key>`.
    model: summarizes; None if `handle`, or a subclass's `process`, needs no model.
    instructions: how to summarize, a text or a function (ctx) -> str. The item is kept apart from them, as data.
    output_topic: a TopicId, or its text `type/source`.
    handle: `(ctx, item, state)`, sync or async, replaces `process`.
    Further keywords: see NewsAgent. Serves concurrent runs. Raises InvalidInputError that names the parameter.
    """

    def __init__(
        self,
        key: str = "information",
        *,
        instructions: Instructions = SUMMARIZE,
        output_topic: TopicId | str | None = None,
        source_signal: str = "new_source_item",
        handle: Handle | None = None,
        **options: Any,
    ) -> None:
        super().__init__("information", key, instructions, "Summarizes what it is given.", **options)
        if self.model is None and handle is None and type(self).process is InformationAgent.process:
            raise InvalidInputError("model is missing; pass a model or a handle, or override process", field="model")
        self.output_topic = None if output_topic is None else topic_of(output_topic, "output_topic")
        self.source_signal = checked_signal(source_signal)
        self.handle = handle

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Publish each new item of the inbox, and wait for the next ones."""
        state: dict[str, Any] = ctx.state or {}
        handled = 0
        for message in inbox:
            handled += await self._read(ctx, message, state)
        if ctx.state is None and is_asked(ctx, inbox):
            return
        while handled < self.items_per_generation:
            ctx.check()
            payload = await ctx.sleep_until_signal(self.source_signal, or_message=True)
            received = await ctx.receive() if payload is None else [self._as_message(payload)]
            for message in received:
                handled += await self._read(ctx, message, state)
        await ctx.continue_as_new(state)

    async def process(self, ctx: RunContext, item: Item, state: dict[str, Any]) -> Any:
        """The result of an item as JSON; None publishes nothing. Override it for something else than a summary.

        `state` is a JSON dict that the run keeps for later items and generations. A replay runs this code again, so its
        effects must go through `ctx`.
        """
        if self.handle is not None:
            made = self.handle(ctx, item, state)
            return await made if inspect.isawaitable(made) else made
        apart = f"{await self._instructions_text(ctx)}\n\n{OUTSIDE}"
        summary = await summarize(ctx, item.to_prompt(), instructions=apart, options=self.base_options)
        return {"title": item.title, "url": item.url, "source": item.source, "summary": summary, "text": summary}

    async def _read(self, ctx: RunContext, message: Message, state: dict[str, Any]) -> int:
        """Publish the items of a message; returns their number. An empty message counts as one."""
        ctx.caused_by(message)
        items = await items_of(ctx, message)
        for item in items:
            ctx.check()
            await self._publish(ctx, message, item, state)
        if not items and message.reply_to:
            await ctx.reply(message, None)
        return len(items) or 1

    def _as_message(self, payload: Any) -> Message:
        data = payload if isinstance(payload, dict) else {"text": str(payload)}
        # Keep the hop count of a publication: MAX_HOPS ends a circle of agents that publish to each other.
        metadata = {"hops": data["hops"]} if "publication" in data and "hops" in data else {}
        return Message(target=self.id, payload=DataPayload(data=data), metadata=metadata)

    async def _publish(self, ctx: RunContext, message: Message, item: Item, state: dict[str, Any]) -> None:
        try:
            result = await self.process(ctx, item, state)
            if result is not None or message.reply_to:
                await deliver(ctx, message, result, sender=self.id, output_topic=self.output_topic)
        except OURS:
            raise
        except Exception as error:
            failure = await note_failure(ctx, item, error)
            if message.reply_to:
                await ctx.reply(message, {"error": failure})

    def spec(self) -> dict[str, Any]:
        return {
            **super().spec(),
            "output_topic": None if self.output_topic is None else str(self.output_topic),
            "source_signal": self.source_signal,
            **({} if self.handle is None else {"handle": spec_text(self.handle)}),
        }
