"""A small real HTTP server that speaks the OpenAI chat-completions protocol, for tests and benchmarks.

In a thread: `with OpenAIServer(script=..., delay=...) as server: server.base_url`. As a process:
`python tests/support/openai_server.py` prints its port.

A script is `(body) -> Reply`: it decides from the request's messages alone, so that it answers alike
whichever process asks and however often.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn

from tests.support.patience import seconds

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. With `status` 400 or more, `text` is the error's message."""

    text: str = ""
    tool_calls: tuple[tuple[str, Any], ...] = ()  # (name, arguments: a dict, or a str that is sent as it is)
    call_ids: tuple[str | None, ...] | None = None  # None: made from the number of messages; a None inside: left out
    reasoning: str = ""
    usage: dict[str, Any] | None = None  # None: words are counted
    model: str | None = None  # None: the request's is echoed
    status: int = 200
    error_type: str = "server_error"
    error_code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    finish_reason: str | None = None  # None: "stop", or "tool_calls" where there are
    cut_after: int | None = None  # streamed chunks until the connection ends without a finish reason


Script = Callable[[Body], Reply]


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the server saw."""

    body: Body
    headers: dict[str, str]


def tool_results(body: Body) -> int:
    """How many tool messages follow the last user message."""
    since_user = itertools.takewhile(lambda message: message["role"] != "user", reversed(body["messages"]))
    return sum(message["role"] == "tool" for message in since_user)


def steps_script(steps: int, *, tokens: int = 8) -> Script:
    """Ask for `steps` calls of the calculator, one a turn, then answer with `tokens` words."""
    answer = " ".join(f"word{index}" for index in range(tokens))

    def script(body: Body) -> Reply:
        done = tool_results(body)
        if done >= steps:
            return Reply(text=answer)
        return Reply(tool_calls=(("calculator", {"expression": f"{done} + 1"}),))

    return script


class OpenAIServer:
    """`script` is a Reply, a list of them (one a request, the last one repeats) or `(body) -> Reply`.

    `delay` is the time to the first byte, `token_delay` between streamed words, both in seconds. While `flows` is not
    set, an answer stops after its first word.
    """

    def __init__(
        self,
        script: Script | Reply | Iterable[Reply] = Reply(text="Hello from the test server."),
        *,
        delay: float = 0.0,
        token_delay: float = 0.0,
        port: int = 0,
    ) -> None:
        self.script = _as_script(script)
        self.delay, self.token_delay, self.port = delay, token_delay, port
        self.flows = threading.Event()
        self.flows.set()
        self.requests: list[Request] = []
        self.disconnects = 0  # requests whose client left before their answer ended
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self.bind()
        self._thread = threading.Thread(target=self.serve, name="openai-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
        if self._thread is not None:
            self._thread.join(timeout=seconds(10))

    def bind(self) -> None:
        """Take the port; clients may connect from here on."""
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=2048)
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self, lifespan="off", ws="none", log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Answer until told to exit."""
        assert self._server is not None and self._socket is not None
        self._server.run(sockets=[self._socket])

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = await _read_json(receive)
        self.requests.append(Request(body, {key.decode(): value.decode() for key, value in scope["headers"]}))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await self._answer(scope["path"], body, send, gone)
        finally:
            self.disconnects += gone.done()
            gone.cancel()

    async def _answer(self, path: str, body: Body, send: Any, gone: asyncio.Task[None]) -> None:
        if await _pause(self.delay, gone):
            return
        if not path.endswith("/chat/completions"):
            reply = Reply(status=404, text=f"no route {path}", error_type="not_found_error")
        else:
            reply = self.script(body)
        if reply.status >= 400:
            error = {"message": reply.text, "type": reply.error_type, "param": None, "code": reply.error_code}
            await _send_json(send, {"error": error}, reply)
        elif body.get("stream"):
            await _start(send, 200, {"content-type": "text/event-stream", **reply.headers})
            async for chunk in self._chunks(body, reply, gone):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await _send_json(send, _completion(body, reply), reply)

    async def _chunks(self, body: Body, reply: Reply, gone: asyncio.Task[None]) -> AsyncIterator[bytes]:
        head = _head(body, reply, "chat.completion.chunk")
        for count, delta in enumerate(_deltas(body, reply)):
            if count == reply.cut_after or await _pause(self.token_delay if count > 1 else 0, gone):
                return
            while count > 1 and not self.flows.is_set():
                if await _pause(0.02, gone):
                    return
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        finish = _finish(reply)
        yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": _usage(body, reply)})
        yield b"data: [DONE]\n\n"


def _as_script(script: Script | Reply | Iterable[Reply]) -> Script:
    if callable(script):
        return script
    if isinstance(script, Reply):
        return lambda body: script
    replies = list(script)
    position = itertools.count()
    return lambda body: replies[min(next(position), len(replies) - 1)]


def _deltas(body: Body, reply: Reply) -> Iterable[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}
    words = reply.text.split(" ") if reply.text else []
    for index, word in enumerate(words):
        yield {"content": word if index == 0 else f" {word}"}
    for index, call in enumerate(_tool_calls(body, reply)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call, "index": index, "function": {**call["function"], "arguments": arguments[:half]}}
        yield {"tool_calls": [first]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]}


def _tool_calls(body: Body, reply: Reply) -> list[dict[str, Any]]:
    made = (f"call_{len(body['messages'])}_{index}" for index in itertools.count())
    calls = []
    for (name, arguments), call_id in zip(reply.tool_calls, reply.call_ids or made, strict=False):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = {"type": "function", "function": {"name": name, "arguments": text}}
        calls.append(call if call_id is None else {"id": call_id, **call})
    return calls


def _completion(body: Body, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(body, reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {**_head(body, reply, "chat.completion"), "choices": [choice], "usage": _usage(body, reply)}


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _head(body: Body, reply: Reply, kind: str) -> dict[str, Any]:
    model = reply.model or body.get("model")
    return {"id": "chatcmpl-test", "object": kind, "created": int(time.time()), "model": model}


def _usage(body: Body, reply: Reply) -> dict[str, Any]:
    if reply.usage is not None:
        return reply.usage
    given = sum(len(str(message.get("content") or "").split()) for message in body["messages"])
    made = len(reply.text.split()) + 5 * len(reply.tool_calls)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def _read_json(receive: Any) -> Body:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    raw = b"".join(parts)
    return json.loads(raw) if raw else {}


async def _pause(seconds: float, gone: asyncio.Task[None]) -> bool:
    """Wait; True as soon as the client has gone."""
    if seconds:
        await asyncio.wait([gone], timeout=seconds)
    return gone.done()


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Any, status: int, headers: dict[str, str]) -> None:
    pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _send_json(send: Any, value: Any, reply: Reply) -> None:
    await _start(send, reply.status, {"content-type": "application/json", **reply.headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model server.")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds to the first byte")
    parser.add_argument("--tokens", type=int, default=8, help="words in the answer")
    given = parser.parse_args()
    server = OpenAIServer(steps_script(0, tokens=given.tokens), delay=given.delay)
    server.bind()
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    main()
