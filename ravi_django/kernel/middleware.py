"""The one shape of all interceptors: agent level, chat level, function level."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

ContextT = TypeVar("ContextT", contravariant=True)


class Middleware(Protocol[ContextT]):
    """Call `call_next()` to go on, skip it to short-circuit, raise MiddlewareTermination to end the call."""

    async def process(self, context: ContextT, call_next: Callable[[], Awaitable[None]]) -> None: ...
