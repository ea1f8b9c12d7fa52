"""A client for programs elsewhere that run the agents of a site. See docs/howto/programs.md.

    with Client("https://example.com/ravi/", token) as client:
        print(client.run("react/assistant", "What is 6 * 7?")["output"])

`AsyncClient` has the same methods, to be awaited. They are written once, as coroutines. Input and output of `Client`
block, so its coroutines never suspend. The module needs no settings of Django and imports nothing else of the package.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import httpx

__all__ = ["ApiError", "AsyncClient", "Client"]

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]

TIMEOUT = httpx.Timeout(60.0, connect=10.0)  # a silent stream has a comment every 15 s
NO_LIMITS = httpx.Limits()  # streams that wait would take the connections of other calls
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
LONGEST_RETRY_S = 120.0  # of the times that a site may ask to wait
CALL_S = 3.0  # how long a call is repeated, in pauses
STREAM_S = 300.0  # how long a stream is reconnected that was open, or whose run this client has submitted
POLL_S = 1.0
PAGE = 500  # frames
AWAY = (0, 429, 500, 502, 503, 504)  # statuses that may be different soon


class ApiError(Exception):
    """An error of the site, a site that cannot be reached, or a run that did not complete."""

    run: str | None = None  # the id of the run that was submitted before the error: it may go on
    retry_after: float = 0.0  # seconds that the site asks to wait

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status  # of HTTP; 0: no answer. 500 of `run`: the run has not completed
        self.code = code  # such as "invalid_input"; "unreachable": no answer; "": an answer of another server
        self.message = message
        self.field = field  # the part of the request to fix


class AsyncClient:
    """Runs the agents of a site from another program, in async code: `async with AsyncClient(url, token) as client`."""

    def __init__(self, url: str, token: str, **options: Any) -> None:
        """`url` is the mount of ravi_django. `token` is sent as `Token …`; one with a space, as in `Bearer …`, is sent
        as it is. `options` are those of httpx's client, such as `verify` and `proxy`."""
        authorization = token if " " in token else f"Token {token}"
        self._http: Any = self._connections(
            base_url=url if url.endswith("/") else f"{url}/",
            headers={"Authorization": authorization, "Accept": "application/json", **options.pop("headers", {})},
            **{"timeout": TIMEOUT, "limits": NO_LIMITS, **options},
        )

    async def run(self, /, agent: str, input: Any, *, timeout: float | timedelta | None = None, **options: Any) -> Json:
        """Submit, wait for the end, and return the run; its `output` is a text. Waits as long as the run works or waits
        for people, or about `timeout` (seconds or a timedelta). Raises ApiError also after that time, and if the run
        fails, is cancelled or blocked; its `run` is the run's id."""
        begun = time.monotonic()
        timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        run = await self.submit(agent, input, **options)
        with _after_submit(run):
            async with aclosing(self._signs(run["id"], 0, STREAM_S)) as signs:
                async for frame in signs:
                    if _is_blocked(frame, run["id"]):
                        break
                    if timeout is not None and time.monotonic() > begun + timeout:
                        raise ApiError(0, "timeout", f"run {run['id']} goes on: it has not ended in {timeout:g} s")
            run = dict(await self.call("GET", f"runs/{run['id']}/"))
            if run["status"] != "completed":
                problem = "{type}: {message}".format(**run["error"]) if run["error"] else "without an error"
                raise ApiError(500, run["status"], f"run {run['id']} is {run['status']}: {problem}")
        return run

    async def submit(self, /, agent: str, input: Any, *, idempotency_key: str | None = None, **options: Any) -> Json:
        """Submit a run and return it. `input` is a text or content blocks; `options` are other fields of `POST runs/`,
        such as `session` and `on_busy`. Repeats after a connection error: the idempotency key, by default a new one,
        makes the site submit once."""
        body = {"agent": agent, "input": input, "idempotency_key": idempotency_key or str(uuid4()), **options}
        return dict(await self.call("POST", "runs/", body, repeat=True))

    async def stream(self, /, agent: str, input: Any, **options: Any) -> AsyncGenerator[Json]:
        """Submit, and yield the frames of the run as `events` does."""
        run = await self.submit(agent, input, **options)
        with _after_submit(run):
            async with aclosing(self._signs(run["id"], 0, STREAM_S)) as signs:
                async for frame in signs:
                    if frame:
                        yield frame

    async def events(self, run: str, after: int = 0) -> AsyncGenerator[Json]:
        """The frames of a run's tree above the number `after`, each once and without gaps, until the run has ended.
        Reconnects after a broken connection. Where it gets no stream, it reads pages."""
        async with aclosing(self._signs(run, after, CALL_S)) as signs:
            async for frame in signs:
                if frame:
                    yield frame

    async def _signs(self, run: str, after: int, first_s: float) -> AsyncGenerator[Json]:
        """The frames, and {} now and then between two of them. `first_s`: how long to try before the first sign."""
        position, pauses, streams = _Position(after), _pauses(first_s), True
        while True:
            try:
                source = self._streamed(run, position) if streams else self._pages(run, position)
                async with aclosing(source) as frames:
                    async for frame in frames:
                        pauses = _pauses(STREAM_S)
                        if position.take(frame):
                            yield frame
                if position.is_end or not streams:
                    return
                page = await self._page(run, position, limit=1)
                if page["done"]:  # with frames if the buffer lost what this client has
                    for frame in filter(position.take, page["results"]):
                        yield frame
                    return
                pause = FIRST_PAUSE_S  # a server that stops has ended the stream
            except ApiError as error:
                if error.status in (406, 429) and streams:  # a WSGI server; too many streams of this user
                    streams = False
                    continue
                pause = _pause_after(error, pauses)
            yield {}
            await self._sleep(pause)

    async def _streamed(self, run: str, position: _Position) -> AsyncGenerator[Json]:
        """The frames of one connection, and {} for each later comment."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(position.seq)}
        request = self._http.build_request("GET", f"runs/{run}/events/", headers=headers)
        buffer = b""
        async with aclosing(self._chunks(request)) as chunks:
            async for chunk in chunks:  # not by lines: httpx also breaks lines at U+2028
                *events, buffer = (buffer + chunk).split(b"\n\n")
                for event in events:
                    if event != b": open" and not event.startswith(b"retry:"):
                        _, _, data = event.partition(b"\ndata: ")
                        yield json.loads(data or b"{}")

    async def _pages(self, run: str, position: _Position) -> AsyncGenerator[Json]:
        while True:
            page = await self._page(run, position)
            for frame in page["results"]:
                yield frame
            if page["done"]:
                return
            if len(page["results"]) < PAGE:  # it has all that there is
                yield {}
                await self._sleep(POLL_S)

    async def _page(self, run: str, position: _Position, limit: int = PAGE) -> Json:
        return dict(await self.call("GET", f"runs/{run}/events/?after={position.seq}&limit={limit}"))

    async def cancel(self, run: str, reason: str = "") -> Json:
        """Request the cancellation of a run, and return the run."""
        return dict(await self.call("POST", f"runs/{run}/cancel/", {"reason": reason} if reason else {}))

    async def requests(self, /, **filters: Any) -> list[Json]:
        """The pending requests that the user may answer or, without `may_answer`, read. `filters` are those of
        `GET requests/`, such as `run` and `status`."""
        rows: list[Json] = []
        query = urlencode({"status": "pending", **filters})
        while query:
            page = await self.call("GET", f"requests/?{query}")
            rows += page["results"]
            query = urlsplit(page["next"] or "").query  # behind a proxy the rest of the address may be wrong
        return rows

    async def answer(self, /, request: str, action: str, **fields: Any) -> Json:
        """Answer a request, and return it. `action` is approve, deny, edit, answer, skip, cancel or resolve; `fields`
        are those of the action, such as `text` and `reason`. The first answer counts: a later one is a 409."""
        return dict(await self.call("POST", f"requests/{request}/answer/", {"action": action, **fields}))

    async def upload(self, path: str | Path, content: bytes | None = None) -> Json:
        """Upload a file, and return it as a content block for `input`. Without `content` the file is read."""
        content = Path(path).read_bytes() if content is None else content
        row = await self.call("POST", "files/", files={"file": (Path(path).name, content)})
        kind = row["type"].partition("/")[0]
        kind = kind if kind in ("image", "audio", "video") else "document"
        return {"type": kind, "file": row["id"], "name": row["name"], "size": row["size"]}

    async def call(self, method: str, path: str, body: Any = None, *, repeat: bool = False, files: Any = None) -> Any:
        """Any call of the REST API, with a path below the mount: the response as Python values. A GET, and with
        `repeat` any call, is repeated after a connection error."""
        pauses = _pauses(CALL_S if repeat or method == "GET" else 0)
        while True:
            request = self._http.build_request(method, path, json=body, files=files)
            try:
                content = b"".join([chunk async for chunk in self._chunks(request)])
                return json.loads(content) if content else None
            except ValueError:
                raise _error_of(request, httpx.Response(200, content=content)) from None
            except ApiError as error:
                pause = _pause_after(error, pauses)
            await self._sleep(pause)

    _connections: Any = httpx.AsyncClient

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _chunks(self, request: httpx.Request) -> AsyncGenerator[bytes]:
        with _reaching(request):
            response = await self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                    raise _error_of(request, response)
                async for chunk in response.aiter_bytes():
                    yield chunk
            finally:
                await response.aclose()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Blocking(AsyncClient):
    """Its input and output block, so that no coroutine of it suspends."""

    _connections = httpx.Client

    async def close(self) -> None:
        self._http.close()

    async def _chunks(self, request: httpx.Request) -> AsyncGenerator[bytes]:
        with _reaching(request):
            response = self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    response.read()
                    raise _error_of(request, response)
                for chunk in response.iter_bytes():
                    yield chunk
            finally:
                response.close()

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a coroutine of a blocking client has suspended")


def _call(method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    @wraps(method)
    def called(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return _result(method(self._blocking, *args, **options))

    return called


def _iterator(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @wraps(method)
    def iterated(self: Client, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        items = method(self._blocking, *args, **options)
        try:
            while True:
                try:
                    yield _result(items.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            _result(items.aclose())

    return iterated


class Client:
    """Runs the agents of a site from another program: `with Client(url, token) as client`."""

    def __init__(self, url: str, token: str, **options: Any) -> None:
        """See AsyncClient."""
        self._blocking = _Blocking(url, token, **options)

    run = _call(AsyncClient.run)
    submit = _call(AsyncClient.submit)
    stream = _iterator(AsyncClient.stream)
    events = _iterator(AsyncClient.events)
    cancel = _call(AsyncClient.cancel)
    requests = _call(AsyncClient.requests)
    answer = _call(AsyncClient.answer)
    upload = _call(AsyncClient.upload)
    call = _call(AsyncClient.call)

    def close(self) -> None:
        """Close the connections."""
        _result(self._blocking.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Position:
    """The position in a run's stream."""

    def __init__(self, after: int) -> None:
        self.seq = after
        self.is_end = False  # a retry may follow on the same connection

    def take(self, frame: Json) -> bool:
        """Whether it is a new frame, or {}."""
        if not frame:
            return True
        if frame["seq"] <= self.seq:
            return False
        self.seq, self.is_end = frame["seq"], frame["type"] == "stream.done"
        return True


def _is_blocked(frame: Json, run: str) -> bool:
    """Such a run has not ended: it waits for an operator."""
    content = frame.get("content")
    return frame.get("run") == run and isinstance(content, dict) and content.get("status") == "blocked"


@contextmanager
def _after_submit(run: Json) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        error.run = run["id"]
        raise


def _pauses(total_s: float) -> Iterator[float]:
    pause, waited = FIRST_PAUSE_S, 0.0
    while waited < total_s:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - spreads clients
        waited += pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _pause_after(error: ApiError, pauses: Iterator[float]) -> float:
    """How long to wait before the next try. Raises the error if it was the last one."""
    pause = next(pauses, None) if error.status in AWAY and error.retry_after <= LONGEST_RETRY_S else None
    if pause is None:
        raise error
    return max(pause, error.retry_after)


@contextmanager
def _reaching(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        problem = str(error) or type(error).__name__
        raise ApiError(0, "unreachable", f"{request.url} cannot be reached: {problem}") from error


def _error_of(request: httpx.Request, response: httpx.Response) -> ApiError:
    status = response.status_code
    try:
        error = response.json()["error"]
        message = f"{request.url} refuses the token: {error['message']}" if status == 401 else error["message"]
        api_error = ApiError(status, error["code"], message, error.get("field"))
    except (ValueError, TypeError, KeyError):
        message = f"{request.url} answered with {status}, and not as ravi_django does: is this the URL of its mount?"
        api_error = ApiError(status, "", message)
    wait = response.headers.get("Retry-After", "")
    api_error.retry_after = float(wait) if wait.isascii() and wait.isdigit() else 0.0
    return api_error
