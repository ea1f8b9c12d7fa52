"""What the socket tests run against: a model that waits for the test, and a real uvicorn on a real port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from websockets.sync.client import ClientConnection, connect

from project.process import wait_until
from project.services import free_port
from ravi_django.kernel import ChatMessage, GenerationOptions, ModelEvent, ModelResponse, RunMeta, TextBlock, TextDelta
from tests.support.patience import BOUND_S, seconds


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
