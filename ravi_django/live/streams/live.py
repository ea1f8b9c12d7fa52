"""The text of all runs of an agent, live: the topic `agent.stream/<key>` without a run.

While a topic has a reader, the buffer publishes the frames of its agents once more. They are not kept: a reader gets
them from now on, without numbers, and one `stream.gap` where some were lost. The streams of the runs have them all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from pydantic_core import from_json

from ravi_django.db import alias
from ravi_django.engine.db.threads import readers
from ravi_django.kernel import InvalidInputError, TopicId, UnsupportedError
from ravi_django.live.streams import hidden
from ravi_django.live.streams.buffer import LIVE_S, DatabaseBuffer, get_buffer
from ravi_django.live.streams.frames import STREAM
from ravi_django.models import Run

MAX_UNREAD_BYTES = 1_000_000  # bytes that wait for a reader
RENEW_S = LIVE_S / 3
RIGHTS_S = 60.0
GAP = b'{"type": "stream.gap", "run": null, "agent": null, "snapshot": null}'


def check(topic: TopicId) -> None:
    """Raise InvalidInputError for another topic, and UnsupportedError where frames are in the database."""
    if topic.type != STREAM:
        raise InvalidInputError(f"the topic must be {STREAM}/<agent key>, not {topic}; name a run", field="topic")
    if isinstance(get_buffer(), DatabaseBuffer):
        raise UnsupportedError(f"{topic} of all runs needs Valkey or Redis (RAVI['STREAM_URL']); add run=<id of a run>")


async def live(topic: TopicId, user: Any = None, *, lost: bool = False) -> AsyncGenerator[dict[str, Any]]:
    """The topic's frames from now on, of runs that `user` may see; None: of all. Begins with a gap if some are `lost`.
    The rights are read once a run and RIGHTS_S."""
    check(topic)
    buffer: Any = get_buffer()
    name, waiting, renewed = buffer.live(topic), _Waiting(), 0.0
    sights: dict[str, tuple[float, bool | None]] = {}  # until when, and what `_sight` has found
    if lost:
        waiting.take(GAP)
    async with buffer.watch(name, RENEW_S, waiting.take) as hints:
        while True:
            if (present := time.monotonic()) >= renewed + RENEW_S:
                await readers().call(buffer.ask_live, name)
                if 0 < renewed <= present - LIVE_S:  # a slow client: nothing was published meanwhile
                    waiting.take(GAP)
                renewed = present
            if not waiting.bodies:
                await anext(hints)
                continue
            waiting.size -= len(body := waiting.bodies.popleft())
            frame = from_json(body)
            if user is None or (run := frame["run"]) is None:
                yield frame
                continue
            if run not in sights or sights[run][0] <= present:
                sights = {key: sight for key, sight in sights.items() if sight[0] > present}
                sights[run] = present + RIGHTS_S, await readers().call(_sight, user.pk, UUID(run))
            if (whole := sights[run][1]) is not None:
                yield frame if whole else hidden.frame(frame)


class _Waiting:
    """The frames that a reader has not taken; at most MAX_UNREAD_BYTES bytes of them."""

    def __init__(self) -> None:
        self.bodies: deque[bytes] = deque()
        self.size = 0
        self._any = False

    def take(self, data: bytes | int) -> None:
        """A published frame, or the confirmation of a subscription: one behind a frame follows a lost connection."""
        if isinstance(data, int):
            if not self._any:
                return
            data = GAP
        self._any = True
        self.bodies.append(data)
        self.size += len(data)
        if self.size > MAX_UNREAD_BYTES:
            self.bodies, self.size = deque([GAP]), len(GAP)


def _sight(pk: Any, run: UUID) -> bool | None:
    user = get_user_model()._default_manager.using(alias()).filter(pk=pk).first()
    if user is None or not user.is_active or not Run.objects.for_user(user).filter(id=run).exists():
        return None
    return hidden.sees(user)
