"""`ctx.receive()`: messages that arrived since the last batch. A replay returns the same ones.

When the code has received a message, the signals that announced it are marked as read. Hops count how many publications
led to one another; `follow.MAX_HOPS` ends such a chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Substr

from ravi_django.kernel import Agent, InvalidInputError, Message
from ravi_django.models import InboxMessage, Signal
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease import facts, paths
from ravi_django.runtime.lease.state import RunState

if TYPE_CHECKING:
    from ravi_django.runtime.lease.effects import Effects

KIND = "msg.received"


async def receive(ctx: RunState) -> list[Message]:
    """What `ctx.receive` gives. One query, none on a replay; the row rides on the next commit: until then nothing is
    recorded that could have followed from the messages. Where signals tell of messages that the code has by then, they
    are read with them, in a commit of its own."""
    _check_place(ctx)
    effects, path = ctx.effects, ctx.path()
    row = await effects.recall(path, KIND, "", None, None)
    if row is not None:
        return _give(ctx, row.inbox_upto or 0)
    async with effects.performing():
        after = max(effects.lease.run.inbox_from, effects.inbox_upto or 0)
        upto = await read_on(effects, after) or effects.inbox_upto
        told = await _told(ctx, upto or 0)
        given = _give(ctx, upto or 0)
        entry = Entry(KIND, path, result={"messages": len(given)}, inbox_upto=upto)
        if told:
            effects.forget_signals(told)
            await effects.record(entry, partial(record_received, signals=told))
        else:
            effects.note(entry)
    return given


async def read_on(effects: Effects, after: int) -> int | None:
    """Read the messages above an id, or so many of them as are read at a time; returns the last one's id."""
    run_id, limit, more = effects.lease.run_id, effects.inbox_limit, False
    if limit is None:
        found = await effects.database.call(facts.inbox_after, run_id, after)
    else:
        found, more = await effects.database.call(facts.some_after, run_id, after, limit)
    known = effects.inbox[-1][0] if effects.inbox else 0
    effects.inbox += [(place, Message.model_validate(body)) for place, body in found if place > known]
    last = found[-1][0] if found else None
    if last is None or last >= known:
        effects.inbox_more = more
    return last


def limit_of(agent: Agent) -> int | None:
    """How many messages of a backlog the agent is given at a time; None: all."""
    limit = getattr(agent, "inbox_limit", None)
    return limit if isinstance(limit, int) and limit > 0 else None


async def _told(ctx: RunState, upto: int) -> list[int]:
    """The unread signals of what the code has been given, and is given now; no query where there can be none."""
    effects, after = ctx.effects, ctx.effects.inbox_upto or 0
    new = any(message.is_broadcast for place, message in effects.inbox if after < place <= upto)
    if not upto or not (new or effects.facts.signals):
        return []
    return effects.untaken(await effects.database.call(told_of, effects.lease.run_id, upto))


def _give(ctx: RunState, upto: int) -> list[Message]:
    """At once: of two tasks that read at a time the second is given what the first was not."""
    effects = ctx.effects
    after = effects.inbox_upto or 0
    given = [message for place, message in effects.inbox if after < place <= upto]
    effects.inbox_upto = max(after, upto) or None
    ctx.given += given
    if given:
        ctx.hops = hops_of(given)
    return given


def give_back(ctx: RunState, message: Message) -> int:
    """The next generation is given this message and those behind it as its own; returns how many they are."""
    effects, upto = ctx.effects, ctx.effects.inbox_upto or 0
    given = [(place, one) for place, one in effects.inbox if place <= upto]
    same = [place for place, one in given if one is message] or [place for place, one in given if one == message]
    if not same:
        raise InvalidInputError("unread is none of the messages that this generation was given", field="unread")
    effects.inbox_upto = same[0] - 1
    return sum(place >= same[0] for place, _ in given)


def _check_place(ctx: RunState) -> None:
    """A replay does not run the code of a tool, nor that of a pinned value: what they had read would come again."""
    scope, task = paths.current(), asyncio.current_task()
    pins = any(under_way.task is task for under_way in ctx.pinning.values())
    if pins or (scope is not None and "/" in scope.prefix):
        raise InvalidInputError(
            "the run's messages are for the agent's own code: call ctx.receive() there, not in a tool or a pinned "
            "value, and pass on what it gives",
            field="receive",
        )


BESIDE = "pub:"  # begins the key of a signal beside a message; the inbox's id of that follows


def told_of(run_id: UUID, upto: int) -> list[int]:
    """The unread signals that tell of messages which the inbox has up to this place."""
    known = InboxMessage.objects.filter(
        run_id=run_id, id__lte=upto, message_id=Substr(OuterRef("key"), len(BESIDE) + 1)
    )
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None, key__startswith=BESIDE)
    return list(unread.filter(Exists(known)).order_by("id").values_list("id", flat=True))


@appending
def record_received(lease: Lease, *, signals: Sequence[int]) -> None:
    """Record what was received, and with it that the signals of these messages are read."""
    read(signals)


def read(signals: Sequence[int]) -> None:
    """In the caller's transaction, which is fenced."""
    Signal.objects.filter(id__in=signals, consumed_at=None).update(consumed_at=clock.now())


HOPS = "hops"  # in the metadata of what was published: how many there were, this one included
_MESSAGES = "messages"


def hops_of(messages: Iterable[Message]) -> int:
    """The publications behind these messages: those behind the one that has most."""
    return max((hops_in(message.metadata) for message in messages), default=0)


def hops_in(note: Any) -> int:
    """As the metadata of a message says it."""
    said = note.get(HOPS) if isinstance(note, Mapping) else None
    return max(0, said) if isinstance(said, int) and not isinstance(said, bool) else 0


def hops_told(payload: Any) -> int:
    """As the payload of a signal says it, where that tells of a publication: others may have hops of their own."""
    return hops_in(payload) if isinstance(payload, Mapping) and "publication" in payload else 0


def noted(hops: int) -> dict[str, int]:
    return {HOPS: hops} if hops else {}


def trail_of(hops: int, messages: int) -> dict[str, int]:
    """For the row that a generation begins behind: the publications behind what the code was given last, and how many
    messages it is given again, or for the first time by this run itself."""
    return {HOPS: hops, _MESSAGES: messages} if hops else {}


def hops_at_start(batch: Sequence[Message], trail: Any) -> int:
    """Of a generation that begins with these messages. Beginning anew is no new beginning; what has come since is."""
    before, own = hops_in(trail), hops_in({HOPS: trail.get(_MESSAGES)}) if isinstance(trail, Mapping) else 0
    return hops_of(batch) if len(batch) > own else max(before, hops_of(batch))
