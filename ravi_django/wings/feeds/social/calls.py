"""The social graph for agents: ctx.follow, ctx.unfollow, ctx.emit and ctx.update_follows."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.contrib.auth import get_user_model
from pydantic_core import from_json

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Entry, encode
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    ForbiddenError,
    InputTooLargeError,
    KernelError,
    Message,
    PermanentError,
    TopicId,
)
from ravi_django.kernel.checks import check_whole, seconds_of
from ravi_django.kernel.json_values import check_json, storable
from ravi_django.models import Follow
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import metadata_of
from ravi_django.runs.teams.messages import raise_recorded, refuse
from ravi_django.wings.feeds.social import fan_out, follow_rows, publications
from ravi_django.wings.feeds.social.follows import MAX_EVERY_S, row_of, topic_of
from ravi_django.wings.feeds.social.publications import (
    MAX_HOPS,
    checked_id,
    message_for,
    payload_for,
    publication_of,
    value_of,
)

_CIRCLE = (
    "nothing is emitted to {}: it would be more than {} publications in a row, each emitted because of the one before; "
    "do the agents follow each other in a circle?"
)

_MAY_NOT_RUN = (
    ', who may not run it: register it with access="authenticated", or give the user the permission ravi.run_agent'
)


async def follow(ctx: RunState, topic: TopicId | str, session: bool, every_s: int | timedelta) -> None:
    """The path of the row is the topic, without a number: a replay need not follow again. So an agent's attribute may
    say that it follows already. Only a refusal has a number, because the code may go on differently after it."""
    wanted = _follow_of_run(ctx, topic_of(topic), session)
    every_s = wanted.every_s = check_whole("every_s", seconds_of(every_s), 0, MAX_EVERY_S)
    key = _path_key(wanted.topic, session)
    async with ctx.following:
        changes, known = ctx.followed.get(key, (0, None))
        if known is not None and known != every_s:
            changes += 1
        path = f"@follow.{changes}.{every_s}.{key}"
        if known != every_s and ctx.recorder.journal.find(path) is None:
            await _follow(ctx, wanted, path)
        ctx.followed[key] = changes, every_s


def _path_key(topic: str, session: bool) -> str:
    return f"{'session' if session else 'agent'}.{topic}"


async def _follow(ctx: RunState, wanted: Follow, path: str) -> None:
    recorder, topic = ctx.recorder, wanted.topic
    refused = recorder.journal.find(ctx.next_path())
    if refused is not None and (refused.kind, refused.name) == ("follow", topic):
        raise_recorded(await recorder.recall(ctx.path(), "follow", topic) or refused)
    wanted.metadata = recorder.lease.run.metadata
    entry = Entry("follow", path, topic)
    entry.request = {"session": wanted.session_id is not None, "every_s": wanted.every_s}
    async with recorder.effect():
        refusal = await recorder.database.call(_refusal, wanted.owner_id, ctx.agent_id, topic_of(topic))
        if refusal is not None:
            entry.path = ctx.path()
            await refuse(ctx, entry, refusal)
        await recorder.record(entry, partial(follow_rows.follow, follow=wanted))


def _refusal(owner_id: Any, agent: AgentId, followed: TopicId | None = None) -> KernelError | None:
    """Why a run of this owner may not follow the topic, or emit. A run whose owner is deleted is not the system's."""
    if owner_id is None:
        return None
    owner = get_user_model()._default_manager.filter(pk=owner_id).first()
    if owner is None:
        return ForbiddenError(f"the run's owner, user {owner_id}, is no more")
    if followed is None:
        return None
    try:
        runnable = specs.find(agent)
    except AgentNotFoundError as error:
        return ForbiddenError(str(error))
    try:
        access.check_follow(owner, runnable, followed)
    except (ForbiddenError, AgentNotFoundError):  # the agent runs: it need not be hidden from its user
        message = f"{agent} may not follow {followed} for user {owner.get_username()!r}"
        return ForbiddenError(message if access.may_run(owner, runnable) else message + _MAY_NOT_RUN)
    return None


async def unfollow(ctx: RunState, topic: TopicId | str, session: bool) -> None:
    recorder, path, name = ctx.recorder, ctx.path(), str(topic)
    wanted = _follow_of_run(ctx, topic_of(topic), session)
    key = _path_key(wanted.topic, session)
    ctx.followed[key] = ctx.followed.get(key, (0, None))[0] + 1, None
    if (row := await recorder.recall(path, "unfollow", name, {"session": bool(session)})) is not None:
        raise_recorded(row)
        return
    entry = Entry("unfollow", path, name, request={"session": bool(session)})
    async with recorder.effect():
        await recorder.record(entry, partial(follow_rows.unfollow, follower=wanted.follower, topic=wanted.topic))


async def emit(ctx: RunState, topic: TopicId | str, data: Any, id: str | None) -> None:
    recorder, path, name = ctx.recorder, ctx.path(), str(topic)
    value = from_json(encode(value_of(data)))
    if (row := await recorder.recall(path, "emit", name, {"data": value, "id": id})) is not None:
        if isinstance(data, Message):  # the replay has made it again, with another id
            ctx.message_ids[data.id] = row.request["message"]
        raise_recorded(row)
        return
    run, topic_id, depth = recorder.lease.run, topic_of(topic), ctx.publication_depth + 1
    seed = f"{run.id}:{run.generation}:{path}:emit"  # another worker makes the same one, a fork another
    key = None if id is None else checked_id(id)
    message_id = key or hashlib.sha256(seed.encode()).hexdigest()[:32]
    if isinstance(data, Message):
        message_id = checked_id(ctx.message_ids.get(data.id, data.id))
        data = data.model_copy(update={"id": message_id})
    entry = Entry("emit", path, name, request={"message": message_id})
    async with recorder.effect():
        try:
            payload = payload_for(data, check_json("data", value, conf.MAX_INPUT_BYTES))
        except InputTooLargeError as error:
            await refuse(ctx, entry, PermanentError(str(error)))
        if depth > MAX_HOPS:
            await refuse(ctx, entry, PermanentError(_CIRCLE.format(topic_id, MAX_HOPS)))
        if (refusal := await recorder.database.call(_refusal, run.owner_id, ctx.agent_id)) is not None:
            await refuse(ctx, entry, refusal)
        cause = None if ctx.cause == message_id else ctx.cause
        message = message_for(topic_id, payload, data, message_id, ctx.agent_id, ctx.conversation, cause)
        made = publication_of(message, run.tenant, f"run:{run.id}", depth, key)
        made.owner_id, made.run_id = run.owner_id, run.id
        entry.result = value
        await recorder.record(entry, partial(publications.publish, publication=made))
        if entry.error is not None:
            raise_recorded(entry)
        if entry.request["new"] and entry.request["followers"]:
            asyncio.get_running_loop().run_in_executor(None, fan_out.hint, made.id)  # the broker may be slow


def _follow_of_run(ctx: RunState, topic: TopicId, session: bool) -> Follow:
    run = ctx.recorder.lease.run
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
    recorder, path = ctx.recorder, ctx.path()
    run, values = recorder.lease.run, storable(metadata_of(metadata))
    if await recorder.recall(path, KIND, "", values) is not None:
        return
    identity = (str(ctx.agent_id), run.owner_id, run.tenant)
    followers = [follow_rows.follower_of(*identity), follow_rows.follower_of(*identity, run.session_id)]
    write = partial(update_follows, followers=followers, metadata=values)
    async with recorder.effect():
        await recorder.record(Entry(KIND, path, request={"metadata": values}), write)


@appending
def update_follows(lease: Lease, *, followers: Sequence[str], metadata: Mapping[str, Any]) -> None:
    """Merge `metadata` into that of all follows of these followers. The run's row is locked before theirs."""
    rows = list(Follow.objects.select_for_update(no_key=True).filter(follower__in=followers).order_by("id"))
    for row in rows:
        row.metadata = {**row.metadata, **metadata}
    Follow.objects.bulk_update(rows, ["metadata"], batch_size=500)
