"""`/ws/ravi/requests/`: requests to people, as they open and close.

First the newest pending requests that the user may see, oldest first; then every change. A hint starts a comparison
with the rows; without hints the socket compares about every ten seconds.

`seq` counts this connection's frames. A `request` frame replaces an earlier one with the same id.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

from ravi_django.kernel import InvalidInputError
from ravi_django.runtime.db.threads import readers
from ravi_django.runtime.streams.buffer import REQUESTS, get_buffer
from ravi_django.ws import inbox
from ravi_django.ws.access import UNKNOWN_USER, Refused
from ravi_django.ws.consumer import StreamConsumer

FIRST = 200  # sent on connecting
PAGE = 20  # rows of one query: each may have large arguments
COMPARE_S = 10.0
RIGHTS_S = 2.0  # how long the user's rights are kept
GATHER_S = 0.05  # hints within this time start one comparison
SHARE = 4  # the pause after a comparison, as a multiple of its duration: limits the load of many sockets
REST_MAX_S = 2.0


class RequestsConsumer(StreamConsumer):
    """Accepts only `answer`; the sockets of runs accept the other commands."""

    again = "the requests cannot be read now; open the socket again"

    async def find(self) -> None:
        self._seq = 0
        self._rights: inbox.Rights | None = None
        self._asked_at = 0.0
        self._known: dict[UUID, tuple[int, bool]] = {}  # version, and whether the user may answer
        self._shown: set[UUID] = set()  # the known requests that the client has

    def cancelled(self) -> NoReturn:
        raise InvalidInputError("this socket accepts only frames of the type answer", field="type")

    def addressed(self) -> NoReturn:
        self.cancelled()

    async def stream(self) -> None:
        every_s = COMPARE_S * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, no secret
        async with get_buffer().watch(REQUESTS, every_s) as hints:
            await self._begin()
            async for _ in hints:
                await asyncio.sleep(GATHER_S)
                begun = time.monotonic()
                await self._compare()
                await asyncio.sleep(min(SHARE * (time.monotonic() - begun), REST_MAX_S))

    async def _begin(self) -> None:
        states = await readers().call(inbox.states, await self._may())
        newest = list(states)[:FIRST]
        self._known = {id: states[id] for id in list(states)[FIRST:]}
        await self._show(newest)

    async def _compare(self) -> None:
        """Show the changes among the newest requests."""
        states = await readers().call(inbox.states, await self._may())
        changed = {id for id, state in states.items() if self._known.get(id) != state}
        gone = self._shown - states.keys()
        for id in changed | (self._known.keys() - states.keys() - gone):
            self._known.pop(id, None)
        await self._show(changed | gone)
        for id in changed & self._known.keys():  # so that a refusal of RAVI["MAY_ANSWER"] is shown only once
            self._known[id] = (self._known[id][0], states[id][1])
        for id in gone & self._shown:  # still pending, but no longer among the newest
            self._shown.discard(id)
            self._known.pop(id, None)

    async def _may(self) -> inbox.Rights:
        """The user's rights, at most RIGHTS_S old. Raises Refused."""
        if self._rights is None or time.monotonic() - self._asked_at >= RIGHTS_S:
            self._asked_at = time.monotonic()
            self._rights = await readers().call(inbox.rights, self.user.pk)
        if self._rights is None:
            raise Refused(UNKNOWN_USER, "your account is no longer active")
        return self._rights

    async def _show(self, ids: Iterable[UUID]) -> None:
        """Send the changes of these requests that the client does not have."""
        ordered, mine, pending = sorted(ids), None, None
        for place in range(0, len(ordered), PAGE):
            page = ordered[place : place + PAGE]
            before, mine = mine, await self._may()
            counted = pending if mine is before else None
            look = await readers().call(inbox.look, mine, page, self._shown.intersection(page), counted)
            pending = look.pending
            for id, version, frame in look.open:
                known = self._known.get(id)
                if id not in self._shown or known is None or known[0] != version:
                    self._known[id] = (version, frame["may_answer"])
                    self._shown.add(id)
                    await self._number(frame)
            for id, frame in look.closed.items():
                self._known.pop(id, None)
                if id in self._shown:
                    self._shown.discard(id)
                    await self._number(frame)

    async def _number(self, frame: dict[str, Any]) -> None:
        self._seq += 1
        present = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        await self._send({"seq": self._seq, "ts": present, **frame})
