"""The social graph for agents: ctx.follow, ctx.unfollow, ctx.emit and ctx.update_follows."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.contrib.auth import get_user_model
from pydantic_core import from_json

from ravi_django import access
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    ForbiddenError,
    InputTooLargeError,
    KernelError,
    PermanentError,
    TopicId,
)
from ravi_django.kernel.checks import check_whole
from ravi_django.models import Follow
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.entries import Entry, encode, storable
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.runs.checks import metadata_of
from ravi_django.runtime.social import fan_out, follow_rows, publications
from ravi_django.runtime.social.follows import MAX_EVERY_S, row_of, topic_of
from ravi_django.runtime.social.publications import MAX_HOPS, checked_id, payload_for, publication_of, value_of
from ravi_django.runtime.teams.messages import raise_recorded, refuse

_CIRCLE = (
    "nothing is emitted to {}: it would be more than {} publications that each follow from the one before; agents that "
    "follow each other in a circle make no end of them"
)


async def follow(ctx: RunState, topic: TopicId | str, session: bool, every_s: int) -> None:
    effects, path, name = ctx.effects, ctx.path(), str(topic)
    if (row := await effects.recall(path, "follow", name, None, None)) is not None:
        raise_recorded(row)
        return
    wanted = _own(ctx, topic_of(topic), session)
    wanted.every_s, wanted.metadata = check_whole("every_s", every_s, 0, MAX_EVERY_S), effects.lease.run.metadata
    entry = Entry("follow", path, name, request={"session": bool(session), "every_s": every_s})
    async with effects.performing():
        if (refusal := await effects.database.call(_may_follow, ctx.agent_id, topic_of(topic), wanted)) is not None:
            await refuse(ctx, entry, refusal)
        await effects.record(entry, partial(follow_rows.follow, follow=wanted))


def _may_follow(agent: AgentId, topic: TopicId, wanted: Follow) -> KernelError | None:
    try:
        if (owner := _owner(wanted.owner_id)) is not None:
            access.check_follow(owner, specs.find(agent), topic)
    except (ForbiddenError, AgentNotFoundError) as error:
        return ForbiddenError(str(error))
    return None


async def unfollow(ctx: RunState, topic: TopicId | str, session: bool) -> None:
    effects, path, name = ctx.effects, ctx.path(), str(topic)
    if (row := await effects.recall(path, "unfollow", name, None, None)) is not None:
        raise_recorded(row)
        return
    own = _own(ctx, topic_of(topic), session)
    entry = Entry("unfollow", path, name, request={"session": bool(session)})
    async with effects.performing():
        await effects.record(entry, partial(follow_rows.unfollow, follower=own.follower, topic=own.topic))


async def emit(ctx: RunState, topic: TopicId | str, data: Any, id: str | None) -> None:
    effects, path, name = ctx.effects, ctx.path(), str(topic)
    if (row := await effects.recall(path, "emit", name, None, None)) is not None:
        raise_recorded(row)
        return
    run, place, hops = effects.lease.run, topic_of(topic), ctx.hops + 1
    seed = f"{run.id}:{run.generation}:{path}:emit"  # the same for whoever takes over, and not a fork's
    message_id = hashlib.sha256(seed.encode()).hexdigest()[:32] if id is None else checked_id(id)
    value = from_json(encode(value_of(data)))
    entry = Entry("emit", path, name, request={"message": message_id})
    async with effects.performing():
        try:
            payload = payload_for(data, value)
        except InputTooLargeError as error:
            await refuse(ctx, entry, PermanentError(str(error)))
        if hops > MAX_HOPS:
            await refuse(ctx, entry, PermanentError(_CIRCLE.format(place, MAX_HOPS)))
        if (refusal := await effects.database.call(_may_emit, run.owner_id)) is not None:
            await refuse(ctx, entry, refusal)
        made = publication_of(place, payload, message_id, run.tenant, f"run:{run.id}", ctx.agent_id, hops)
        made.owner_id, made.run_id = run.owner_id, run.id
        entry.result = value
        await effects.record(entry, partial(publications.publish, publication=made))
        if entry.error is not None:
            raise_recorded(entry)
        if entry.request["new"] and entry.request["followers"]:
            asyncio.get_running_loop().run_in_executor(None, fan_out.hint, made.id)  # the broker may be slow


def _may_emit(owner_id: Any) -> KernelError | None:
    """A run may emit what it likes, but not for an owner who is deleted."""
    try:
        _owner(owner_id)
    except ForbiddenError as error:
        return error
    return None


def _owner(owner_id: Any) -> Any:
    """None for a run of nobody's. Raises ForbiddenError for one whose owner is deleted: that is not the system's."""
    if owner_id is None:
        return None
    found = get_user_model()._default_manager.filter(pk=owner_id).first()
    if found is None:
        raise ForbiddenError(f"the run's owner, user {owner_id}, is no more")
    return found


def _own(ctx: RunState, topic: TopicId, session: bool) -> Follow:
    run = ctx.effects.lease.run
    return row_of(
        str(ctx.agent_id),
        topic,
        run.owner_id,
        run.tenant,
        session_id=run.session_id if session else None,
        home_id=run.session_id,
    )


KIND = "follow.updated"


async def update(ctx: RunState, metadata: Mapping[str, Any]) -> None:
    effects, path = ctx.effects, ctx.path()
    if await effects.recall(path, KIND, "", None, None) is not None:
        return
    run, given = effects.lease.run, storable(metadata_of(metadata))
    own = (str(ctx.agent_id), run.owner_id, run.tenant)
    followers = [follow_rows.follower_of(*own), follow_rows.follower_of(*own, run.session_id)]
    write = partial(update_follows, followers=followers, metadata=given)
    async with effects.performing():
        await effects.record(Entry(KIND, path, request={"metadata": given}), write)


@appending
def update_follows(lease: Lease, *, followers: Sequence[str], metadata: Mapping[str, Any]) -> None:
    """Record it, and put `metadata` over what every follow of these followers has. The run's row is locked before
    theirs, as wherever a follow is written."""
    rows = list(Follow.objects.select_for_update(no_key=True).filter(follower__in=followers).order_by("id"))
    for row in rows:
        row.metadata = {**row.metadata, **metadata}
    Follow.objects.bulk_update(rows, ["metadata"], batch_size=500)
