"""The demo pair, written by hand: a newsroom summarises and broadcasts, a subscriber curates for its user.

    python -m examples.seeds.feed "python, sailing, not football"

`ravi_django.agents` has both with more: items are kept apart from instructions, a failed item does not end the run, and
the journal stays short. See `examples/running.py` for how to start it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from examples.feed import TOPIC, show
from ravi_django.agents import summarize
from ravi_django.kernel import Agent, AgentId, ChatModel, DataPayload, Message, RunContext, TopicId


class InformationAgent:
    def __init__(self, key: str, *, model: ChatModel, output_topic: TopicId) -> None:
        self.id = AgentId("newsroom", key)
        self.model = model
        self._output_topic = output_topic
        self._source_signal = "new_source_item"

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        for msg in inbox:
            ctx.check()
            await self._process_item(ctx, {"title": "", "text": msg.text})
        while True:
            ctx.check()
            item_payload = await ctx.sleep_until_signal(self._source_signal)
            await self._process_item(ctx, item_payload)

    async def _process_item(self, ctx: RunContext, item: dict[str, Any]) -> None:
        summary = await summarize(ctx, item["text"], instructions="Summarize in one sentence.")
        await ctx.emit(self._output_topic, {"title": item["title"], "summary": summary})


class PersonalFeedAgent:
    def __init__(self, key: str, *, follow_topics: Sequence[TopicId]) -> None:
        self.id = AgentId("subscriber", key)
        self._follow_topics = follow_topics
        self._subscribed = False

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        if not self._subscribed:
            for topic in self._follow_topics:
                await ctx.follow(topic)
            self._subscribed = True
        for msg in inbox:
            ctx.check()
            await self._curate(ctx, msg)
        await ctx.sleep_until_signal("new_feed_item")  # `run` is called again with the messages that have come

    async def _curate(self, ctx: RunContext, msg: Message) -> None:
        if not isinstance(msg.payload, DataPayload):
            return  # the message that has started the run
        item = msg.payload.data
        wishes = ctx.meta.metadata.get("preferences", "").split(", ")
        wish = next((wish for wish in wishes if wish.removeprefix("not ") in item["title"].casefold()), "")
        keep = bool(wish) and not wish.startswith("not ")
        await ctx.log("feed.curated", {"title": item["title"], "keep": keep, "reason": wish or "no word fits"})


def feed(model: ChatModel) -> list[Agent]:
    return [
        InformationAgent("today", model=model, output_topic=TOPIC),
        PersonalFeedAgent("today", follow_topics=[TOPIC]),
    ]


if __name__ == "__main__":
    import django

    django.setup()
    from ravi_django.integrations.llm import model_from_env

    asyncio.run(show(feed(model_from_env()), " ".join(sys.argv[1:]) or "python, sailing, not football"))
