"""`PersonalFeedAgent`: selects the items of followed topics that fit its user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ravi_django.agents.messages import Instructions
from ravi_django.agents.spec.spec import LONGEST, NEW_ITEM, topic_of
from ravi_django.kernel import ChatPayload, InvalidInputError, Message, RunContext, TopicId
from ravi_django.kernel.checks import check_whole, seconds_of
from ravi_django.wings.feeds.news.agent import NewsAgent
from ravi_django.wings.feeds.news.curation import CURATED, Verdict, judge, match
from ravi_django.wings.feeds.news.items import OURS, Item, is_asked, items_of, note_failure

PREFERENCES = "feed.preferences"
SUMMARY = 1000  # characters of an item's text that are logged
_PREFER = re.compile(r"\s*prefer(?:ences)?\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)

CURATE = "You choose what one reader is shown of the news. Decide whether the item is for them, by their preferences."


class PersonalFeedAgent(NewsAgent):
    """A reader for one user: follows its topics when it first starts, judges each delivered item by the user's
    preferences, logs it as `feed.curated`, and waits for the next one, forever.

    One instance serves many users at once: items and preferences belong to the run. An item that fails is logged as
    `feed.failed`, and the run continues. A run that a delivery starts follows nothing, so topics that its user has left
    stay left.

    The preferences are the run's metadata `preferences`, or its variable of that name, else the constructor's. The
    user's message `prefer: …`, or the signal `new_feed_item` with `{"preferences": …}`, replaces them, also for later
    runs that deliveries start.

    key: the address is `personal_feed/<key>`.
    model: judges; None matches the words of the preferences: `cats, machine learning, not football`.
    follow_topics: TopicIds, or their texts `type/source`.
    every_s: deliver at most once in so many seconds, all in one message; 0: each at once.
    instructions: how to judge, a text or a function (ctx) -> str. Items are kept apart from them, as data.
    Further keywords: see NewsAgent. Raises InvalidInputError that names the parameter.
    """

    public_signals: frozenset[str] = frozenset({NEW_ITEM})  # that the owner of a run may send over REST

    def __init__(
        self,
        key: str = "personal_feed",
        *,
        follow_topics: Sequence[TopicId | str] = (),
        preferences: str = "",
        every_s: int | timedelta = 0,
        instructions: Instructions = CURATE,
        **options: Any,
    ) -> None:
        super().__init__("personal_feed", key, instructions, "Judges whether an item is one for its user.", **options)
        if isinstance(follow_topics, str | TopicId):
            raise InvalidInputError(f"follow_topics must be a list, not {follow_topics!r}", field="follow_topics")
        if not isinstance(preferences, str) or len(preferences) > LONGEST:
            raise InvalidInputError(f"preferences must be text of at most {LONGEST} characters", field="preferences")
        topics = [topic_of(topic, f"follow_topics.{index}") for index, topic in enumerate(follow_topics)]
        self.follow_topics = tuple(dict.fromkeys(topics))
        self.preferences = preferences
        self.every_s = check_whole("every_s", seconds_of(every_s), 0)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Rate each item of the followed topics, and wait for the next ones."""
        state: dict[str, Any] = ctx.state or {}
        ends = ctx.state is None and is_asked(ctx, inbox)
        is_delivery = bool(inbox) and all(message.is_broadcast for message in inbox)
        if ctx.state is None and not ends and not is_delivery:
            for topic in self.follow_topics:
                await ctx.follow(topic, every_s=self.every_s)
        handled = 0
        for message in inbox:
            handled += await self._read(ctx, message, state)
        if ends:
            return
        while handled < self.items_per_generation:
            ctx.check()
            payload = await ctx.sleep_until_signal(NEW_ITEM, or_message=True)
            if isinstance(payload, dict) and isinstance(payload.get("preferences"), str):
                await self._prefer(ctx, state, payload["preferences"])
            handled += 1
            for message in await ctx.receive():
                handled += await self._read(ctx, message, state)
        await ctx.continue_as_new(state)

    async def _prefer(self, ctx: RunContext, state: dict[str, Any], text: str) -> None:
        state["preferences"] = text.strip()[:LONGEST]
        await ctx.log(PREFERENCES, {"preferences": state["preferences"]})
        await ctx.update_follows({"preferences": state["preferences"]})

    def _preferences(self, ctx: RunContext, state: dict[str, Any]) -> str:
        metadata = ctx.meta.metadata
        variables = metadata.get("variables")
        of_variables = variables.get("preferences") if isinstance(variables, dict) else None
        candidates = (state.get("preferences"), metadata.get("preferences"), of_variables, self.preferences)
        return next((text for text in candidates if isinstance(text, str)), "")[:LONGEST]

    async def _read(self, ctx: RunContext, message: Message, state: dict[str, Any]) -> int:
        """Judge the items of a message; returns their number. A message without items counts as one."""
        ctx.check()
        ctx.caused_by(message)
        if message.sender is None and not message.is_broadcast and isinstance(message.payload, ChatPayload):
            preference = _PREFER.match(message.payload.message.text)
            if preference is not None:
                await self._prefer(ctx, state, preference[1])
            return 1
        curated = []
        for item in await items_of(ctx, message):
            ctx.check()
            curated.append(await self._curate(ctx, item, state))
        if message.reply_to:
            await ctx.reply(message, curated[0] if len(curated) == 1 else {"items": curated})
        return len(curated) or 1

    async def _curate(self, ctx: RunContext, item: Item, state: dict[str, Any]) -> dict[str, Any]:
        """Judge an item. Returns the log entry."""
        try:
            verdict = await self.judge(ctx, item, self._preferences(ctx, state))
        except OURS:
            raise
        except Exception as error:
            return {"error": await note_failure(ctx, item, error)}
        entry = {
            "topic": item.topic,
            "publication": item.publication,
            "title": item.title or verdict.headline,
            "url": item.url,
            "source": item.source,
            "summary": item.text[:SUMMARY],
            **verdict.model_dump(),
        }
        await ctx.log(CURATED, entry)
        return entry

    async def judge(self, ctx: RunContext, item: Item, preferences: str) -> Verdict:
        """Whether the item fits the preferences. Override it to judge without a model."""
        if self.model is None:
            return match(item, preferences)
        instructions = await self._instructions_text(ctx)
        return await judge(ctx, self.model, item, preferences, instructions, self.base_options)

    def spec(self) -> dict[str, Any]:
        return {
            **super().spec(),
            "follow_topics": [str(topic) for topic in self.follow_topics],
            "preferences": self.preferences,
            "every_s": self.every_s,
        }
