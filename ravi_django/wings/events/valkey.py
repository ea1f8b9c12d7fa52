"""The bus over streams of Valkey or Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ravi_django.conf import conf
from ravi_django.kernel import Event
from ravi_django.wings.events import bus
from ravi_django.wings.events.bus import EVENTS, Bus, Delivered, Handler, Handling, Relayed, check_topic
from ravi_django.wings.events.group import BLOCK_S, CLAIM_S, Member, Rows, event_of, fields_of, key_of, rows_of

log = logging.getLogger("ravi.bus")

BATCH = 50  # events of one read without a group
PAUSES = (0.1, 5.0)  # seconds between tries while the server is away: doubling, from and to


class ValkeyBus(Bus):
    """Events in streams of Redis or Valkey, for all processes."""

    def __init__(self, url: str, *, claim_s: float = CLAIM_S) -> None:
        self._url, self._claim_s = url, claim_s
        self._sync = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = WeakKeyDictionary()
        self._tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}

    @property
    def _client(self) -> redis.asyncio.Redis:
        """The client of this event loop, with a pool of connections."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = redis.asyncio.from_url(
                self._url,
                socket_connect_timeout=2,
                socket_timeout=BLOCK_S + 5,
                health_check_interval=15,
                retry=Retry(NoBackoff(), 1),  # a pooled connection may be closed: try once with a new one
                retry_on_error=[redis.ConnectionError, redis.TimeoutError],  # redis-py 5 repeats no other way
            )
        return self._clients[loop]

    async def _publish(self, event: Event, topic: str) -> None:
        await self._client.xadd(key_of(topic), fields_of(event), maxlen=int(conf.EVENT_MAXLEN), approximate=True)

    def relay(self, events: Sequence[tuple[str, Event]]) -> Relayed:
        try:
            return _relayed(self._send(events))
        except redis.ConnectionError:
            # A server closes the connection on an event that is too large: send each alone to find it.
            self._sync.ping()
            return _relayed([self._send_alone(topic, event) for topic, event in events])

    def _send(self, events: Sequence[tuple[str, Event]]) -> list[Any]:
        pipe = self._sync.pipeline(transaction=False)
        for topic, event in events:
            pipe.xadd(key_of(topic), fields_of(event), maxlen=int(conf.EVENT_MAXLEN), approximate=True)
        return list(pipe.execute(raise_on_error=False))

    def _send_alone(self, topic: str, event: Event) -> Any:
        try:
            return self._send([(topic, event)])[0]
        except redis.ConnectionError as error:
            self._sync.ping()
            return redis.ResponseError(f"the server hangs up: {error}")

    async def subscribe(
        self, topic: str, handler: Handler, *, types: str = "*", group: str | None = None, after: str | None = None
    ) -> str:
        """See `Bus.subscribe`. Raises redis.RedisError when the server is away now; later it waits for the server."""
        key = key_of(check_topic(topic))
        handling = Handling(self, topic, handler, types, bus.name_of(handler, group))
        reader: _Reading | Member
        if group is None:
            last = after if after is not None else await self._end_of(key)
            reader = _Reading(self._client, key, last, handling)
        else:
            reader = Member(self._client, key, group, handling, self._claim_s)
            await reader.join(after or "$")
        id = uuid4().hex
        task = asyncio.create_task(_for_ever(reader, handling), name=f"ravi-bus-{id}")
        self._tasks[id] = asyncio.get_running_loop(), task
        return id

    async def unsubscribe(self, id: str) -> None:
        if (known := self._tasks.pop(id, None)) is not None:
            await bus.end_task(*known)

    async def stream(
        self, topic: str = EVENTS, *, after: str | None = None, types: str = "*"
    ) -> AsyncIterator[Delivered]:
        key, pause = key_of(check_topic(topic)), PAUSES[0]
        last = after
        while True:
            try:
                last = last if last is not None else await self._end_of(key)
                rows = await _read(self._client, key, last)
            except (redis.RedisError, OSError) as error:
                _check_cancelled()
                pause = await _rest(pause, topic, error)
                continue
            _check_cancelled()
            pause = PAUSES[0]
            for entry, fields in rows:
                last = entry.decode()
                event = event_of(entry, fields)
                if event is not None and fnmatchcase(event.type, types):
                    yield event

    async def history(self, topic: str = EVENTS, *, after: str = "0", types: str = "*") -> AsyncIterator[Delivered]:
        key, last = key_of(check_topic(topic)), after
        while rows := await self._client.xrange(key, min=f"({last}" if last != "0" else "-", count=1000):
            for entry, fields in rows:
                event = event_of(entry, fields)
                if event is not None and fnmatchcase(event.type, types):
                    yield event
            last = rows[-1][0].decode()

    async def _end_of(self, key: str) -> str:
        rows: Rows = await self._client.xrevrange(key, count=1)
        return rows[0][0].decode() if rows else "0-0"

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        for id in [id for id, (loop, _) in self._tasks.items() if loop is here]:
            await self.unsubscribe(id)
        if (client := self._clients.pop(here, None)) is not None:
            await client.aclose()


async def _for_ever(reader: _Reading | Member, handling: Handling) -> None:
    """Read until cancelled."""
    pause = PAUSES[0]
    keeping = asyncio.ensure_future(reader.keep())
    try:
        while True:
            try:
                await reader.once()
                pause = PAUSES[0]
            except (redis.RedisError, OSError) as error:
                _check_cancelled()
                pause = await _rest(pause, handling.name, error)
            _check_cancelled()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def _check_cancelled() -> None:
    """redis-py can swallow a cancellation."""
    me = asyncio.current_task()
    if me is not None and me.cancelling():
        raise asyncio.CancelledError


async def _rest(pause: float, name: str, error: Exception) -> float:
    """Returns the next pause."""
    log.warning("%s: the event bus is away: %s", name, error, extra={"action": "bus.away"})
    await asyncio.sleep(pause)
    return min(pause * 2, PAUSES[1])


@dataclass(slots=True)
class _Reading:
    """A subscription without a group: it remembers its position itself."""

    client: redis.asyncio.Redis
    key: str
    last: str
    handling: Handling

    async def once(self) -> None:
        for entry, fields in await _read(self.client, self.key, self.last):
            self.last = entry.decode()
            if (event := event_of(entry, fields)) is not None:
                await self.handling.handle(event)

    async def keep(self) -> None:
        """Without a group there is nothing to renew or acknowledge."""


async def _read(client: redis.asyncio.Redis, key: str, after: str) -> Rows:
    return rows_of(await client.xread({key: after}, count=BATCH, block=int(BLOCK_S * 1000)))


# Errors of the server's own state, whatever the event.
_AWAY = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,  # and a lost master
    redis.exceptions.TryAgainError,
)
_AWAY_WORDS = ("MISCONF", "NOREPLICAS", "BUSY ")


def _relayed(results: Sequence[Any]) -> Relayed:
    wrong = {index: result for index, result in enumerate(results) if isinstance(result, Exception)}
    away = {index: error for index, error in wrong.items() if _is_away(error)}
    return Relayed(
        refused={index: str(error) for index, error in wrong.items() if index not in away},
        left=frozenset(away),
        error=next(iter(away.values()), None),
    )


def _is_away(error: Exception) -> bool:
    return isinstance(error, _AWAY) or str(error).startswith(_AWAY_WORDS)
