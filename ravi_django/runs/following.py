"""Follow a run from a program of the site: `run.events()`, `run.aevents()` and `Runtime.events`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import redis
from django.db import InterfaceError, OperationalError

from ravi_django.conf import conf
from ravi_django.engine.db.threads import readers
from ravi_django.kernel import NotFoundError, StreamEvent, TopicId, event_of
from ravi_django.live.streams import hidden
from ravi_django.live.streams.live import live
from ravi_django.live.streams.reading import follow, newest, on_this_thread, with_pauses
from ravi_django.models import Run, Status
from ravi_django.runs.checks import run_id_of
from ravi_django.runs.results import refuse_to_wait, wait

log = logging.getLogger("ravi.following")

AWAY = (redis.RedisError, OSError, OperationalError, InterfaceError)
AGAIN_S = 1.0
TRIES = 300  # without a frame between them


def find(run: Any, user: Any = None) -> Run:
    """The row as it is now; with `user`, if they may see it. Raises NotFoundError."""
    key = run_id_of(run)
    row: Run | None = (Run.objects.for_user(user) if user is not None else Run.objects.all()).filter(id=key).first()
    if row is None:
        raise NotFoundError(f"there is no run {key}{' of this user' if user else ''}")
    return row


def _is_blocked(tree: UUID, after: int) -> bool:
    """Whether the root waits for an operator, and the frames up to `after` say so."""
    of_root = lambda frame: frame["type"] == "error" and frame["run"] == str(tree)  # noqa: E731
    return Run.objects.filter(id=tree, status=Status.BLOCKED).exists() and 0 < newest(tree, of_root) <= after


async def aevents(run: Run | UUID | str | TopicId, after: int = 0, *, user: Any = None) -> AsyncGenerator[StreamEvent]:
    """See `Run.events`; a topic is live. While the database or the buffer is away, it reads again."""
    tree: Any = None if isinstance(run, TopicId) else (await readers().call(find, run, user)).tree_id
    whole, tries = user is None or hidden.sees(user), 0
    while True:
        try:
            if tree is not None and after and await readers().call(_is_blocked, tree, after):
                return
            frames = live(run, user, lost=tries > 0) if isinstance(run, TopicId) else follow(tree, after, whole=whole)
            async with aclosing(frames):
                async for frame in frames:
                    after, tries = frame.get("seq", 0), 0
                    yield event_of(frame)
                    if tree and frame["type"] == "error" and await readers().call(_is_blocked, tree, after):
                        return
            return
        except AWAY as error:
            tries += 1
            if tries > TRIES:
                raise
            log.warning("events of %s: %r", tree or run, error, extra={"action": "events.again"})
            await asyncio.sleep(AGAIN_S)


def events(run: Run, after: int = 0, *, user: Any = None) -> Iterator[StreamEvent]:
    """See `Run.events`."""
    refuse_to_wait("run.events()", "async for event in run.aevents()")
    for event in on_this_thread(with_pauses(aevents(run, after, user=user), AGAIN_S)):
        if event is not None:
            yield event
        elif conf.ENGINE == "manual":
            wait(run)  # raises RuntimeError for a run that has not ended
