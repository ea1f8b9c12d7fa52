"""Hooks: functions that are called at events of an agent's lifecycle.

An error in a hook is logged and does not affect the run. The run waits for an async hook up to HOOK_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.middleware import HookCall, HookEvent

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
        if isinstance(hooks, cls):
            return hooks
        if hooks is None or hooks == {}:
            return _NONE
        return cls([hooks] if isinstance(hooks, Mapping) or not isinstance(hooks, Iterable) else hooks)

    def add(self, listener: Any) -> None:
        found = dict(_functions(listener))
        if not found:
            raise TypeError(f"{listener!r} has no hooks; add methods such as on_run_start, or pass a mapping")
        for event, function in found.items():
            self._by_event.setdefault(event, []).append(function)

    def on(self, event: HookEvent | str, function: Hook) -> None:
        self.add({event: function})

    def __bool__(self) -> bool:
        return bool(self._by_event)

    def listens_to(self, event: HookEvent) -> bool:
        return event in self._by_event

    async def fire(self, call: HookCall) -> None:
        for function in self._by_event.get(call.event, ()):
            try:
                given = function(call)
                if inspect.isawaitable(given):
                    async with asyncio.timeout(HOOK_TIMEOUT_S):
                        await given
            except BaseException as error:  # also SystemExit, and the cancellation of the hook's own task
                task = asyncio.current_task()
                if isinstance(error, GeneratorExit) or (
                    isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
                ):
                    raise
                log.exception("hook %r failed at %s", function, call.event, extra={"action": "hook.failed"})


_NONE = Hooks()


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
