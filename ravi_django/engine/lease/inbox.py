"""`ctx.receive()`: messages that arrived since the last batch. A replay returns the same ones.

The depth of a publication is its number in a chain in which each one was caused by the one before. MAX_HOPS in
`social/publications.py` ends such a chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease import paths, wake_state
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import Agent, InvalidInputError, Message

KIND = "msg.received"
STEERS = "steers"  # key in the metadata of a message that steers the run, see `steer` in `runs/sessions.py`


async def receive(ctx: RunState) -> list[Message]:
    """`ctx.receive`. One query, none on a replay. The row is written with the next commit: until then nothing is
    recorded that could follow from the messages."""
    _check_place(ctx)
    recorder, path = ctx.recorder, ctx.path()
    row = await recorder.recall(path, KIND, "")
    if row is not None:
        return _give(ctx, row.read_upto or 0)
    async with recorder.effect():
        after = max(recorder.lease.run.inbox_from, recorder.state.mailbox.read_upto or 0)
        upto = await read_on(recorder, after) or recorder.state.mailbox.read_upto
        messages = _give(ctx, upto or 0)
        recorder.record_with_next(Entry(KIND, path, result={"messages": len(messages)}, read_upto=upto))
    return messages


async def hear(ctx: RunState) -> list[Message]:
    """`ctx.hear`: like `receive`, for the next messages of the inbox as long as they steer the run. One query if an
    append has found that the run was woken since the last time, else none."""
    recorder = ctx.recorder
    if not ctx.is_recorded():
        if recorder.journal.replaying:
            return []
        woken = max(recorder.lease.woken, default=0)
        if woken > max(ctx.heard, recorder.lease.run.wake_seq):
            with recorder.waits.busy():
                await read_on(recorder, max(recorder.lease.run.inbox_from, recorder.state.mailbox.read_upto or 0))
            ctx.heard = woken
        unread = recorder.state.mailbox.unread()
        steering = list(takewhile(lambda numbered: STEERS in numbered[1].metadata, unread))
        if not steering:
            return []
        upto = steering[-1][0]
        recorder.record_with_next(Entry(KIND, ctx.path(), result={"messages": len(steering)}, read_upto=upto))
    else:
        row = await recorder.recall(ctx.path(), KIND, "")
        assert row is not None
        upto = row.read_upto or 0
    depth = ctx.publication_depth
    messages = _give(ctx, upto)
    ctx.publication_depth = max(depth, ctx.publication_depth)  # they do not end a chain of publications
    return messages


async def read_on(recorder: Recorder, after: int) -> int | None:
    """Read the messages above an id, at most the agent's limit of them; returns the id of the last one."""
    mailbox, run, more = recorder.state.mailbox, recorder.lease.run, False
    if mailbox.limit is None:
        rows = await recorder.database.call(wake_state.inbox_after, run, after)
    else:
        rows, more = await recorder.database.call(wake_state.some_after, run, after, mailbox.limit)
    mailbox.add([(position, Message.model_validate(body)) for position, body in rows], more)
    return rows[-1][0] if rows else None


def limit_of(agent: Agent) -> int | None:
    """How many messages of a backlog the agent gets at once; None: all."""
    limit = getattr(agent, "inbox_limit", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _give(ctx: RunState, upto: int) -> list[Message]:
    """Hand out messages without an await: of two concurrent tasks the second gets those that the first did not."""
    messages = ctx.recorder.state.mailbox.give(upto)
    ctx.messages_given += messages
    if messages:
        ctx.publication_depth, ctx.caused = publication_depth(messages), ""
    return messages


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


HOPS = "hops"  # key in the metadata of a published message: its depth
_MESSAGES = "messages"


def publication_depth(messages: Iterable[Message]) -> int:
    """The greatest depth of these messages; 0: none was published."""
    return max((depth_in(message.metadata) for message in messages), default=0)


def depth_in(values: Any) -> int:
    """The depth in a message's metadata, the result of a row, or the payload of a wait."""
    depth = values.get(HOPS) if isinstance(values, Mapping) else None
    return max(0, depth) if isinstance(depth, int) and not isinstance(depth, bool) else 0


def as_depth(depth: int, messages: int | None = None) -> dict[str, int]:
    """For metadata or a row. `messages`, in the row before a generation: the number of messages that it begins with."""
    if not depth:
        return {}
    return {HOPS: depth} | ({} if messages is None else {_MESSAGES: messages})


def depth_at_start(batch: Sequence[Message], before: Any) -> int:
    """The depth behind a generation that begins with these messages. That of the previous generation, from the row
    `before`, counts unless other messages have arrived since."""
    left = depth_in({HOPS: before.get(_MESSAGES)}) if isinstance(before, Mapping) else 0
    return publication_depth(batch) if len(batch) > left else max(depth_in(before), publication_depth(batch))


def announcement(body: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a wait that a published message has ended."""
    message = Message.model_validate(body)
    payload = {"topic": str(message.target), "message": message.id, **as_depth(depth_in(message.metadata))}
    if "publication" in message.metadata:
        return payload | {"publication": message.metadata["publication"]}
    data = message.payload.data  # type: ignore[attr-defined]  # of a digest
    dropped = {"dropped": data["dropped"]} if "dropped" in data else {}
    return payload | {"publication": data["items"][-1]["publication"], "items": len(data["items"]), **dropped}
