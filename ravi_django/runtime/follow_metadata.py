"""`ctx.update_follows`: what a run wants kept for those that deliveries start after it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ravi_django.runtime.entries import Entry, storable
from ravi_django.runtime.state import RunState
from ravi_django.runtime.store import follow_metadata, follows
from ravi_django.runtime.submit import _metadata

KIND = "follow.updated"


async def update(ctx: RunState, metadata: Mapping[str, Any]) -> None:
    effects, path = ctx.effects, ctx.path()
    if await effects.recall(path, KIND, "", None, None) is not None:
        return
    run, given = effects.lease.run, storable(_metadata(metadata))
    own = (str(ctx.agent_id), run.owner_id, run.tenant)
    followers = [follows.follower_of(*own), follows.follower_of(*own, run.session_id)]
    write = partial(follow_metadata.update_follows, followers=followers, metadata=given)
    async with effects.performing():
        await effects.record(Entry(KIND, path, request={"metadata": given}), write)
