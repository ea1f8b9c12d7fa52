"""The bus inside one process, for sites of one process and for tests. It keeps nothing after the process ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from uuid import uuid4

from ravi_django.conf import conf
from ravi_django.kernel import Event
from ravi_django.wings.events import bus
from ravi_django.wings.events.bus import EVENTS, Bus, Delivered, Handler, Handling, Relayed, check_topic

log = logging.getLogger("ravi.bus")

MOST = 10_000  # events of a topic (or EVENT_MAXLEN, if that is fewer); a reader that is further behind loses the oldest


@dataclass(slots=True, eq=False)
class _Cursor:
    """The position of a reader in its topic. A group shares one."""

    topic: str
    name: str
    last: int
    again: deque[Delivered] = field(default_factory=deque)  # their subscription ended before the handler returned


class MemoryBus(Bus):
    """Events of this process, for its own subscribers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # of all events, by topic: the position of the newest
        self._logs: dict[str, deque[Delivered]] = defaultdict(lambda: deque(maxlen=min(MOST, int(conf.EVENT_MAXLEN))))
        self._groups: dict[tuple[str, str], _Cursor] = {}
        self._tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}  # readers without a new event

    async def _publish(self, event: Event, topic: str) -> None:
        self.relay([(topic, event)])

    def relay(self, events: Sequence[tuple[str, Event]]) -> Relayed:
        with self._lock:
            for topic, event in events:
                self._counts[check_topic(topic)] += 1
                self._logs[topic].append(bus.delivered(event, str(self._counts[topic])))
        self._wake()
        return Relayed()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for wake, loop in waiting.items():
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(wake.set)

    def _cursor(self, topic: str, name: str, after: str | None) -> _Cursor:
        return _Cursor(check_topic(topic), name, self._counts[topic] if after is None else int(after))

    async def subscribe(
        self, topic: str, handler: Handler, *, types: str = "*", group: str | None = None, after: str | None = None
    ) -> str:
        name = bus.name_of(handler, group)
        with self._lock:
            cursor = self._cursor(topic, name, after)
            if group is not None:
                cursor = self._groups.setdefault((topic, group), cursor)
        id, handling = uuid4().hex, Handling(self, topic, handler, types, name)
        task = asyncio.create_task(self._read(cursor, handling), name=f"ravi-bus-{id}")
        self._tasks[id] = asyncio.get_running_loop(), task
        return id

    async def _read(self, cursor: _Cursor, handling: Handling) -> None:
        while True:
            event = await self._next(cursor)
            try:
                await handling.handle(event)
            except asyncio.CancelledError:
                cursor.again.append(event)
                self._wake()
                raise
            await asyncio.sleep(0)  # other tasks get their turn even if the handler awaits nothing

    async def _next(self, cursor: _Cursor) -> Delivered:
        while True:
            wake = asyncio.Event()
            with self._lock:
                if (event := self._take(cursor)) is not None:
                    return event
                self._waiting[wake] = asyncio.get_running_loop()
            try:
                await wake.wait()
            finally:
                self._waiting.pop(wake, None)

    def _take(self, cursor: _Cursor) -> Delivered | None:
        if cursor.again:
            return cursor.again.popleft()
        events, newest = self._logs[cursor.topic], self._counts[cursor.topic]
        oldest = newest - len(events) + 1
        if cursor.last >= newest:
            return None
        if cursor.last + 1 < oldest:
            lost = oldest - cursor.last - 1
            log.warning("%s is too slow for topic %s: %d events are dropped", cursor.name, cursor.topic, lost)
        cursor.last = max(cursor.last + 1, oldest)
        return events[cursor.last - oldest]

    async def unsubscribe(self, id: str) -> None:
        if (known := self._tasks.pop(id, None)) is not None:
            await bus.end_task(*known)

    async def stream(
        self, topic: str = EVENTS, *, after: str | None = None, types: str = "*"
    ) -> AsyncIterator[Delivered]:
        cursor = self._cursor(topic, "a stream", after)
        while True:
            event = await self._next(cursor)
            if fnmatchcase(event.type, types):
                yield event

    async def history(self, topic: str = EVENTS, *, after: str = "0", types: str = "*") -> AsyncIterator[Delivered]:
        with self._lock:
            events = list(self._logs[check_topic(topic)])
        for event in events:
            if int(event.position) > int(after) and fnmatchcase(event.type, types):
                yield event

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        for id in [id for id, (loop, _) in self._tasks.items() if loop is here]:
            await self.unsubscribe(id)
