"""What both buses promise, and what happens to an event that a handler fails with."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ravi_django.kernel import Event
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.event_types import event_undelivered
from ravi_django.kernel.secrets import refuse_secrets

log = logging.getLogger("ravi.bus")

EVENTS = "events"  # the topic of all events of the runtime: one stream a site, in the order of their commits
DEAD = ".dead"  # behind a topic's name: where the events lie that a handler has failed with for good
TRIES = 5
RETRY_S = 0.2  # before the second try; doubles
HANDLER_S = 30.0  # a handler that takes longer has failed
RETRYING = 100  # events of a subscription that are tried again at once; then it waits for them
NOT_YET_S = (0.5, 10.0)  # before an event that there was no room for comes again: doubling, from and to

Handler = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Relayed:
    """What did not go out of a relay's events, by their place among them."""

    refused: dict[int, str] = field(default_factory=dict)  # for a fault of the event's or its topic's, and which
    left: frozenset[int] = frozenset()  # for none of theirs
    error: Exception | None = None  # why they are left, when something is wrong


class NotYet(Exception):
    """Of a handler: it has no room for the event now. It is called with it again a little later, and with none behind
    it till then, however long that is: this is no failure."""


class Delivered(Event):
    """An event as it comes from a topic."""

    position: str  # in its topic: `stream(topic, after=position)` goes on behind it


class Bus(ABC):
    """An EventPublisher and EventSubscriber (`ravi_django.kernel`).

    Events may come twice, with the same id. Those of one run come in their order, as long as no handler fails.
    """

    async def publish(self, event: Event, topic: str = EVENTS) -> None:
        """Send an event at once. What tells of a change in the database is told with `enqueue`, in its transaction.

        Raises SecretRefusedError, and what the server's connection raises.
        """
        refuse_secrets(event.data, "data")
        await self._publish(event, topic)

    @abstractmethod
    async def _publish(self, event: Event, topic: str) -> None: ...

    @abstractmethod
    def relay(self, events: Sequence[tuple[str, Event]]) -> Relayed:
        """Send (topic, event) pairs in their order, from any thread. One that is refused keeps back no other. Raises
        what the server's connection raises; some may have gone out then."""

    @abstractmethod
    async def subscribe(
        self, topic: str, handler: Handler, *, types: str = "*", group: str | None = None, after: str | None = None
    ) -> str:
        """Have `handler` called with the topic's events of these `types` ("run.*"), one at a time, on this event loop,
        until `unsubscribe` or the loop's end. Returns the subscription's id.

        Without a `group` it gets what comes from now on, or behind the position `after`, as long as this process lives.
        The subscriptions of a group share its events among them: each goes to one, and is done with once the handler
        has returned; what a dead process has left goes to another. A group that is new begins now, or behind `after`
        ("0": with all that is kept).

        An event that the handler raises for is tried again beside those behind it, five times in all; then it goes to
        the topic `<topic>.dead` as `event.undelivered`. `NotYet` is no such failure: everything waits.
        """

    @abstractmethod
    async def unsubscribe(self, id: str) -> None:
        """End a subscription; one that is unknown has ended. A group's events that are not done with go to others."""

    @abstractmethod
    def stream(self, topic: str = EVENTS, *, after: str | None = None, types: str = "*") -> AsyncIterator[Delivered]:
        """The topic's events of these types from now on, or behind the position `after` ("0": all that is kept)."""

    @abstractmethod
    def history(self, topic: str = EVENTS, *, after: str = "0", types: str = "*") -> AsyncIterator[Delivered]:
        """What is kept behind a position, to its present end."""

    @abstractmethod
    async def close(self) -> None:
        """End this event loop's subscriptions and connections."""


class Handling:
    """One subscription's handler: called in order, and again for what it has failed with."""

    def __init__(self, bus: Bus, topic: str, handler: Handler, types: str, name: str) -> None:
        self._bus, self._topic, self._handler, self._types, self.name = bus, topic, handler, types, name
        self._room = asyncio.Semaphore(RETRYING)
        self._again: set[asyncio.Task[None]] = set()
        self.without_room: set[str] = set()  # positions of events that the handler does not take yet

    async def handle(self, event: Delivered, done: Callable[[], Awaitable[object]]) -> None:
        """Call the handler, and `done` when that is over for good. The first try is over when this returns."""
        if not fnmatchcase(event.type, self._types) or (error := await self._try(event)) is None:
            await done()
        else:
            await self._room.acquire()
            task = asyncio.create_task(self._retry(event, error, done))
            self._again.add(task)
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._again.discard(task)
        self._room.release()

    async def _retry(self, event: Delivered, error: BaseException, done: Callable[[], Awaitable[object]]) -> None:
        try:
            for tries in range(1, TRIES):
                await asyncio.sleep(RETRY_S * 2 ** (tries - 1))
                if (failed := await self._try(event)) is None:
                    break
                error = failed
            else:
                await self.bury(event, TRIES, f"{type(error).__name__}: {error}")
            await done()
        except Exception as lost:
            # A group's goes to another later on; anybody else's is in the topic still.
            log.warning("%s: event %s is left: %s", self.name, event.id, lost, extra={"action": "bus.left"})

    async def bury(self, event: Delivered, tries: int, error: str) -> None:
        log.error(
            "%s: event %s (%s) goes to %s after %d tries: %s",
            *(self.name, event.id, event.type, self._topic + DEAD, tries, error),
            extra={"action": "bus.undelivered"},
        )
        if not self._topic.endswith(DEAD):  # what fails with those, too, would go round for ever
            dead = event_undelivered(event, topic=self._topic, handler=self.name, tries=tries, error=error)
            await self._bus._publish(dead, self._topic + DEAD)

    async def _try(self, event: Delivered) -> BaseException | None:
        me = asyncio.current_task()
        pause, most = NOT_YET_S
        try:
            while not await self._has_taken(event):
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
        except asyncio.CancelledError as error:  # not ours, when nobody cancels this task
            if me is not None and me.cancelling():
                raise
            return error
        except Exception as error:
            log.warning("%s: event %s: %r", self.name, event.id, error, extra={"action": "bus.handler_failed"})
            return error
        finally:
            self.without_room.discard(event.position)
        return None

    async def _has_taken(self, event: Delivered) -> bool:
        try:
            async with asyncio.timeout(HANDLER_S):
                await self._handler(event)
        except NotYet as why:
            self.without_room.add(event.position)
            log.debug("%s: event %s waits: %s", self.name, event.id, why)
            return False
        return True

    async def end(self) -> None:
        for task in list(self._again):
            task.cancel()
        await asyncio.gather(*self._again, return_exceptions=True)


def name_of(handler: Handler, group: str | None) -> str:
    """For logs, and the events that it fails with."""
    return group or str(getattr(handler, "__qualname__", type(handler).__name__))


def check_topic(topic: str) -> str:
    return check_text("topic", topic, 200)
