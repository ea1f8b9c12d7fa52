"""Shared by the endpoints of other protocols: one exchange, as a stream or as one answer after a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from rest_framework.authentication import TokenAuthentication
from rest_framework.negotiation import DefaultContentNegotiation

from ravi_django import limits
from ravi_django.api import sse
from ravi_django.api.base import ApiView, max_body, non_atomic
from ravi_django.api.events import close_connections, open_stream_of, streaming, streams_asgi
from ravi_django.engine.db.threads import readers
from ravi_django.live.streams.reading import on_this_thread, with_pauses
from ravi_django.runs import checks
from ravi_django.services import problems
from ravi_django.services.exchanges import Exchange, waits_for_others
from ravi_django.services.pieces import Asked, Ended, Piece, Text, pieces
from ravi_django.services.repeats import Repeats

NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients would submit once more
WSGI_WAITS = 2  # of a user: each blocks a thread of the server
WAIT_S = 60.0  # for the end of the run, in a call without a stream
LOOK_S = 1.0  # a call that waits looks again after this time, also without a hint


class Format(Protocol):
    """Writes an exchange in a client's protocol."""

    def begin(self) -> Iterator[bytes]:
        """The first events."""

    def add(self, piece: Piece) -> Iterator[bytes]:
        """The events of a piece. Iterate over all of them."""

    def fault(self, code: str, message: str) -> bytes:
        """The last event of a stream that ends before its run. It has the run's id."""


F = TypeVar("F", bound=Format)


class _AnyAccept(DefaultContentNegotiation):
    """The body decides between JSON and a stream, whatever the client accepts."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


@non_atomic  # no transaction stays open behind a stream or a wait
class ExchangeView(ApiView):
    """Also takes `Authorization: Bearer`, with the tokens that `Token` takes."""

    content_negotiation_class = _AnyAccept
    repeats: Repeats | None = None  # recognises a call that the client sends again
    answers_late = False  # a late run is an answer, which the client polls
    is_typed = False  # the client reads the answer as JSON: a stream has nothing that the agent says before it
    _exchange: Exchange | None = None  # once its run is submitted

    def longest_body(self) -> int:
        return 10 * max_body()  # clients send their whole conversation

    def get_authenticators(self) -> list[Any]:
        authenticators = super().get_authenticators()
        return [*authenticators, *(_bearer(one) for one in authenticators if isinstance(one, TokenAuthentication))]

    def handle_exception(self, exc: Exception) -> Any:
        response = super().handle_exception(exc)
        if self._exchange is not None:
            response.data["error"]["run"] = str(self._exchange.run.tree_id)
            for name, value in NO_RETRY.items():
                response[name] = value
        return response

    @property
    def key(self) -> str | None:
        """The idempotency key."""
        return self.request.headers.get("Idempotency-Key") or None

    def stream(self, begin: Callable[[], Exchange], form_of: Callable[[Exchange], Format], instead: str) -> Any:
        """`begin` submits. Raises NotAcceptable where streams are not possible: use what `instead` says."""
        is_asgi = streams_asgi(self.request, instead)
        self.forget_body()
        slot = limits.open_one(self.request.user, "streams")
        try:
            exchange = self._exchange = begin()
            form = form_of(exchange)
            open_stream = open_stream_of(self.request, exchange.run, slot)
        except BaseException:
            limits.close_one(slot)
            self._end(None)
            raise
        body = sse.relay(
            _events(exchange, form, self._end if self.repeats else None, is_typed=self.is_typed),
            open_stream,
            bytes,
            partial(_fault, exchange, form),
        )
        return streaming(body if is_asgi else on_this_thread(body))

    def wait(self, begin: Callable[[], Exchange], form_of: Callable[[Exchange], F]) -> tuple[Exchange, F | None]:
        """The exchange and its format, after the last piece. No format: the run goes on after WAIT_S. Under
        WSGI, where it blocks a thread, a call waits no longer than a stream may, with few others, and not for other
        people."""
        is_asgi = isinstance(self.request._request, ASGIRequest)
        self.forget_body()
        slot = limits.open_one(self.request.user, *(("streams",) if is_asgi else ("waits", WSGI_WAITS)))
        last, is_answered = None, False
        try:
            with nullcontext() if is_asgi else limits.wsgi_wait():
                exchange = self._exchange = begin()
                form = form_of(exchange)
                close_connections()
                last = async_to_sync(_gather)(exchange, form, is_asgi=is_asgi)  # cancelled when the client leaves
                is_answered = last is None and self.answers_late
                return exchange, form if last else None
        finally:
            limits.close_one(slot)
            if not is_answered:
                self._end(last)

    def _end(self, last: Piece | None) -> None:
        """`last`: the last piece of the exchange, or None if the client did not get it."""
        if self.repeats is not None and self._exchange is not None:
            self.repeats.end(self._exchange, last)
            close_connections()  # of a thread that serves no request

    def forget_body(self) -> None:
        """A stream or a wait is long, and a parsed body takes several times its bytes."""
        self.request._full_data = self.request._data = {}  # type: ignore[attr-defined]
        self.give_back()


def _bearer(authenticator: TokenAuthentication) -> TokenAuthentication:
    bearer = type(authenticator)()
    bearer.keyword = "Bearer"
    return bearer


async def _events(
    exchange: Exchange, form: Format, end: Callable[[Piece | None], None] | None, *, is_typed: bool
) -> AsyncGenerator[bytes]:
    last = None
    try:
        for event in form.begin():
            yield event
        async with aclosing(pieces(exchange)) as coming:
            async for piece in coming:
                if is_typed and isinstance(piece, Text):
                    continue
                if is_typed and isinstance(piece, Ended) and piece.output:
                    for event in form.add(piece.output):
                        yield event
                for event in form.add(piece):
                    yield event
                last = piece if isinstance(piece, Asked | Ended) else None  # the client has it whole
    finally:  # also when the client leaves; not on the event loop: it asks the cache
        if end is not None:
            with suppress(RuntimeError):  # the server stops
                asyncio.get_running_loop().run_in_executor(None, end, last)


def _fault(exchange: Exchange, form: Format, is_slow: bool) -> bytes:
    if not is_slow:
        return form.fault("internal", problems.INTERNAL)
    run = exchange.run.tree_id
    text = f"the stream was cut because the client read too slowly: run {run} goes on, read it at runs/{run}/"
    return form.fault("slow_client", text)


async def _gather(exchange: Exchange, form: Format, *, is_asgi: bool) -> Piece | None:
    """The last piece, if it came in time. Of a completed run the format has the output alone. Under WSGI a run that
    waits for other people is not waited for."""
    within_s = WAIT_S if is_asgi else min(WAIT_S, sse.WSGI_S)
    came: list[Piece] = []
    try:
        async with (
            asyncio.timeout(within_s),
            aclosing(pieces(exchange, LOOK_S)) as source,
            aclosing(with_pauses(source, LOOK_S)) as coming,
        ):
            async for piece in coming:
                if piece is not None:
                    came.append(piece)
                elif not is_asgi and await readers().call(waits_for_others, exchange):
                    return None
    except TimeoutError:
        return None
    if isinstance(came[-1], Ended) and came[-1].output:
        came = [came[-1].output, came[-1]]
    for piece in came:
        for _ in form.add(piece):
            pass
    return came[-1]


def after_wait(exchange: Exchange) -> str:
    """The message for a run that is late."""
    run = exchange.run.tree_id
    return f"run {run} has not ended in time and goes on: read it at runs/{run}/, or use a stream"


def thread_of(value: Any, field: str) -> checks.Thread | None:
    """The client's own word for its conversation."""
    return None if value is None or value == "" else checks.Thread(checks.check_name(value, field))
