"""Reading on: the messages that have come since those that the code was given, the same ones on every replay."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from ravi_django.kernel import Agent, InvalidInputError, Message
from ravi_django.runtime import paths
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.hops import hops_of
from ravi_django.runtime.state import RunState
from ravi_django.runtime.store import inboxes
from ravi_django.runtime.store import told as told_rows

if TYPE_CHECKING:
    from ravi_django.runtime.effects import Effects

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
            await effects.record(entry, partial(told_rows.receive, signals=told))
        else:
            effects.note(entry)
    return given


async def read_on(effects: Effects, after: int) -> int | None:
    """Read the messages above an id, or so many of them as are read at a time; returns the last one's id."""
    run_id, limit, more = effects.lease.run_id, effects.inbox_limit, False
    if limit is None:
        found = await effects.database.call(inboxes.inbox_after, run_id, after)
    else:
        found, more = await effects.database.call(inboxes.some_after, run_id, after, limit)
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
    return effects.untaken(await effects.database.call(told_rows.told_of, effects.lease.run_id, upto))


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
