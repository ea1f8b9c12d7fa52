"""The bus inside one process, for sites of one process and for tests. It keeps nothing after the process ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from uuid import uuid4

from ravi_django.conf import conf
from ravi_django.kernel import Event
from ravi_django.runtime.events import bus
from ravi_django.runtime.events.bus import EVENTS, Bus, Delivered, Handler, Handling, Relayed, check_topic
from ravi_django.runtime.journal.outbox import events_written

log = logging.getLogger("ravi.bus")

KEPT = 1000  # events of a topic (or EVENT_MAXLEN, if that is fewer), and unread events of a reader


@dataclass(slots=True, eq=False)
class _Backlog:
    """The unread events of one reader or group, at most KEPT. When it is full, relayed events for a subscription wait
    in the outbox; events that were published directly, and those for `stream()`, push out the oldest."""

    topic: str
    name: str
    group: str | None = None
    keeps_back: bool = True
    due: deque[Delivered] = field(default_factory=deque)
    dropped: int = 0

    def add(self, event: Delivered) -> None:
        self.due.append(event)
        if len(self.due) > KEPT:
            self.due.popleft()
            if self.dropped % KEPT == 0:
                log.warning("%s is too slow for topic %s: events are dropped", self.name, self.topic)
            self.dropped += 1

    def give_back(self, events: Iterable[Delivered]) -> None:
        self.due = deque(sorted([*events, *self.due], key=lambda event: int(event.position)))


@dataclass(slots=True, eq=False)
class _Reader:
    """A reader of a backlog, and its event loop."""

    backlog: _Backlog
    loop: asyncio.AbstractEventLoop
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    open: dict[str, Delivered] = field(default_factory=dict)  # of a group, by position: read and not done
    task: asyncio.Task[None] | None = None


class MemoryBus(Bus):
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._count = 0
        self._kept: dict[str, deque[Delivered]] = defaultdict(lambda: deque(maxlen=min(KEPT, int(conf.EVENT_MAXLEN))))
        self._readers: dict[str, _Reader] = {}  # by subscription
        self._groups: dict[tuple[str, str], _Backlog] = {}
        self._keeps_back = False  # events wait in the outbox for room

    async def _publish(self, event: Event, topic: str) -> None:
        with self._lock:
            self._take(event, check_topic(topic))

    def relay(self, events: Sequence[tuple[str, Event]]) -> Relayed:
        with self._lock:
            full, left = {reader.backlog.topic for reader in self._readers.values() if self._is_full(reader)}, set()
            for place, (topic, event) in enumerate(events):
                if topic in full:
                    left.add(place)
                else:
                    self._take(event, check_topic(topic))
                    full |= {reader.backlog.topic for reader in self._of(topic) if self._is_full(reader)}
            self._keeps_back = self._keeps_back or bool(left)
            return Relayed(left=frozenset(left))

    def _take(self, event: Event, topic: str) -> None:
        self._count += 1
        given = bus.delivered(event, str(self._count))
        self._kept[topic].append(given)
        readers = self._of(topic)
        alone = {id(reader.backlog): reader.backlog for reader in readers if reader.backlog.group is None}
        groups = [backlog for place, backlog in self._groups.items() if place[0] == topic]
        for backlog in [*alone.values(), *groups]:
            backlog.add(given)
        for reader in readers:
            with suppress(RuntimeError):  # its loop has ended since
                reader.loop.call_soon_threadsafe(reader.wake.set)

    def _of(self, topic: str) -> list[_Reader]:
        """The topic's readers. Readers whose loop has ended leave first."""
        for reader in [reader for reader in self._readers.values() if reader.loop.is_closed()]:
            self._leave(reader)
        return [reader for reader in self._readers.values() if reader.backlog.topic == topic]

    @staticmethod
    def _is_full(reader: _Reader, part: int = 1) -> bool:
        return reader.backlog.keeps_back and len(reader.backlog.due) >= KEPT // part and not reader.loop.is_closed()

    def _leave(self, reader: _Reader) -> None:
        for id in [id for id, other in self._readers.items() if other is reader]:
            del self._readers[id]
        if reader.backlog.group is not None:
            reader.backlog.give_back(reader.open.values())
            reader.open = {}
            for other in [other for other in self._readers.values() if other.backlog is reader.backlog]:
                with suppress(RuntimeError):
                    other.loop.call_soon_threadsafe(other.wake.set)
        self._has_room()

    def _has_room(self) -> None:
        """Continue the relay of the outbox once the readers that held it up have read half."""
        if self._keeps_back and not any(self._is_full(reader, 2) for reader in self._readers.values()):
            self._keeps_back = False
            events_written.send(None)

    async def subscribe(
        self, topic: str, handler: Handler, *, types: str = "*", group: str | None = None, after: str | None = None
    ) -> str:
        id, name, topic = uuid4().hex, bus.name_of(handler, group), check_topic(topic)
        with self._lock:
            backlog = self._groups.get((topic, group)) if group is not None else None
            if backlog is None:
                backlog = _Backlog(topic, name, group, due=self._behind(topic, after))
            if group is not None:
                self._groups[topic, group] = backlog
            reader = self._readers[id] = _Reader(backlog, asyncio.get_running_loop())
        handling = Handling(self, topic, handler, types, name)
        reader.task = asyncio.create_task(self._read(reader, handling), name=f"ravi-bus-{id}")
        return id

    def _behind(self, topic: str, after: str | None) -> deque[Delivered]:
        if after is None:
            return deque()
        return deque(event for event in self._kept[topic] if int(event.position) > int(after))

    async def _next(self, reader: _Reader) -> Delivered:
        while True:
            reader.wake.clear()
            with self._lock:
                if reader.backlog.due:
                    event = reader.backlog.due.popleft()
                    if reader.backlog.group is not None:
                        reader.open[event.position] = event
                    self._has_room()
                    return event
            await reader.wake.wait()

    async def _read(self, reader: _Reader, handling: Handling) -> None:
        try:
            while True:
                event = await self._next(reader)
                await handling.handle(event, self._done(reader, event))
                await asyncio.sleep(0)  # other tasks get their turn even if the handler awaits nothing
        finally:
            await handling.end()

    def _done(self, reader: _Reader, event: Delivered) -> Callable[[], Awaitable[None]]:
        async def done() -> None:
            with self._lock:
                reader.open.pop(event.position, None)

        return done

    async def unsubscribe(self, id: str) -> None:
        with self._lock:
            reader = self._readers.get(id)
        if reader is None:
            return
        if reader.task is not None:
            await bus.end_task(reader.loop, reader.task)
        with self._lock:
            self._leave(reader)

    async def stream(
        self, topic: str = EVENTS, *, after: str | None = None, types: str = "*"
    ) -> AsyncIterator[Delivered]:
        id = uuid4().hex
        with self._lock:
            backlog = _Backlog(check_topic(topic), f"stream {id}", keeps_back=False, due=self._behind(topic, after))
            reader = self._readers[id] = _Reader(backlog, asyncio.get_running_loop())
        try:
            while True:
                event = await self._next(reader)
                if fnmatchcase(event.type, types):
                    yield event
        finally:
            with self._lock:
                self._readers.pop(id, None)

    async def history(self, topic: str = EVENTS, *, after: str = "0", types: str = "*") -> AsyncIterator[Delivered]:
        with self._lock:
            found = self._behind(topic, after)
        for event in found:
            if fnmatchcase(event.type, types):
                yield event

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for id in [id for id, reader in self._readers.items() if reader.loop is loop]:
            await self.unsubscribe(id)
