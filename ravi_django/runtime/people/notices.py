"""Hints that something about a request to people has changed: which one, and nothing of it.

They go over the site's channel layer to whoever shows requests, who looks at the row. A hint can be lost, late or
doubled, and nothing breaks: sockets look by themselves every few seconds. A site without a layer, or with the in-memory
one, has no way between processes: there they reach this process alone.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from channels.layers import InMemoryChannelLayer, get_channel_layer

from ravi_django import signals

log = logging.getLogger("ravi.notices")

GROUP = "ravi.requests"
MOST = 1000  # that wait to be sent; over it the oldest are dropped
BATCH = 100  # in one message
SEND_S = 2.0  # for one message, after which the layer counts as down
REST_S = 1.0  # after a failure nothing is sent for this long
COMPLAIN_S = 60.0

Listener = Callable[[Sequence[str]], Any]  # takes the ids of requests; called on any thread, must not block

_listeners: set[Listener] = set()


def connect() -> None:
    """At the start of the site: every change of a request hints, once it is committed."""
    for signal in (
        signals.request_opened,
        signals.request_answered,
        signals.request_closed,
        signals.request_changed,
    ):
        signal.connect(_changed, dispatch_uid="ravi.notices")


def _changed(sender: Any, request: Any, **more: Any) -> None:
    hint(str(request.pk))


def hint(request_id: str) -> None:
    """Tell of a request; returns at once, and never raises: its caller has committed something."""
    try:
        if (layer := shared_layer()) is None:
            for listener in tuple(_listeners):
                listener([request_id])
        else:
            _get_sender().put(layer, request_id)
    except Exception as error:
        complain("no hint sent: %s: %s", type(error).__name__, error)


def shared_layer() -> Any | None:
    """The channel layer, if it reaches other processes. Raises what a wrong configuration raises."""
    layer = get_channel_layer()
    return None if isinstance(layer, InMemoryChannelLayer) else layer


def listen(listener: Listener) -> None:
    """Have this process's hints where there is no layer between processes."""
    _listeners.add(listener)


def forget(listener: Listener) -> None:
    _listeners.discard(listener)


class _Sender:
    """A thread with an event loop of its own: the layer's connections belong to a loop, and one made for each call
    would cost a connection each."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}  # in the order of their coming, each once
        self._layer: Any = None
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._told = asyncio.Event()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="ravi-notices", daemon=True)
        self._thread.start()

    def put(self, layer: Any, request_id: str) -> None:
        with self._lock:
            self._layer = layer
            self._waiting[request_id] = None
            if len(self._waiting) > MOST:
                del self._waiting[next(iter(self._waiting))]
        with suppress(RuntimeError):  # closed meanwhile
            self._loop.call_soon_threadsafe(self._told.set)

    def close(self) -> None:
        """Send what waits, if that can be done soon, then end the thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._closing.set)
            self._loop.call_soon_threadsafe(self._told.set)
        self._thread.join(timeout=2 * SEND_S)

    def _take(self) -> tuple[Any, list[str]]:
        with self._lock:
            ids = list(self._waiting)[:BATCH]
            for request_id in ids:
                del self._waiting[request_id]
            return self._layer, ids

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        finally:
            with suppress(Exception):  # the layer's own connections are closed with the loop, or fail to
                self._loop.close()
            if not self._loop.is_closed():
                self._loop.close()

    async def _work(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            while (batch := self._take())[1]:
                if not await self._send(*batch):
                    await self._rest()
            if self._closing.is_set():
                return

    async def _send(self, layer: Any, ids: list[str]) -> bool:
        try:
            async with asyncio.timeout(SEND_S):
                await layer.group_send(GROUP, {"type": GROUP, "ids": ids})
        except Exception as error:
            complain("the channel layer takes no hints: %s: %s", type(error).__name__, error)
            return False
        return True

    async def _rest(self) -> None:
        """What has come before is lost: it would only be late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await self._closing.wait()
        with self._lock:
            self._waiting.clear()


_sender: _Sender | None = None
_making = threading.Lock()


def _get_sender() -> _Sender:
    global _sender
    with _making:
        if _sender is None:
            _sender = _Sender()
        return _sender


def close() -> None:
    """End this process's thread, if it has one; the next hint makes another."""
    global _sender
    with _making:
        sender, _sender = _sender, None
    if sender is not None:
        sender.close()


_complained_at: float | None = None


def complain(words: str, *of: Any) -> None:
    """A warning a minute: while a layer is down, every change would make one."""
    global _complained_at
    now = time.monotonic()
    if _complained_at is None or now - _complained_at >= COMPLAIN_S:
        _complained_at = now
        log.warning(f"{words}; sockets see changes some seconds later", *of, extra={"action": "notices.failed"})


def _after_fork() -> None:
    """The parent's thread and its listeners' loops are not ours."""
    global _sender, _making
    _sender, _making = None, threading.Lock()
    _listeners.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
