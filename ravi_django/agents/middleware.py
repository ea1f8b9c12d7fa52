"""The chain of an agent's middlewares, by level."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, get_type_hints

from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.middleware import (
    AgentMiddleware,
    AgentRunContext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
    HookCall,
    HookEvent,
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
        """A pipeline of one middleware, a list or a pipeline; None makes an empty one."""
        if isinstance(middleware, cls):
            return middleware
        if middleware is None:
            return _NONE
        return cls(middleware if isinstance(middleware, list | tuple) else [middleware])

    def add(self, middleware: Any) -> None:
        """Add one at the inner end of its level. Raises TypeError for an object that is none."""
        parts = getattr(middleware, "middlewares", None)
        if parts is not None and not isinstance(middleware, type):
            for part in parts:
                self.add(part)
            return
        getattr(self, _level(middleware)).append(middleware)

    @property
    def middlewares(self) -> list[Any]:
        """All of them: level agent, then chat, then function."""
        return [*self.agent, *self.chat, *self.function]

    def __len__(self) -> int:
        return len(self.agent) + len(self.chat) + len(self.function)

    def __bool__(self) -> bool:
        return len(self) > 0

    async def run_agent(self, context: AgentRunContext, final: Callable[[], Awaitable[None]]) -> None:
        """Call the chain of the level agent around `final`."""
        await _run(self.agent, context, final)

    async def run_chat(self, context: ChatContext, final: Callable[[], Awaitable[None]]) -> None:
        """Call the chain of the level chat around `final`."""
        await _run(self.chat, context, final)

    async def run_function(self, context: FunctionContext, final: Callable[[], Awaitable[None]]) -> None:
        """Call the chain of the level function around `final`."""
        await _run(self.function, context, final)


_NONE = MiddlewarePipeline()


async def _run(middlewares: list[Any], context: Any, final: Callable[[], Awaitable[None]]) -> None:
    """Each `call_next` works once: a call that is made twice would be journaled as one."""

    def next_of(index: int) -> Callable[[], Awaitable[None]]:
        called = False

        async def call_next() -> None:
            nonlocal called
            if called:
                raise RuntimeError(f"{type(middlewares[index - 1]).__name__} called call_next() twice")
            called = True
            if index == len(middlewares):
                await final()
            else:
                await middlewares[index].process(context, next_of(index + 1))

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


log = logging.getLogger("ravi.hooks")

HOOK_TIMEOUT_S = 5.0

Hook = Callable[[HookCall], Any]


class Hooks:
    """Functions by event, called in the order in which they were added.

    A listener is `{HookEvent: function}`, or an object with methods named by events (`on_run_start`, `on_llm_end`, …;
    `on_event` gets all other events). Functions take a HookCall; sync ones must not block. The run continues when they
    have returned, so put slow work into a queue or a task. Raises TypeError for a listener without functions.
    """

    def __init__(self, listeners: Iterable[Any] = ()) -> None:
        self._by_event: dict[HookEvent, list[Hook]] = {}
        for listener in listeners:
            self.add(listener)

    @classmethod
    def of(cls, hooks: Hooks | Mapping[Any, Hook] | Iterable[Any] | None) -> Hooks:
        """The hooks of one listener, several, or none."""
        if isinstance(hooks, cls):
            return hooks
        if hooks is None or hooks == {}:
            return _NO_HOOKS
        return cls([hooks] if isinstance(hooks, Mapping) or not isinstance(hooks, Iterable) else hooks)

    def add(self, listener: Any) -> None:
        """Add a listener. Raises TypeError if it has no functions."""
        functions = dict(_functions(listener))
        if not functions:
            raise TypeError(f"{listener!r} has no hooks; add methods such as on_run_start, or pass a mapping")
        for event, function in functions.items():
            self._by_event.setdefault(event, []).append(function)

    def on(self, event: HookEvent | str, function: Hook) -> None:
        """Add one function for one event."""
        self.add({event: function})

    def __bool__(self) -> bool:
        return bool(self._by_event)

    def listens_to(self, event: HookEvent) -> bool:
        """Whether the event has a function."""
        return event in self._by_event

    async def fire(self, call: HookCall) -> None:
        """Call the event's functions. Their exceptions are logged; an async one has HOOK_TIMEOUT_S seconds."""
        for function in self._by_event.get(call.event, ()):
            try:
                result = function(call)
                if inspect.isawaitable(result):
                    async with asyncio.timeout(HOOK_TIMEOUT_S):
                        await result
            except BaseException as error:  # also SystemExit, and the cancellation of the hook's own task
                task = asyncio.current_task()
                if isinstance(error, GeneratorExit) or (
                    isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
                ):
                    raise
                log.exception("hook %r failed at %s", function, call.event, extra={"action": "hook.failed"})


_NO_HOOKS = Hooks()


def frozen(value: Any) -> Any:
    """An immutable copy of JSON-like data, so that a hook cannot change it for the next one."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(inner) for inner in value)
    return value


def _functions(listener: Any) -> Iterable[tuple[HookEvent, Hook]]:
    if isinstance(listener, Mapping):
        for event, function in listener.items():
            if not callable(function):
                raise TypeError(f"a hook must be a function of a HookCall, not {function!r}")
            yield _event(event), function
        return
    everything = getattr(listener, "on_event", None)
    for event in HookEvent:
        function = getattr(listener, f"on_{event.value}", None) or everything
        if callable(function):
            yield event, function


def _event(name: Any) -> HookEvent:
    try:
        return HookEvent(name)
    except ValueError:
        near = did_you_mean(name, HookEvent)
        raise TypeError(f"unknown hook event {name!r}; the events are {', '.join(HookEvent)}{near}") from None
