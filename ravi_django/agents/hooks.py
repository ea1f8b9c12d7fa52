"""Who listens to an agent's lifecycle. A hook that raises is logged and changes nothing; the run waits for an async
one, for up to HOOK_TIMEOUT_S at each event, and then goes on without it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ravi_django.kernel.hooks import HookCall, HookEvent

log = logging.getLogger("ravi.hooks")

HOOK_TIMEOUT_S = 5.0  # an async hook is given this long

Hook = Callable[[HookCall], Any]


class Hooks:
    """Functions by event, called in the order in which they came.

    A listener is `{HookEvent: function}`, or an object with methods named by events (`on_run_start`, `on_llm_end`, …;
    `on_event` is told everything). Functions take a HookCall, sync ones must not block. The run goes on when they have
    returned: what takes long is better put into a queue, or a task, of one's own. Raises TypeError for a listener that
    listens to nothing.
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
            raise TypeError(f"{listener!r} listens to nothing; give it methods such as on_run_start, or a mapping")
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
            except BaseException as error:  # SystemExit too, and the cancellation of a task of the hook's own
                task = asyncio.current_task()
                if isinstance(error, GeneratorExit) or (
                    isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
                ):
                    raise
                log.exception("hook %r failed at %s", function, call.event, extra={"action": "hook.failed"})


_NONE = Hooks()


def frozen(value: Any) -> Any:
    """JSON-like data that a hook cannot change for those after it."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(inner) for inner in value)
    return value


def _functions(listener: Any) -> Iterable[tuple[HookEvent, Hook]]:
    if isinstance(listener, Mapping):
        for event, function in listener.items():
            if not callable(function):
                raise TypeError(f"a hook is a function of a HookCall, not {function!r}")
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
        raise TypeError(f"there is no hook event {name!r}; there are {', '.join(HookEvent)}") from None
