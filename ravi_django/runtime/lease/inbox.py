"""`ctx.receive()`: messages that arrived since the last batch. A replay returns the same ones.

When the code has received a message, the signals that announced it are marked as read. Hops count the publications in
a chain in which each one was caused by the one before; MAX_HOPS in `social/publications.py` ends such a chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any
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
from ravi_django.runtime.lease.effects import Effects
from ravi_django.runtime.lease.state import RunState

KIND = "msg.received"
STEERS = "steers"  # key in the metadata of a message that steers the run, see `steer` in `runs/sessions.py`


async def receive(ctx: RunState) -> list[Message]:
    """`ctx.receive`. One query, none on a replay. The row is written with the next commit: until then nothing is
    recorded that could follow from the messages. If signals announced these messages, a commit of its own marks them
    as read."""
    _check_place(ctx)
    effects, path = ctx.effects, ctx.path()
    row = await effects.recall(path, KIND, "")
    if row is not None:
        return _give(ctx, row.inbox_upto or 0)
    async with effects.performing():
        after = max(effects.lease.run.inbox_from, effects.inbox_upto or 0)
        upto = await read_on(effects, after) or effects.inbox_upto
        signals = await _announcing(ctx, upto or 0)
        given = _give(ctx, upto or 0)
        entry = Entry(KIND, path, result={"messages": len(given)}, inbox_upto=upto)
        if signals:
            effects.forget_signals(signals)
            await effects.record(entry, partial(record_received, signals=signals))
        else:
            effects.note(entry)
    return given


async def hear(ctx: RunState) -> list[Message]:
    """`ctx.hear`: like `receive`, for the next messages of the inbox as long as they steer the run. One query if an
    append has found that the run was woken since the last time, else none."""
    effects = ctx.effects
    if not ctx.is_recorded():
        if effects.journal.replaying:
            return []
        woken = max(effects.lease.woken, default=0)
        if woken > max(ctx.heard, effects.lease.run.wake_seq):
            with effects.busy():
                await read_on(effects, max(effects.lease.run.inbox_from, effects.inbox_upto or 0))
            ctx.heard = woken
        unread = [(place, one) for place, one in effects.inbox if place > (effects.inbox_upto or 0)]
        steering = list(takewhile(lambda found: STEERS in found[1].metadata, unread))
        if not steering:
            return []
        upto = steering[-1][0]
        effects.note(Entry(KIND, ctx.path(), result={"messages": len(steering)}, inbox_upto=upto))
    else:
        row = await effects.recall(ctx.path(), KIND, "")
        assert row is not None
        upto = row.inbox_upto or 0
    hops = ctx.hops
    given = _give(ctx, upto)
    ctx.hops = max(hops, ctx.hops)  # they do not end a chain of publications
    return given


async def read_on(effects: Effects, after: int) -> int | None:
    """Read the messages above an id, at most the agent's limit of them; returns the id of the last one."""
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
    """How many messages of a backlog the agent gets at once; None: all."""
    limit = getattr(agent, "inbox_limit", None)
    return limit if isinstance(limit, int) and limit > 0 else None


async def _announcing(ctx: RunState, upto: int) -> list[int]:
    """The unread signals that announced messages up to `upto`. No query if there can be none."""
    effects, after = ctx.effects, ctx.effects.inbox_upto or 0
    new = any(message.is_broadcast for place, message in effects.inbox if after < place <= upto)
    if not upto or not (new or effects.facts.signals):
        return []
    return effects.untaken(await effects.database.call(told_of, effects.lease.run_id, upto))


def _give(ctx: RunState, upto: int) -> list[Message]:
    """Hand out messages without an await: of two concurrent tasks the second gets those that the first did not."""
    effects = ctx.effects
    after = effects.inbox_upto or 0
    given = [message for place, message in effects.inbox if after < place <= upto]
    effects.inbox_upto = max(after, upto) or None
    ctx.given += given
    if given:
        ctx.hops, ctx.caused = hops_of(given), ""
    return given


def give_back(ctx: RunState, message: Message) -> int:
    """Leave this message and later ones to the next generation; returns their number."""
    effects, upto = ctx.effects, ctx.effects.inbox_upto or 0
    given = [(place, one) for place, one in effects.inbox if place <= upto]
    same = [place for place, one in given if one is message] or [place for place, one in given if one == message]
    if not same:
        raise InvalidInputError("unread is none of the messages that this generation was given", field="unread")
    effects.inbox_upto = same[0] - 1
    return sum(place >= same[0] for place, _ in given)


def _check_place(ctx: RunState) -> None:
    """A replay does not run the code of a tool or of a pinned value: messages received there would be given again."""
    scope, task = paths.current(), asyncio.current_task()
    pins = any(under_way.task is task for under_way in ctx.pinning.values())
    if pins or (scope is not None and "/" in scope.prefix):
        raise InvalidInputError(
            "the run's messages are for the agent's own code: call ctx.receive() there, not in a tool or a pinned "
            "value, and pass on what it gives",
            field="receive",
        )


BESIDE = "pub:"  # prefix of the key of a signal that announces a message; the message's id follows


def told_of(run_id: UUID, upto: int) -> list[int]:
    """The unread signals that announced messages of the inbox up to this id."""
    known = InboxMessage.objects.filter(
        run_id=run_id, id__lte=upto, message_id=Substr(OuterRef("key"), len(BESIDE) + 1)
    )
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None, key__startswith=BESIDE)
    return list(unread.filter(Exists(known)).order_by("id").values_list("id", flat=True))


@appending
def record_received(lease: Lease, *, signals: Sequence[int]) -> None:
    read(signals)


def read(signals: Sequence[int]) -> None:
    """Mark signals as read, in the caller's fenced transaction."""
    Signal.objects.filter(id__in=signals, consumed_at=None).update(consumed_at=clock.now())


HOPS = "hops"  # key in the metadata of a published message: the publications behind it, itself included
_MESSAGES = "messages"


def hops_of(messages: Iterable[Message]) -> int:
    """The most publications behind any of these messages."""
    return max((hops_in(message.metadata) for message in messages), default=0)


def hops_in(note: Any) -> int:
    hops = note.get(HOPS) if isinstance(note, Mapping) else None
    return max(0, hops) if isinstance(hops, int) and not isinstance(hops, bool) else 0


def hops_told(payload: Any) -> int:
    """The hops in the payload of a signal, if it announces a publication: others may use the key for themselves."""
    return hops_in(payload) if isinstance(payload, Mapping) and "publication" in payload else 0


def noted(hops: int) -> dict[str, int]:
    return {HOPS: hops} if hops else {}


def trail_of(hops: int, messages: int) -> dict[str, int]:
    """For the row before a generation: the publications behind the messages that the code was given last, and the
    number of messages that the generation begins with."""
    return {HOPS: hops, _MESSAGES: messages} if hops else {}


def hops_at_start(batch: Sequence[Message], trail: Any) -> int:
    """The hops of a generation that begins with these messages. Those of the previous generation count, unless other
    messages have arrived since."""
    before, own = hops_in(trail), hops_in({HOPS: trail.get(_MESSAGES)}) if isinstance(trail, Mapping) else 0
    return hops_of(batch) if len(batch) > own else max(before, hops_of(batch))
