"""The contract of both buses, and the retries of an event whose handler fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ravi_django.calls.llm.errors import error_text
from ravi_django.kernel import Event
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.event_types import event_undelivered
from ravi_django.kernel.secrets import refuse_secrets

log = logging.getLogger("ravi.bus")

EVENTS = "events"  # the topic of all events of the runtime: one stream a site, in the order of their commits
DEAD = ".dead"  # appended to a topic: the topic of its undeliverable events
TRIES = 5
RETRY_S = 0.2  # before the second try; doubles
HANDLER_S = 30.0  # timeout of a handler
NOT_YET_S = (0.5, 10.0)  # pause after NotYet: doubling, from and to

Handler = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Relayed:
    """The events that a relay did not send, by their index."""

    refused: dict[int, str] = field(default_factory=dict)  # why: a fault of the event or its topic
    left: frozenset[int] = frozenset()  # to be sent later: a fault of neither
    error: Exception | None = None  # why they are left


class NotYet(Exception):
    """Raised by a handler that has no room for the event now. It is called again with this event before any later
    one, for as long as that takes. It does not count as a failure."""


class Delivered(Event):
    """An event as it comes from a topic."""

    position: str  # in its topic: `stream(topic, after=position)` continues after it


def delivered(event: Event, position: str) -> Delivered:
    return Delivered(**{name: getattr(event, name) for name in Event.model_fields}, position=position)


class Bus(ABC):
    """An EventPublisher and EventSubscriber (`ravi_django.kernel`).

    Events may come twice, with the same id. The events of one run come in order.
    """

    async def publish(self, event: Event, topic: str = EVENTS) -> None:
        """Send an event at once. For a change in the database use `enqueue`, in its transaction.

        Raises SecretRefusedError and errors of the server's connection.
        """
        refuse_secrets(event.data, "data")
        await self._publish(event, topic)

    @abstractmethod
    async def _publish(self, event: Event, topic: str) -> None: ...

    @abstractmethod
    def relay(self, events: Sequence[tuple[str, Event]]) -> Relayed:
        """Send (topic, event) pairs in their order, from any thread. A refused one does not hold up the others. Raises
        errors of the server's connection; some events may be sent by then."""

    @abstractmethod
    async def subscribe(
        self, topic: str, handler: Handler, *, types: str = "*", group: str | None = None, after: str | None = None
    ) -> str:
        """Call `handler` with the topic's events of these `types` ("run.*"), one at a time, on this event loop, until
        `unsubscribe` or the end of the loop. Returns the subscription's id.

        Without a `group` the handler gets the events from now on, or after the position `after`, while this process
        lives. The subscriptions of a group share its events: each event goes to one of them, and is done once the
        handler has returned; events of a dead process go to another. A new group begins now, or after `after` ("0":
        with all that is kept).

        A handler that raises is called again with the event, five times in all. Then the event goes to the topic
        `<topic>.dead` as `event.undelivered`. `NotYet` is not a failure. Later events wait meanwhile.
        """

    @abstractmethod
    async def unsubscribe(self, id: str) -> None:
        """End a subscription. Unknown ids are ignored. A group's unfinished events go to its other subscriptions."""

    @abstractmethod
    def stream(self, topic: str = EVENTS, *, after: str | None = None, types: str = "*") -> AsyncIterator[Delivered]:
        """The topic's events of these types from now on, or after the position `after` ("0": all that is kept)."""

    @abstractmethod
    def history(self, topic: str = EVENTS, *, after: str = "0", types: str = "*") -> AsyncIterator[Delivered]:
        """The kept events after a position, up to now."""

    @abstractmethod
    async def close(self) -> None:
        """End this event loop's subscriptions and connections."""


class Handling:
    """One subscription's handler: called with one event after the other, and again after a failure."""

    def __init__(self, bus: Bus, topic: str, handler: Handler, types: str, name: str) -> None:
        self._bus, self._topic, self._handler, self._types, self.name = bus, topic, handler, types, name
        self.without_room: set[str] = set()  # positions of events that the handler does not take yet

    async def handle(self, event: Delivered) -> None:
        """Returns when the handler has succeeded, or the event was given up."""
        tries = 0
        while fnmatchcase(event.type, self._types) and (error := await self._try(event)) is not None:
            tries += 1
            if tries == TRIES:
                return await self.bury(event, tries, error_text(error))
            await asyncio.sleep(RETRY_S * 2 ** (tries - 1))

    async def bury(self, event: Delivered, tries: int, error: str) -> None:
        log.error(
            "%s: event %s (%s) goes to %s after %d tries: %s",
            *(self.name, event.id, event.type, self._topic + DEAD, tries, error),
            extra={"action": "bus.undelivered"},
        )
        if not self._topic.endswith(DEAD):  # else one that fails again would be published again and again
            dead = event_undelivered(event, topic=self._topic, handler=self.name, tries=tries, error=error)
            await self._bus._publish(dead, self._topic + DEAD)

    async def _try(self, event: Delivered) -> BaseException | None:
        me = asyncio.current_task()
        pause, most = NOT_YET_S
        try:
            while not await self._has_taken(event):
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
        except asyncio.CancelledError as error:  # the handler's own, unless this task is cancelled
            if me is not None and me.cancelling():
                raise
            return error
        except Exception as error:
            log.warning(
                "%s: event %s: %s", self.name, event.id, error_text(error), extra={"action": "bus.handler_failed"}
            )
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


def name_of(handler: Handler, group: str | None) -> str:
    """For logs and `event.undelivered`."""
    return group or str(getattr(handler, "__qualname__", type(handler).__name__))


def check_topic(topic: str) -> str:
    return check_text("topic", topic, 200)


async def end_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; a task of another loop is only asked to end."""
    if loop is not asyncio.get_running_loop():
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
