"""Follow a run from a program of the site: `run.events()`, `run.aevents()` and `Runtime.events`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import redis
from django.db import Error

from ravi_django.kernel import NotFoundError, StreamEvent, TopicId, event_of
from ravi_django.models import Run
from ravi_django.runtime.db.threads import readers
from ravi_django.runtime.runs.results import refuse_idle, refuse_to_wait
from ravi_django.runtime.streams import hidden
from ravi_django.runtime.streams.live import live
from ravi_django.runtime.streams.reading import follow, on_this_thread, with_pauses

log = logging.getLogger("ravi.following")

AWAY = (redis.RedisError, OSError, Error)
AWAY_S = 300.0  # how long a stream is read again after an error, as the clients do
AGAIN_S = 1.0
WORKED_S = 30.0  # a stream that was read for so long was not away
LOOK_S = 1.0


def find(run: Run | UUID | str, user: Any = None) -> Run:
    """The row as it is now; with `user`, if they may see it. Raises NotFoundError."""
    key = run.id if isinstance(run, Run) else run
    rows = Run.objects.all() if user is None else Run.objects.for_user(user)
    try:
        found: Run | None = rows.filter(id=UUID(str(key))).first()
    except ValueError:
        found = None
    if found is None:
        raise NotFoundError(f"there is no run {str(key)[:100]!r}{' of this user' if user else ''}")
    return found


async def aevents(run: Run | UUID | str | TopicId, after: int = 0, *, user: Any = None) -> AsyncGenerator[StreamEvent]:
    """See `Run.events`; a topic is live. While the database or the buffer is away, it reads again."""
    tree: Any = None if isinstance(run, TopicId) else (await readers().call(find, run, user)).tree_id
    whole, since = user is None or hidden.sees(user), 0.0
    while True:
        begun = time.monotonic()
        try:
            frames = live(run, user, lost=since > 0) if isinstance(run, TopicId) else follow(tree, after, whole=whole)
            async with aclosing(frames):
                async for frame in frames:
                    after, since = frame.get("seq", 0), 0.0
                    yield event_of(frame)
            return
        except AWAY as error:
            present = time.monotonic()
            since = since if since and present < begun + WORKED_S else present
            if present > since + AWAY_S:
                raise
            log.warning("events of %s: %r", tree or run, error, extra={"action": "events.again"})
            await asyncio.sleep(AGAIN_S)


def events(run: Run, after: int = 0, *, user: Any = None) -> Iterator[StreamEvent]:
    """See `Run.events`."""
    refuse_to_wait("run.events()", "async for event in run.aevents()")
    for event in on_this_thread(with_pauses(aevents(run, after, user=user), LOOK_S)):
        if event is not None:
            yield event
        elif not (row := find(run)).is_terminal:
            refuse_idle(row)
