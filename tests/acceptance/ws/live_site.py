"""What the socket tests run against: a model that waits for the test, and a real uvicorn on a real port."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from websockets.sync.client import ClientConnection, connect

from project.process import wait_until
from project.services import free_port, port_is_free
from ravi_django.kernel import (
    ChatMessage,
    GenerationOptions,
    ModelEvent,
    ModelResponse,
    ReasoningDelta,
    Role,
    RunMeta,
    TextBlock,
    TextDelta,
    ToolUseBlock,
)
from tests.support import forks
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import database_url


class PacedModel:
    """Says one word each time that the test lets it."""

    name = "paced"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._turnstile = threading.Semaphore(0)

    def let(self, words: int = 1) -> None:
        self._turnstile.release(words)

    def let_all(self) -> None:
        self.let(10_000)

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        for word in self.words:
            while not self._turnstile.acquire(blocking=False):
                await asyncio.sleep(0.01)
            yield TextDelta(text=word)
        yield ModelResponse.of([TextBlock(text="".join(self.words))])


class ThinkingModel:
    """Reasons, speaks and calls a tool; then reasons and speaks."""

    name = "thinking"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        is_first = messages[-1].role == Role.USER
        for word in ("I ", "multiply." if is_first else "read."):
            yield ReasoningDelta(text=word)
        words = ("I ", "look."), ("It ", "is ", "42.")
        for word in words[not is_first]:
            yield TextDelta(text=word)
        content: list[Any] = [TextBlock(text="".join(words[not is_first]))]
        if is_first:
            content.append(ToolUseBlock(tool_name="calculator", arguments={"expression": "6 * 7"}, call_id="c1"))
        yield ModelResponse.of(content)


class Server:
    """An ASGI application on a thread of this process: it shares the tests' database and settings."""

    def __init__(self, application: Any) -> None:
        self.application = application
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_config=None, access_log=False))
        self._thread = threading.Thread(target=self._serve, args=[listener], name="uvicorn")
        self.loop: asyncio.AbstractEventLoop
        self._thread.start()
        assert wait_until(lambda: self._server.started, BOUND_S)

    def _serve(self, listener: socket.socket) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self._server.serve([listener])

        asyncio.run(serve())

    def empty(self) -> None:
        """Close what is open, as a server does that ends."""
        state = self._server.server_state

        def close() -> None:
            for connection in list(state.connections):
                connection.shutdown()

        self.loop.call_soon_threadsafe(close)
        wait_until(lambda: not state.connections and not state.tasks, seconds(10), poll=0.005)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(seconds(10))

    def streams(self) -> int:
        """How many sockets are being streamed to."""
        return sum("StreamConsumer._serve" in repr(task) for task in asyncio.all_tasks(self.loop))

    def connect(self, path: str, **options: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)


@contextmanager
def serving(*command: str) -> Iterator[tuple[str, Any]]:
    """`python *command` with the site on a free port, on the tests' database; gives its URL and the process."""
    port = free_port()
    environment = {**os.environ, "DATABASE_URL": database_url()}
    argv = [part.format(port=port) for part in command]
    with forks.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: not port_is_free("127.0.0.1", port), BOUND_S)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
