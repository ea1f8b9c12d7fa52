"""How far a newsroom has read: after so many items the run begins anew, and goes on where it was."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.news.items import Item, is_over, items_of, wants_answer
from ravi_django.kernel import DataPayload, Message, RunContext

CUT = "feed.cut"
MOST = 200  # items of one message that are handled; a digest of the fan-out has no more
# In the metadata of what a generation gives the next one.
_CARRIED = "ravi.carried"  # the run
_ITEM = "ravi.item"  # it is a message that came by a signal, so that no inbox has it
_PLACE = "ravi.place"  # of the first item that is not handled yet, in the message that is read


class Reading:
    """The items of one generation, and what the one before has left to it."""

    def __init__(self, ctx: RunContext, inbox: list[Message], most: int) -> None:
        self.ctx, self.most, self.handled = ctx, most, 0
        self.is_first = True
        self.state: dict[str, Any] = {}
        self.messages: list[Message] = []  # that it begins with
        self._place = 0  # in the first of them
        self._as_given: dict[str, Message] = {}  # by the id of what it reads, where that is not the very message
        self._of_signal: Message | None = None
        notes = [message for message in inbox if self._is_note(message)]
        if notes:  # what is carried comes first; runs of before have left theirs behind the unread, the latest last
            note = notes[0] if notes[0] is inbox[0] else notes[-1]
            self.is_first, self.state = False, dict(note.payload.data)  # type: ignore[attr-defined]
            self._place = _whole(note.metadata.get(_PLACE))
        self.messages += self._sorted(inbox)
        # It was another's question alone: it is answered in this generation, whose asker may wait for the run's end.
        self.ends = self.is_first and is_over(ctx, self.messages)

    async def begin(self) -> list[Message]:
        """What to begin with. The signals beside it are read with it: nobody else would, and a run with too many of
        them is given nothing more."""
        if any(message.is_broadcast for message in self.messages):
            self.messages += await self.receive()
        return self.messages

    async def receive(self) -> list[Message]:
        return self._sorted(await self.ctx.receive())

    def by_signal(self, message: Message) -> list[Message]:
        self._of_signal = message
        return [message]

    async def items_of(self, message: Message) -> list[tuple[int, Item]]:
        """Those that are left of a message, with their places."""
        found, start = items_of(message), self._start_of(message)
        if len(found) > MOST and not start:
            place = {"topic": found[0].topic, "publication": found[0].publication}
            await self.ctx.log(CUT, {**place, "items": len(found), "left_out": len(found) - MOST})
        if not found:
            self.handled += 1  # it leaves rows too
        return list(enumerate(found[:MOST]))[start:]

    async def look(self, message: Message, place: int | None = None) -> None:
        """Before a message, or the item at a place of it: where the generation has done its share, the next one goes on
        here, and this does not return. What somebody waits for an answer to is not torn apart."""
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
        """Between two waits: begin anew, when the generation has done its share."""
        if self.handled >= self.most:
            await self.ctx.continue_as_new(carry=self._note())
        self.ctx.check()

    def _sorted(self, given: list[Message]) -> list[Message]:
        """What there is to read of it; what came by a signal, as it came."""
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
