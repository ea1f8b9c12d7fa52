"""What the socket tests run against: a model that waits for the test, and a real uvicorn on a real port."""

from __future__ import annotations

import asyncio
import os
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
    def __init__(self) -> None:
        from project.asgi import application

        self.application = application
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            application, host="127.0.0.1", port=self.port, lifespan="off", log_config=None, access_log=False
        )
        self._server = uvicorn.Server(config)
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._serve, name="uvicorn")

    def _serve(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self._server.serve()

        asyncio.run(serve())

    def start(self) -> None:
        self._thread.start()
        assert wait_until(lambda: self._server.started, BOUND_S)

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
