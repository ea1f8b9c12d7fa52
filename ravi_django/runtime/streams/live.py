"""The text of all runs of an agent, live: the topic `agent.stream/<key>` without a run.

While a topic has a reader, the buffer publishes the frames of its agents once more. They are not kept: a reader gets
them from now on, without numbers, and one `stream.gap` where some were lost. The streams of the runs have them all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from pydantic_core import from_json

from ravi_django.db import alias
from ravi_django.kernel import InvalidInputError, TopicId, UnsupportedError
from ravi_django.models import Run
from ravi_django.runtime.db.threads import readers
from ravi_django.runtime.streams import hidden
from ravi_django.runtime.streams.buffer import LIVE_S, DatabaseBuffer, get_buffer
from ravi_django.runtime.streams.frames import STREAM

BEHIND = 1_000_000  # bytes that wait for a reader
RENEW_S = LIVE_S / 3
RIGHTS_S = 60.0
GAP = {"type": "stream.gap", "run": None, "agent": None, "from": 0, "to": 0, "snapshot": None}


def check(topic: TopicId) -> None:
    """Raise InvalidInputError for another topic, and UnsupportedError where frames are in the database."""
    if topic.type != STREAM:
        raise InvalidInputError(f"the topic must be {STREAM}/<agent key>, not {topic}; name a run", field="topic")
    if isinstance(get_buffer(), DatabaseBuffer):
        raise UnsupportedError(f"{topic} of all runs needs Valkey or Redis (RAVI['STREAM_URL']); add run=<id of a run>")


async def live(topic: TopicId, user: Any = None, *, lost: bool = False) -> AsyncGenerator[dict[str, Any]]:
    """The topic's frames from now on, of runs that `user` may see; None: of all. Begins with a gap if some are `lost`.
    The rights are read again each minute."""
    check(topic)
    buffer: Any = get_buffer()
    waiting, sights, renewed = _Waiting(lost), _Sights(user), 0.0
    with buffer.live(str(topic), waiting.take):
        while True:
            if (present := time.monotonic()) >= renewed + RENEW_S:
                await readers().call(buffer.ask_live, str(topic))
                waiting.is_lost |= bool(renewed) and present >= renewed + LIVE_S
                renewed = present
            for frame in waiting.next():
                whole = True if frame is GAP else await sights.of(frame["run"])
                if whole is not None:
                    yield frame if whole else hidden.frame(frame)
            await waiting.wait(RENEW_S)


class _Waiting:
    """The frames that a reader has not taken; at most BEHIND bytes of them."""

    def __init__(self, is_lost: bool) -> None:
        self.is_lost = is_lost
        self._bodies: deque[bytes] = deque()
        self._size = 0
        self._any = False
        self._event = asyncio.Event()

    def take(self, data: bytes | int) -> None:
        """A published frame, or the confirmation of a subscription: a later one follows a lost connection."""
        if isinstance(data, int):
            self.is_lost |= self._any
        else:
            self._any = True
            self._bodies.append(data)
            self._size += len(data)
        if self._size > BEHIND:
            self._bodies.clear()
            self._size, self.is_lost = 0, True
        self._event.set()

    def next(self) -> list[dict[str, Any]]:
        """A gap, or the next frame, or nothing."""
        if self.is_lost:
            self.is_lost = False
            return [GAP]
        if not self._bodies:
            return []
        self._size -= len(body := self._bodies.popleft())
        return [from_json(body)]

    async def wait(self, seconds: float) -> None:
        if not (self.is_lost or self._bodies):
            self._event.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # before 3.12 wait_for may swallow a cancellation
                    await self._event.wait()


class _Sights:
    """What a user may see of each run, for RIGHTS_S."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._known: dict[str, tuple[float, bool | None]] = {}

    async def of(self, run: str) -> bool | None:
        """Whether also its hidden values; None: nothing."""
        if self._user is None:
            return True
        present = time.monotonic()
        if run not in self._known or self._known[run][0] <= present:
            self._known = {key: sight for key, sight in self._known.items() if sight[0] > present}
            self._known[run] = present + RIGHTS_S, await readers().call(_sight, self._user.pk, UUID(run))
        return self._known[run][1]


def _sight(pk: Any, run: UUID) -> bool | None:
    user = get_user_model()._default_manager.using(alias()).filter(pk=pk).first()
    if user is None or not user.is_active or not Run.objects.for_user(user).filter(id=run).exists():
        return None
    return hidden.sees(user)
