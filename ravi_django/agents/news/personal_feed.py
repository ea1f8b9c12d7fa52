"""`PersonalFeedAgent`: reads what its topics bring and keeps what is for its user. Source: Ravi, Agent Types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ravi_django.agents.hooks import Hooks
from ravi_django.agents.instructions import Instructions, pinned, shown
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.news.curation import CURATED, Verdict, judge, match
from ravi_django.agents.news.items import (
    NEW_ITEM,
    OURS,
    PER_GENERATION,
    Item,
    address_of,
    model_name,
    note_failure,
    topic_of,
    wants_answer,
)
from ravi_django.agents.news.reading import Reading
from ravi_django.agents.public_signals import names_of
from ravi_django.kernel import (
    AgentId,
    ChatModel,
    ChatPayload,
    ForbiddenError,
    GenerationOptions,
    InvalidInputError,
    Message,
    RunContext,
    TopicId,
)
from ravi_django.kernel.checks import check_whole

PREFERENCES = "feed.preferences"
REFUSED = "feed.refused"
LONGEST = 4000  # characters of preferences
SUMMARY = 1000  # characters of an item's text that are logged
_PREFER = re.compile(r"\s*prefer(?:ences)?\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)

CURATE = "You choose what one reader is shown of the news. Decide whether the item is for them, by their preferences."


class PersonalFeedAgent:
    """A reader for one user: follows its topics when it is first started, judges every item that is delivered by the
    user's preferences, logs it as `feed.curated`, and waits for the next one, for ever.

    One instance serves many users at once: whose items they are, and what they prefer, is the run's. An item that
    fails is logged, `feed.failed`, and ends nothing. The run begins anew with an empty journal after so many items. A
    run that a delivery has started follows nothing: what its user has left stays left.

    The preferences are the run's metadata `preferences`, or its variable of that name, else the constructor's. The
    user's message `prefer: …`, or the signal `new_feed_item` with `{"preferences": …}`, replaces them; from then on
    they are those of the runs that deliveries start, too.

    key: the address is `personal_feed/<key>`, or what `id` says.
    model: that judges; None matches the words of the preferences: `cats, machine learning, not football`.
    follow_topics: TopicIds, or their texts `type/source`.
    every_s: deliver at most once in so many seconds, all in one message; 0: each at once.
    instructions: how to judge, a text or a function (ctx) -> str. Items are kept apart from them, as data.
    items_per_generation: after how many items the run begins anew.
    base_options: GenerationOptions of the model's calls.
    middleware, hooks: see AgentMiddleware, ChatMiddleware and Hooks.
    public_signals: names of signals that the owner of a run may send over REST, beside those of the class.

    Raises InvalidInputError that names the parameter.
    """

    public_signals: frozenset[str] = frozenset({NEW_ITEM})

    def __init__(
        self,
        key: str = "personal_feed",
        *,
        model: ChatModel | None = None,
        follow_topics: Sequence[TopicId | str] = (),
        preferences: str = "",
        every_s: int = 0,
        instructions: Instructions = CURATE,
        items_per_generation: int = PER_GENERATION,
        base_options: GenerationOptions | None = None,
        id: AgentId | str | None = None,
        name: str = "",
        description: str = "",
        middleware: Any = None,
        hooks: Any = None,
        public_signals: Iterable[str] | None = None,
    ) -> None:
        if model is not None and not callable(getattr(model, "stream", None)):
            raise InvalidInputError(f"model must be a ChatModel, not {model!r}", field="model")
        if isinstance(follow_topics, str | TopicId):
            raise InvalidInputError(f"follow_topics are several, not {follow_topics!r}", field="follow_topics")
        if not isinstance(preferences, str) or len(preferences) > LONGEST:
            raise InvalidInputError(f"preferences are a text of at most {LONGEST} characters", field="preferences")
        self.id = address_of("personal_feed", key, id)
        self.model = model
        found = [topic_of(topic, f"follow_topics.{place}") for place, topic in enumerate(follow_topics)]
        self.follow_topics = tuple(dict.fromkeys(found))
        self.preferences = preferences
        self.every_s = check_whole("every_s", every_s, 0)
        self.instructions = instructions
        self.items_per_generation = check_whole("items_per_generation", items_per_generation, 1)
        self.inbox_limit = self.items_per_generation  # what is behind them is the next generation's
        self.base_options = base_options
        self.name = name or self.id.key
        self.description = description or "Judges whether an item is one for its user."
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.public_signals = names_of(self, public_signals)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        reading = Reading(ctx, inbox, self.items_per_generation)
        if reading.is_first and not reading.ends and not _is_delivery(reading.messages):
            await self._follow(ctx)
        for message in await reading.begin():
            await self._take(ctx, reading, message)
        if reading.ends:
            return
        while True:
            await reading.rest()
            told = await ctx.sleep_until_signal(NEW_ITEM, or_message=True)
            if isinstance(told, dict) and isinstance(told.get("preferences"), str):
                await self._prefer(ctx, reading.state, told["preferences"])
            reading.handled += 1
            for message in await reading.receive():
                await self._take(ctx, reading, message)

    # ------------------------------------------------------------------------------------------- following

    async def _follow(self, ctx: RunContext) -> None:
        for topic in self.follow_topics:
            try:
                await ctx.follow(topic, every_s=self.every_s)
            except ForbiddenError as error:
                await ctx.log(REFUSED, {"topic": str(topic), "error": str(error)})

    async def _prefer(self, ctx: RunContext, state: dict[str, Any], words: str) -> None:
        state["preferences"] = words.strip()[:LONGEST]
        await ctx.log(PREFERENCES, {"preferences": state["preferences"]})
        await ctx.update_follows({"preferences": state["preferences"]})

    def _preferences(self, ctx: RunContext, state: dict[str, Any]) -> str:
        metadata = ctx.meta.metadata
        variables = metadata.get("variables")
        of_variables = variables.get("preferences") if isinstance(variables, dict) else None
        said = (state.get("preferences"), metadata.get("preferences"), of_variables, self.preferences)
        return next((words for words in said if isinstance(words, str)), "")[:LONGEST]

    # ------------------------------------------------------------------------------------------- curating

    async def _take(self, ctx: RunContext, reading: Reading, message: Message) -> None:
        """Every item of a message."""
        await reading.look(message)
        ctx.caused_by(message)
        if _is_persons(message):
            words = _PREFER.match(message.payload.message.text)  # type: ignore[attr-defined]
            if words is not None:
                await self._prefer(ctx, reading.state, words[1])
            reading.handled += 1
            return
        found = []
        for place, item in await reading.items_of(message):
            await reading.look(message, place)
            found.append(await self._curate(ctx, item, reading.state))
            reading.handled += 1
        if wants_answer(ctx, message):
            await ctx.reply(message, found[0] if len(found) == 1 else {"items": found})

    async def _curate(self, ctx: RunContext, item: Item, state: dict[str, Any]) -> dict[str, Any]:
        """What was logged of an item."""
        try:
            verdict = await self.judge(ctx, item, self._preferences(ctx, state))
        except OURS:
            raise
        except Exception as error:
            return {"error": await note_failure(ctx, item, error)}
        found = {
            "topic": item.topic,
            "publication": item.publication,
            "title": item.title or verdict.headline,
            "url": item.url,
            "source": item.source,
            "summary": item.text[:SUMMARY],
            **verdict.model_dump(),
        }
        await ctx.log(CURATED, found)
        return found

    async def judge(self, ctx: RunContext, item: Item, preferences: str) -> Verdict:
        """Whether the item is for a reader of these preferences. Override it for another judgement than a model's."""
        if self.model is None:
            return match(item, preferences)
        told_how = await self._instructions(ctx)
        return await judge(ctx, self.model, item, preferences, told_how, self.base_options)

    async def _instructions(self, ctx: RunContext) -> str:
        made = self.instructions
        if callable(made):
            return await pinned(ctx, partial(made, ctx), name=f"instructions.{self.id}"[:200])
        return made

    def spec(self) -> dict[str, Any]:
        """JSON: enough to show the agent and to see that it has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "description": self.description,
            "model": model_name(self.model),
            "follow_topics": [str(topic) for topic in self.follow_topics],
            "preferences": self.preferences,
            "every_s": self.every_s,
            "instructions": shown(self.instructions),
            "items_per_generation": self.items_per_generation,
        }


def _is_delivery(messages: list[Message]) -> bool:
    return bool(messages) and all(message.is_broadcast for message in messages)


def _is_persons(message: Message) -> bool:
    return message.sender is None and not message.is_broadcast and isinstance(message.payload, ChatPayload)
