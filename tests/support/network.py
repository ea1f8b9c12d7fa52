"""A TCP proxy with the faults of a network, for a server that is reached through it."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from threading import Thread
from typing import Any


class Proxy(Thread):
    """Passes bytes on between `port` and the server, until one of its faults is asked for."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(name="proxy", daemon=True)
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0  # connections
        self._peers: dict[socket.socket, socket.socket] = {}  # of both ends
        self._silent: set[socket.socket] = set()  # what they send is dropped
        self._swallows = self._closed = False
        self._stalled_until = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self.join()
        for end in (*self._peers, self._listener):
            end.close()
        self._selector.close()

    # ---------------------------------------------------------------------------------------------- faults

    def swallow(self, client: int | None = None) -> None:
        """Forget the connections without a word: neither end hears of the other again. Of the client with this port
        alone, or of all, and of new ones until `heal`."""
        self._swallows = client is None
        for end, peer in list(self._peers.items()):
            with suppress(OSError):  # it is closed
                if client in (None, end.getpeername()[1]):
                    self._silent |= {end, peer}

    def stall(self, seconds: float) -> None:
        """Hold everything back for so long. Nothing is lost."""
        self._stalled_until = time.monotonic() + seconds

    def cut(self) -> None:
        """End all connections."""
        for end in list(self._peers):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Pass on what comes from now on; connections that were swallowed stay silent."""
        self._swallows, self._stalled_until = False, 0.0

    # -------------------------------------------------------------------------------------------- its thread

    def run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.02):
                while time.monotonic() < self._stalled_until and not self._closed:
                    time.sleep(0.02)
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        for end, peer in ((client, server), (server, client)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[end] = peer
            self._selector.register(end, selectors.EVENT_READ)
            if self._swallows:
                self._silent.add(end)
        self.accepted += 1

    def _pass_on(self, end: Any) -> None:
        peer = self._peers[end]
        data = b""
        with suppress(OSError):
            data = end.recv(65536)
        if data and end not in self._silent:
            with suppress(OSError):
                peer.sendall(data)
        elif not data:
            for one in (end,) if end in self._silent else (end, peer):
                self._selector.unregister(one)
                del self._peers[one]
                one.close()
