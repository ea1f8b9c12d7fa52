"""Child runs, as an agent's code starts them: `ctx.spawn`. See `store/spawning.py` for what is written."""

from __future__ import annotations

from functools import partial
from typing import Any

from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    HookEvent,
    InvalidInputError,
    Message,
    PermanentError,
    Priority,
    RunHandle,
    SpawnDeniedError,
)
from ravi_django.models import uuid7
from ravi_django.runtime import specs
from ravi_django.runtime.addressing import address_of, filled, find, metadata_of, raise_recorded, refuse, too_large
from ravi_django.runtime.entries import Entry, Recorded
from ravi_django.runtime.state import RunState
from ravi_django.runtime.store import spawning
from ravi_django.runtime.store.slots import Paused


async def spawn(
    ctx: RunState, target: AgentId, boot: Message | str | None, priority: Priority | None = None
) -> RunHandle:
    """Start a child run in a session of its own, on `boot`; without it the child waits for its first message.

    Raises AgentNotFoundError, and SpawnDeniedError, recorded, when the tree is too deep or has no room;
    PermanentError, recorded, when `boot` is larger than an input may be, or lacks a variable.
    """
    agent_id, given = address_of(target), _checked(priority)
    effects, path = ctx.effects, ctx.path()
    row = await effects.recall(path, "child.spawned", str(agent_id), None, None)
    if row is not None:
        return _spawned(ctx, agent_id, row, boot)
    message = None if boot is None else filled(ctx, agent_id, boot, path)
    child_id, session_id = uuid7(), uuid7()
    entry = Entry("child.spawned", path, str(agent_id))
    entry.request = {"message": None if message is None else message["id"]}
    gave_way: list[Paused] = []
    async with effects.performing():
        found, refusal = await find(ctx, agent_id)
        refusal = refusal or too_large(message) or _misses_variables(ctx, found, boot) or _too_deep(ctx)
        if refusal is None:
            entry.result = {"run": str(child_id), "session": str(session_id)}
            effects.entangled = True  # first: the commit may stand though this task is cancelled over it
            child = spawning.make_child(
                effects.lease,
                str(agent_id),
                child_id,
                session_id,
                priority=given,
                deadline=ctx.meta.deadline,
                allowed=ctx.spawn_budget,
            )
            child.agent_version, child.metadata = found.version, metadata_of(ctx, found, boot)
            await effects.publisher.begun(effects.source.tree)  # any process may have the child from the commit on
            try:
                write = partial(
                    spawning.spawn, child=child, message=message, allowed=ctx.spawn_budget, gave_way=gave_way
                )
                await effects.record(entry, write)
            except SpawnDeniedError as error:
                refusal = error
        if refusal is not None:
            await refuse(ctx, entry, refusal)
    for paused in gave_way:
        effects.tell_paused(paused)
    if message is not None:
        ctx.booted[str(child_id)] = message["id"]
        effects.wake([child_id])
    await ctx.hook(HookEvent.HANDOFF, target=str(agent_id), run=str(child_id))
    return RunHandle(str(child_id), agent_id)


def _spawned(ctx: RunState, agent_id: AgentId, row: Recorded, boot: Message | str | None) -> RunHandle:
    raise_recorded(row)
    ctx.booted[row.result["run"]] = row.request["message"]
    if isinstance(boot, Message) and row.request["message"]:  # made anew by the replay, with another id
        ctx.message_ids[boot.id] = row.request["message"]
    return RunHandle(row.result["run"], agent_id)


def _misses_variables(ctx: RunState, found: specs.Found, boot: Message | str | None) -> PermanentError | None:
    try:
        found.check_variables(metadata_of(ctx, found, boot))
    except InvalidInputError as error:
        return PermanentError(f"{found.address}: {error}; the message that boots it brings them")
    return None


def _checked(priority: Any) -> Priority | None:
    try:
        return None if priority is None else Priority(priority)
    except ValueError:
        raise InvalidInputError(f"priority is a Priority, not {priority!r}", field="priority") from None


def _too_deep(ctx: RunState) -> SpawnDeniedError | None:
    depth = ctx.effects.lease.run.depth + 1
    if depth <= conf.MAX_DEPTH:
        return None
    return SpawnDeniedError(f"a run at depth {depth} would be below the limit of {conf.MAX_DEPTH}")
