"""A consumer of a group on Valkey or Redis: what it holds, and what dead ones have left to it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from functools import partial
from typing import Any
from uuid import uuid4

import redis
import redis.asyncio

from ravi_django.runtime.events.bus import RETRYING, TRIES, Handling
from ravi_django.runtime.events.entries import Rows, event_of, rows_of

log = logging.getLogger("ravi.bus")

BLOCK_S = 2.0  # a read waits so long for something to come
FEW = 10  # events of one read: what waits behind a slow handler could be another's
CLAIM_S = 60.0  # who has not said for so long that it is at an event still is dead: the event goes to another
FORGET_S = 3600.0  # a consumer that has not been seen for so long, and holds nothing, is struck off
_MOST_HELD = 10 * (FEW + RETRYING)


class Member:
    """The server remembers what it was given, until it says that this is done with. While it is at an event it says so
    every now and then: however slow a handler is, nobody takes an event from who lives. So what the server counts as
    deliveries of an event are, but for the first, consumers that have died with it."""

    def __init__(self, client: redis.asyncio.Redis, key: str, group: str, handling: Handling, claim_s: float) -> None:
        self._client, self._key, self._group, self._handling = client, key, group, handling
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"
        self._claim_s = claim_s
        self._claim_at = 0.0
        self._held: set[bytes] = set()  # given to us, and not done with

    async def join(self, after: str) -> None:
        try:
            await self._client.xgroup_create(self._key, self._group, id=after, mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        now = FORGET_S * 1000
        for consumer in await self._client.xinfo_consumers(self._key, self._group):
            if not consumer["pending"] and consumer["idle"] > now:
                await self._client.xgroup_delconsumer(self._key, self._group, consumer["name"])

    async def once(self) -> None:
        try:
            if time.monotonic() >= self._claim_at:
                await self._claim()
                self._claim_at = time.monotonic() + self._claim_s / 4
            wait = min(BLOCK_S, self._claim_s / 4)
            found = await self._client.xreadgroup(
                self._group, self._name, {self._key: ">"}, count=FEW, block=int(wait * 1000)
            )
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self.join("0")  # the server has lost its memory: what is there now is all new
            return
        except (redis.RedisError, OSError):
            # Nobody could say that it lives: everybody does first, once the server is there again.
            self._claim_at = time.monotonic() + self._claim_s
            raise
        await self._handle(rows_of(found))

    # --------------------------------------------------------------------------------------------------- holding

    async def keep(self) -> None:
        """Say until cancelled that what we hold is held."""
        while True:
            await asyncio.sleep(self._claim_s / 5)
            try:
                await self._renew()
            except (redis.RedisError, OSError) as error:
                log.debug("%s: nothing renewed: %s", self._handling.name, error)

    async def _renew(self) -> None:
        held = set(self._held)
        if not held:
            return
        mine = await self._client.xpending_range(
            self._key, self._group, min="-", max="+", count=_MOST_HELD, consumername=self._name
        )
        own = held & {row["message_id"] for row in mine}
        self._held -= held - own  # done with meanwhile; or another's, who took us for dead, and does them now
        if own:
            await self._client.xclaim(self._key, self._group, self._name, 0, sorted(own), justid=True)
        if idle := [place for place in sorted(own) if place.decode() in self._handling.without_room]:
            # Who dies while there is no room has not died of the event: that it was begun does not count.
            await self._client.xclaim(self._key, self._group, self._name, 0, idle, retrycount=1, justid=True)

    async def _claim(self) -> None:
        """Take what the dead have left, one at a time: the others are for whoever has time, and what is not begun is
        not counted as a try."""
        start: Any = "0-0"
        while True:
            start, rows, *_ = await self._client.xautoclaim(
                self._key, self._group, self._name, int(self._claim_s * 1000), start_id=start, count=1
            )
            for place, fields in [row for row in rows if row[0] not in self._held]:
                await self._take_over(place, fields)
            if start in (b"0-0", "0-0"):
                return

    async def _take_over(self, place: bytes, fields: dict[bytes, bytes]) -> None:
        """One that has taken its consumers down with it is not tried for ever."""
        (pending,) = await self._client.xpending_range(self._key, self._group, min=place, max=place, count=1) or [{}]
        given = int(pending.get("times_delivered", 1))
        event = event_of(place, fields)
        if event is not None and given > TRIES:
            await self._handling.bury(event, given - 1, "its consumers died")
            await self._done(place)
        else:
            await self._handle([(place, fields)])

    async def _handle(self, rows: Rows) -> None:
        self._held |= {place for place, _ in rows}
        try:
            for place, fields in rows:
                if place not in self._held:
                    continue
                if (event := event_of(place, fields)) is None:
                    await self._done(place)
                else:
                    await self._handling.handle(event, partial(self._done, place))
        except BaseException:
            self._held -= {place for place, _ in rows}  # they come to somebody again
            raise

    async def _done(self, place: bytes) -> None:
        try:
            await self._client.xack(self._key, self._group, place)
        finally:
            self._held.discard(place)
