"""`InformationAgent`: reads what is new, all its life, and tells who follows. Source: Ravi, Agent Types."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from ravi_django.agents.hooks import Hooks
from ravi_django.agents.instructions import Instructions, pinned, shown
from ravi_django.agents.messages import deliver, summarize
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.news.items import (
    OURS,
    OUTSIDE,
    PER_GENERATION,
    Item,
    address_of,
    checked_signal,
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
    DataPayload,
    GenerationOptions,
    InvalidInputError,
    Message,
    RunContext,
    TopicId,
)
from ravi_django.kernel.checks import check_whole

Handle = Callable[[RunContext, Item, dict[str, Any]], Any | Awaitable[Any]]

SUMMARIZE = "Summarize the item for a reader of news, in at most three sentences. Give the summary alone."


class InformationAgent:
    """A newsroom: each message that its run begins with is an item, then each signal `source_signal`, for ever.

    What comes of an item goes to who asked, else to `output_topic`, else it is the run's output. An item that fails is
    logged, `feed.failed`, and the next one is read. The run begins anew with an empty journal after so many items:
    neither journal nor replay grows. A child run answers what it is asked, and ends.

    key: the address is `information/<key>`, or what `id` says.
    model: that summarizes; None where `handle`, or a subclass's `process`, needs none.
    instructions: how to summarize, a text or a function (ctx) -> str. The item is kept apart from them, as data.
    output_topic: a TopicId, or its text `type/source`.
    handle: `(ctx, item, state)`, sync or async, in place of `process`.
    items_per_generation: after how many items the run begins anew.
    base_options: GenerationOptions of the model's calls.
    middleware, hooks: see AgentMiddleware, ChatMiddleware and Hooks.
    public_signals: names of signals that the owner of a run may send over REST, beside those of the class.

    Serves concurrent runs. Raises InvalidInputError that names the parameter.
    """

    public_signals: frozenset[str] = frozenset()

    def __init__(
        self,
        key: str = "information",
        *,
        model: ChatModel | None = None,
        instructions: Instructions = SUMMARIZE,
        output_topic: TopicId | str | None = None,
        source_signal: str = "new_source_item",
        handle: Handle | None = None,
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
        if model is None and handle is None and type(self).process is InformationAgent.process:
            raise InvalidInputError("model: without one, give a handle, or override process", field="model")
        self.id = address_of("information", key, id)
        self.model = model
        self.instructions = instructions
        self.output_topic = None if output_topic is None else topic_of(output_topic, "output_topic")
        self.source_signal = checked_signal(source_signal)
        self.handle = handle
        self.items_per_generation = check_whole("items_per_generation", items_per_generation, 1)
        self.inbox_limit = self.items_per_generation  # what is behind them is the next generation's
        self.base_options = base_options
        self.name = name or self.id.key
        self.description = description or "Summarizes what it is given."
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.public_signals = names_of(self, public_signals)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        reading = Reading(ctx, inbox, self.items_per_generation)
        await self._read(ctx, reading, await reading.begin())
        if reading.ends:
            return
        while True:
            await reading.rest()
            payload = await ctx.sleep_until_signal(self.source_signal, or_message=True)
            told = await reading.receive() if payload is None else reading.by_signal(self._as_message(payload))
            await self._read(ctx, reading, told)

    async def process(self, ctx: RunContext, item: Item, state: dict[str, Any]) -> Any:
        """What comes of an item, JSON; None: nothing is told. Override it for something else than a summary.

        `state` is the run's own memory, JSON: what is put into it is there for the items that follow, in later
        generations too. As all code of an agent it is run again on a replay: its effects go through `ctx`.
        """
        if self.handle is not None:
            made = self.handle(ctx, item, state)
            return await made if inspect.isawaitable(made) else made
        told_how = await self._instructions(ctx)
        apart = f"{told_how}\n\n{OUTSIDE}"
        summary = await summarize(ctx, item.to_prompt(), instructions=apart, options=self.base_options)
        return {"title": item.title, "url": item.url, "source": item.source, "summary": summary, "text": summary}

    async def _instructions(self, ctx: RunContext) -> str:
        made = self.instructions
        if callable(made):
            return await pinned(ctx, partial(made, ctx), name=f"instructions.{self.id}"[:200])
        return made

    async def _read(self, ctx: RunContext, reading: Reading, messages: list[Message]) -> None:
        for message in messages:
            await reading.look(message)
            ctx.caused_by(message)
            items = await reading.items_of(message)
            for place, item in items:
                await reading.look(message, place)
                await self._tell(ctx, message, item, reading.state)
                reading.handled += 1
            if not items and wants_answer(ctx, message):
                await ctx.reply(message, None)

    def _as_message(self, payload: Any) -> Message:
        data = payload if isinstance(payload, dict) else {"text": str(payload)}
        # The publications behind it, where it tells of one: what follows from it is no new beginning.
        told = {"hops": data["hops"]} if "publication" in data and "hops" in data else {}
        return Message(target=self.id, payload=DataPayload(data=data), metadata=told)

    async def _tell(self, ctx: RunContext, message: Message, item: Item, state: dict[str, Any]) -> None:
        try:
            result = await self.process(ctx, item, state)
            if result is not None or wants_answer(ctx, message):
                await deliver(ctx, message, result, sender=self.id, output_topic=self.output_topic)
        except OURS:
            raise
        except Exception as error:
            words = await note_failure(ctx, item, error)
            if wants_answer(ctx, message):
                await ctx.reply(message, {"error": words})

    def spec(self) -> dict[str, Any]:
        """JSON: enough to show the agent and to see that it has changed."""
        handle: Any = self.handle
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "description": self.description,
            "model": model_name(self.model),
            "instructions": shown(self.instructions),
            "output_topic": None if self.output_topic is None else str(self.output_topic),
            "source_signal": self.source_signal,
            "items_per_generation": self.items_per_generation,
            **({} if handle is None else {"handle": shown(handle)}),
        }
