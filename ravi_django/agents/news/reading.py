"""Shared by InformationAgent and PersonalFeedAgent: the constructor, and when a run continues as new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.agents.messages import Instructions, checked_model, instructions_text, model_name, names_of, spec_text
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline
from ravi_django.agents.news.items import PER_GENERATION, Item, address_of, is_over, items_of, wants_answer
from ravi_django.kernel import AgentId, ChatModel, DataPayload, GenerationOptions, InvalidInputError, Message
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.contracts import RunContext

CUT = "feed.cut"
MOST = 200  # items handled per message; a digest of the fan-out has no more
# Metadata of the messages that a generation carries over to the next one.
_CARRIED = "ravi.carried"  # the run's id
_ITEM = "ravi.item"  # the message came by a signal, so it is in no inbox
_PLACE = "ravi.place"  # index of the first unhandled item in the message being read


class NewsAgent:
    """Constructor arguments that InformationAgent and PersonalFeedAgent share.

    id: another address than `<kind>/<key>`.
    items_per_generation: after this many items the run continues as new with an empty journal, which bounds a replay.
    base_options: GenerationOptions, or a dict of them, of the model's calls.
    middleware, hooks: see AgentMiddleware, ChatMiddleware and Hooks.
    public_signals: names of signals that the owner of a run may send over REST, in addition to those of the class.
    """

    public_signals: frozenset[str] = frozenset()

    def __init__(
        self,
        kind: str,
        key: str,
        instructions: Instructions,
        about: str,
        *,
        model: ChatModel | str | None = None,
        items_per_generation: int = PER_GENERATION,
        base_options: GenerationOptions | dict[str, Any] | None = None,
        id: AgentId | str | None = None,
        name: str = "",
        description: str = "",
        middleware: Any = None,
        hooks: Any = None,
        public_signals: Iterable[str] | None = None,
    ) -> None:
        self.id = address_of(kind, key, id)
        try:
            self.model = None if model is None else checked_model(model)
        except TypeError as error:
            raise InvalidInputError(str(error), field="model") from None
        self.instructions = instructions
        self.items_per_generation = check_whole("items_per_generation", items_per_generation, 1)
        self.inbox_limit = self.items_per_generation  # later messages belong to the next generation
        self.base_options = GenerationOptions.of(base_options)
        self.name = name or self.id.key
        self.description = description or about
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.public_signals = names_of(self, public_signals)

    async def _instructions_text(self, ctx: RunContext) -> str:
        return await instructions_text(ctx, self.instructions, self.id)

    def spec(self) -> dict[str, Any]:
        """JSON for the admin, and to see that the agent has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "description": self.description,
            "model": model_name(self.model),
            "instructions": spec_text(self.instructions),
            "items_per_generation": self.items_per_generation,
        }


class Reading:
    """The items of one generation, and the state that the previous generation carried over."""

    def __init__(self, ctx: RunContext, inbox: list[Message], most: int) -> None:
        self.ctx, self.most, self.handled = ctx, most, 0
        self.is_first = True
        self.state: dict[str, Any] = {}
        self.messages: list[Message] = []  # the first ones of the generation
        self._place = 0  # index of the first unhandled item in messages[0]
        self._as_given: dict[str, Message] = {}  # by message id: the original of a message that was changed for reading
        self._of_signal: Message | None = None
        notes = [message for message in inbox if self._is_note(message)]
        if notes:  # the carried note is first; notes of earlier runs follow the unread messages, the latest last
            note = notes[0] if notes[0] is inbox[0] else notes[-1]
            self.is_first, self.state = False, dict(note.payload.data)  # type: ignore[attr-defined]
            self._place = _whole(note.metadata.get(_PLACE))
        self.messages += self._sorted(inbox)
        self.ends = self.is_first and is_over(ctx, self.messages)

    async def receive(self) -> list[Message]:
        return self._sorted(await self.ctx.receive())

    def by_signal(self, message: Message) -> list[Message]:
        self._of_signal = message
        return [message]

    async def items_of(self, message: Message) -> list[tuple[int, Item]]:
        """The unhandled items of a message, with their indexes."""
        found, start = items_of(message), self._start_of(message)
        if len(found) > MOST and not start:
            place = {"topic": found[0].topic, "publication": found[0].publication}
            await self.ctx.log(CUT, {**place, "items": len(found), "left_out": len(found) - MOST})
        if not found:
            self.handled += 1  # an empty message leaves journal rows too
        return list(enumerate(found[:MOST]))[start:]

    async def look(self, message: Message, place: int | None = None) -> None:
        """Call this before each message, and before each item with its index. If the generation is full, the next one
        continues here and this does not return. A message that needs an answer is handled by one generation."""
        self.ctx.check()
        if self.handled < self.most or self.ends or (place and wants_answer(self.ctx, message)):
            return
        at = self._start_of(message) if place is None else place
        if message is self._of_signal:
            note = {**message.metadata, _CARRIED: self.ctx.run_id, _ITEM: True, _PLACE: at}
            await self.ctx.continue_as_new(message.model_copy(update={"metadata": note}), carry=self._note())
        else:
            await self.ctx.continue_as_new(carry=self._note(at), unread=self._as_given.get(message.id, message))

    async def rest(self) -> None:
        """Between two waits: continue as new if the generation is full."""
        if self.handled >= self.most:
            await self.ctx.continue_as_new(carry=self._note())
        self.ctx.check()

    def _sorted(self, given: list[Message]) -> list[Message]:
        """The messages to read, without the carried notes. A message that came by a signal gets its first form."""
        found = []
        for message in given:
            if not self._is_own(message):
                found.append(message)
            elif not self._is_note(message):
                self._as_given[message.id] = message
                found.append(message.model_copy(update={"sender": None, "reply_to": None}))
        return found

    def _is_own(self, message: Message) -> bool:
        mine = message.sender == self.ctx.agent_id and message.metadata.get(_CARRIED) == self.ctx.run_id
        return mine and isinstance(message.payload, DataPayload)

    def _is_note(self, message: Message) -> bool:
        return self._is_own(message) and _ITEM not in message.metadata

    def _note(self, place: int = 0) -> Message:
        note = {_CARRIED: self.ctx.run_id} | ({_PLACE: place} if place else {})
        own = self.ctx.agent_id
        return Message(target=own, sender=own, payload=DataPayload(data=dict(self.state)), metadata=note)

    def _start_of(self, message: Message) -> int:
        if self._place and message in self.messages[:1]:
            return self._place
        given = self._as_given.get(message.id)
        return 0 if given is None else _whole(given.metadata.get(_PLACE))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
