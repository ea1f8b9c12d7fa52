"""Streams of Valkey or Redis: events as their entries, and a consumer of a group."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import Any
from uuid import uuid4

import redis
import redis.asyncio
from pydantic import ValidationError

from ravi_django.kernel import Event
from ravi_django.wings.events.bus import TRIES, Delivered, Handling, delivered

log = logging.getLogger("ravi.bus")

BLOCK_S = 2.0  # how long a read waits for an entry
FEW = 10  # events of one read: another consumer could handle those that wait behind a slow handler
CLAIM_S = 60.0  # an event that its consumer has not renewed for so long goes to another consumer
FORGET_S = 3600.0  # a consumer that was idle for so long, and holds nothing, is deleted
_MOST_HELD = 10 * FEW
_BODY = b"e"

Rows = list[tuple[bytes, dict[bytes, bytes]]]


def key_of(topic: str) -> str:
    return f"ravi:bus:{topic}"


def fields_of(event: Event) -> dict[Any, Any]:
    return {_BODY: event.model_dump_json(include=set(Event.model_fields))}


def rows_of(reply: Any) -> Rows:
    """The entries of the one stream that was read. redis-py returns a list or a dict, depending on its protocol."""
    if not reply:
        return []
    if isinstance(reply, dict):
        (rows,) = reply.values()
        return rows[0] if rows and isinstance(rows[0], list) else rows
    return reply[0][1]  # type: ignore[no-any-return]


def event_of(entry: bytes, fields: dict[bytes, bytes] | None) -> Delivered | None:
    """None for an entry that is not an event: another program wrote to the key, or the entry was trimmed."""
    try:
        event = Event.model_validate_json((fields or {})[_BODY])
    except (KeyError, ValidationError) as error:
        log.warning("entry %s of the event bus is no event: %s", entry, error, extra={"action": "bus.no_event"})
        return None
    return delivered(event, entry.decode())


class Member:
    """A consumer of a group. The server remembers its events until they are acknowledged.

    It renews the events that it holds, so a slow handler loses none to another consumer. Every delivery of an event
    after the first therefore means a consumer that died with it.
    """

    def __init__(self, client: redis.asyncio.Redis, key: str, group: str, handling: Handling, claim_s: float) -> None:
        self._client, self._key, self._group, self._handling = client, key, group, handling
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"
        self._claim_s = claim_s
        self._claim_at = 0.0
        self._held: set[bytes] = set()  # delivered to us, and not acknowledged

    async def join(self, after: str) -> None:
        try:
            await self._client.xgroup_create(self._key, self._group, id=after, mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        for consumer in await self._client.xinfo_consumers(self._key, self._group):
            if not consumer["pending"] and consumer["idle"] > FORGET_S * 1000:
                await self._client.xgroup_delconsumer(self._key, self._group, consumer["name"])

    async def once(self) -> None:
        try:
            if time.monotonic() >= self._claim_at:
                await self._claim()
                self._claim_at = time.monotonic() + self._claim_s / 4
            wait = min(BLOCK_S, self._claim_s / 4)
            reply = await self._client.xreadgroup(
                self._group, self._name, {self._key: ">"}, count=FEW, block=int(wait * 1000)
            )
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self.join("0")  # the server has lost its data: all that it has now is new
            return
        except (redis.RedisError, OSError):
            # No consumer could renew: all get the time to do so once the server is back.
            self._claim_at = time.monotonic() + self._claim_s
            raise
        await self._handle(rows_of(reply))

    async def keep(self) -> None:
        """Renew the events that we hold, until cancelled."""
        while True:
            await asyncio.sleep(self._claim_s / 5)
            try:
                await self._renew()
            except (redis.RedisError, OSError) as error:
                log.debug("%s: nothing renewed: %s", self._handling.name, error)

    async def _renew(self) -> None:
        if not (held := set(self._held)):
            return
        pending = await self._client.xpending_range(
            self._key, self._group, min="-", max="+", count=_MOST_HELD, consumername=self._name
        )
        still_held = held & {row["message_id"] for row in pending}
        self._held -= held - still_held  # acknowledged meanwhile, or taken over by a consumer that took us for dead
        if still_held:
            await self._client.xclaim(self._key, self._group, self._name, 0, sorted(still_held), justid=True)
        if idle := [entry for entry in sorted(still_held) if entry.decode() in self._handling.without_room]:
            # A consumer that dies while its handler has no room did not die of the event: count no delivery.
            await self._client.xclaim(self._key, self._group, self._name, 0, idle, retrycount=1, justid=True)

    async def _claim(self) -> None:
        """Take over the events of dead consumers one at a time: the others stay free for consumers with time, and an
        event that is not started counts no delivery."""
        start: Any = "0-0"
        while True:
            start, rows, *_ = await self._client.xautoclaim(
                self._key, self._group, self._name, int(self._claim_s * 1000), start_id=start, count=1
            )
            for entry, fields in [row for row in rows if row[0] not in self._held]:
                await self._take_over(entry, fields)
            if start in (b"0-0", "0-0"):
                return

    async def _take_over(self, entry: bytes, fields: dict[bytes, bytes]) -> None:
        """Handle the event, unless it has killed too many consumers."""
        (pending,) = await self._client.xpending_range(self._key, self._group, min=entry, max=entry, count=1) or [{}]
        deliveries = int(pending.get("times_delivered", 1))
        event = event_of(entry, fields)
        if event is not None and deliveries > TRIES:
            await self._handling.bury(event, deliveries - 1, "its consumers died")
            await self._done(entry)
        else:
            await self._handle([(entry, fields)])

    async def _handle(self, rows: Rows) -> None:
        self._held |= {entry for entry, _ in rows}
        try:
            for entry, fields in rows:
                if entry not in self._held:
                    continue
                if (event := event_of(entry, fields)) is not None:
                    await self._handling.handle(event)
                await self._done(entry)
        except BaseException:
            self._held -= {entry for entry, _ in rows}  # a consumer gets them again
            raise

    async def _done(self, entry: bytes) -> None:
        try:
            await self._client.xack(self._key, self._group, entry)
        finally:
            self._held.discard(entry)
