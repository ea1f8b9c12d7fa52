"""The chain of an agent's middlewares, by level."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, get_type_hints

from ravi_django.kernel.middleware import (
    AgentMiddleware,
    AgentRunContext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
)

_LEVELS: dict[type[Any], str] = {AgentRunContext: "agent", ChatContext: "chat", FunctionContext: "function"}
_BASES: dict[type[Any], str] = {AgentMiddleware: "agent", ChatMiddleware: "chat", FunctionMiddleware: "function"}


class MiddlewarePipeline:
    """Middlewares by level, the first one outermost. One object serves concurrent runs.

    Accepts instances of AgentMiddleware, ChatMiddleware and FunctionMiddleware, objects with
    `async process(self, context, call_next)` whose annotation names the context, and objects with an attribute
    `middlewares`, a list of these, which act at several levels. Raises TypeError for others.
    """

    def __init__(self, middlewares: Iterable[Any] = ()) -> None:
        self.agent: list[Any] = []
        self.chat: list[Any] = []
        self.function: list[Any] = []
        for middleware in middlewares:
            self.add(middleware)

    @classmethod
    def of(cls, middleware: MiddlewarePipeline | Iterable[Any] | Any | None) -> MiddlewarePipeline:
        if isinstance(middleware, cls):
            return middleware
        if middleware is None:
            return _NONE
        return cls(middleware if isinstance(middleware, list | tuple) else [middleware])

    def add(self, middleware: Any) -> None:
        parts = getattr(middleware, "middlewares", None)
        if parts is not None and not isinstance(middleware, type):
            for part in parts:
                self.add(part)
            return
        getattr(self, _level(middleware)).append(middleware)

    @property
    def middlewares(self) -> list[Any]:
        return [*self.agent, *self.chat, *self.function]

    def __len__(self) -> int:
        return len(self.agent) + len(self.chat) + len(self.function)

    def __bool__(self) -> bool:
        return len(self) > 0

    async def run_agent(self, context: AgentRunContext, final: Callable[[], Awaitable[None]]) -> None:
        await _run(self.agent, context, final)

    async def run_chat(self, context: ChatContext, final: Callable[[], Awaitable[None]]) -> None:
        await _run(self.chat, context, final)

    async def run_function(self, context: FunctionContext, final: Callable[[], Awaitable[None]]) -> None:
        await _run(self.function, context, final)


_NONE = MiddlewarePipeline()


async def _run(middlewares: list[Any], context: Any, final: Callable[[], Awaitable[None]]) -> None:
    """Each `call_next` works once: a call that is made twice would be journaled as one."""

    def next_of(place: int) -> Callable[[], Awaitable[None]]:
        called = False

        async def call_next() -> None:
            nonlocal called
            if called:
                raise RuntimeError(f"{type(middlewares[place - 1]).__name__} called call_next() twice")
            called = True
            if place == len(middlewares):
                await final()
            else:
                await middlewares[place].process(context, next_of(place + 1))

        return call_next

    await next_of(0)()


def _level(middleware: Any) -> str:
    if not isinstance(middleware, type) and callable(getattr(middleware, "process", None)):
        for base, level in _BASES.items():
            if isinstance(middleware, base):
                return level
        with suppress(Exception):  # annotations that exist only for the type checker
            for annotation in get_type_hints(middleware.process).values():
                if annotation in _LEVELS:
                    return _LEVELS[annotation]
    raise TypeError(
        f"not a middleware: {middleware!r}; derive from AgentMiddleware, ChatMiddleware or FunctionMiddleware, or "
        "annotate the context of `async def process(self, context: ChatContext, call_next)`"
    )
