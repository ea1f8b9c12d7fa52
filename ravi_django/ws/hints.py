"""What the open sockets of a process are told about changed requests: `runtime/people/notices.py`'s other end.

A channel is subscribed once an event loop, by a task of its own, whatever the number of sockets; one that cannot be
subscribed, or breaks off, is tried again, and no socket notices but by the seconds that it sees things later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from ravi_django.runtime.people import notices

MOST = 500  # ids that wait to be looked at; with more of them the socket looks at everything
SUBSCRIBE_S = 5.0
AGAIN_S, AGAIN_MAX_S = 1.0, 15.0  # after a failure, and after many
STOPS, STOP_S = 10, 0.2  # how often the task is cancelled, and how long waited for each time
RENEW_S = 3600.0  # some layers forget a member of a group after a day


class Hints:
    """What one socket has been told and has not looked at yet."""

    def __init__(self) -> None:
        self._ids: set[UUID] = set()
        self._all = False
        self._event = asyncio.Event()

    def tell(self, ids: Iterable[UUID] | None) -> None:
        """On the loop's thread. None: something may have been missed."""
        if ids is None:
            self._all = True
        elif not self._all:
            self._ids.update(ids)
            self._all = len(self._ids) > MOST
        if self._all:
            self._ids.clear()
        self._event.set()

    async def wait(self, timeout: float) -> None:
        """Until there is something to take, or the seconds are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(timeout, 0.0)):  # before 3.12 wait_for may swallow a cancellation
                await self._event.wait()

    def take(self) -> tuple[set[UUID], bool]:
        """The ids, and whether everything is to be looked at instead."""
        found = self._ids, self._all
        self._ids, self._all = set(), False
        self._event.clear()
        return found


_hubs: dict[asyncio.AbstractEventLoop, _Hub] = {}


@asynccontextmanager
async def listening() -> AsyncIterator[Hints]:
    """Hints from here on."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = _Hub(loop)
    hub, mine = _hubs[loop], Hints()
    hub.sockets.add(mine)
    try:
        yield mine
    finally:
        hub.sockets.discard(mine)
        if not hub.sockets and _hubs.get(loop) is hub:
            del _hubs[loop]
            await hub.stop()


class _Hub:
    """The sockets of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sockets: set[Hints] = set()
        self._loop = loop
        self._task = loop.create_task(self._serve(), name="ravi-hints")
        notices.listen(self._heard)

    async def stop(self) -> None:
        notices.forget(self._heard)
        for _ in range(STOPS):  # one that comes while the Redis client connects is swallowed there
            self._task.cancel()
            if (await asyncio.wait({self._task}, timeout=STOP_S))[0]:
                return

    def _heard(self, ids: Iterable[str]) -> None:
        """From this process, on any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell, _uuids(ids))

    def _tell(self, ids: list[UUID] | None) -> None:
        for hints in self.sockets:
            hints.tell(ids)

    async def _serve(self) -> None:
        pause = AGAIN_S
        while True:
            try:
                layer = notices.shared_layer()
                if layer is None:
                    return  # `_heard` has it all
                async with asyncio.timeout(SUBSCRIBE_S):
                    channel = await layer.new_channel()
                    await layer.group_add(notices.GROUP, channel)
                pause = AGAIN_S
                self._tell(None)  # what was said before the subscription stood
                await self._receive(layer, channel)
            except Exception as error:
                notices.complain("no hints from the channel layer: %s: %s", type(error).__name__, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load, no secret
                pause = min(2 * pause, AGAIN_MAX_S)

    async def _receive(self, layer: Any, channel: str) -> None:
        """Until it is time to subscribe anew."""
        try:
            async with asyncio.timeout(RENEW_S):
                while True:
                    message = await layer.receive(channel)
                    if ids := _uuids(message.get("ids", ())):
                        self._tell(ids)
        except TimeoutError:
            return
        finally:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await layer.group_discard(notices.GROUP, channel)


def _uuids(texts: Any) -> list[UUID]:
    found = []
    for text in texts if isinstance(texts, list | tuple) else ():
        with suppress(ValueError, TypeError, AttributeError):
            found.append(UUID(text))
    return found
