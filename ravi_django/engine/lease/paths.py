"""Paths: names for the places of effects in an agent's code, the same on every replay.

Each asyncio task of a run has a path scope. The loop's task factory opens scopes in the order of creation, and a call
takes the next number of its scope when it starts. So parallel calls keep their paths, in whatever order they end.

A callback belongs to a run when it runs in one of its scopes. The code is at rest when the event loop has no such
callback ready: the code has then done everything that follows from the last result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from ravi_django.engine.lease.run_tasks import RunTasks
from ravi_django.kernel import CancellationError


class Scope:
    """One numbering. `prefix` is empty at the top, else ends with a dot."""

    __slots__ = ("around", "call_id", "calls", "children", "is_given_up", "named", "opener", "prefix", "tasks", "whole")

    def __init__(
        self,
        prefix: str = "",
        *,
        call_id: str = "",
        tasks: RunTasks | None = None,
        opener: Scope | None = None,
        whole: Scope | None = None,
    ) -> None:
        self.prefix = prefix
        self.opener = opener  # of a task's scope: the scope of the code that made the task
        self.call_id = call_id  # the model's id of the tool call made here
        self.around = ""  # the model's id of the tool call whose code runs here
        self.calls = 0
        self.children = 0
        self.named: dict[str, int] = {}
        self.tasks = tasks  # tasks of the run
        self.whole = whole or self  # the outermost scope: that of the run, or of the tool call around this scope
        self.is_given_up = False  # of a whole: the tool call was given up, and its code may make no calls

    def next_path(self) -> str:
        if self.whole.is_given_up:
            raise CancellationError("the tool call that this code belongs to was given up")
        self.calls += 1
        return f"{self.prefix}{self.calls}"

    def for_task(self) -> Scope:
        self.children += 1
        prefix = f"{self.prefix}t{self.children}."
        return Scope(prefix, call_id=self.call_id, tasks=self.tasks, opener=self, whole=self.whole)

    def for_name(self, name: str, call_id: str) -> Scope:
        """A named scope; the same name a second time gets a suffix.

        In a task that has made no call or task yet, the name replaces the number of the task.
        """
        if self.opener is not None and not (self.calls or self.children or self.named):
            return self.opener.for_name(name, call_id)
        prefix = self.peek(name)
        self.named[name] = self.named.get(name, 0) + 1
        return Scope(prefix, call_id=call_id, tasks=self.tasks, whole=self.whole)

    def peek(self, name: str) -> str:
        """The prefix that the next scope of this name will have."""
        if self.opener is not None and not (self.calls or self.children or self.named):
            return self.opener.peek(name)
        times = self.named.get(name, 0) + 1
        return f"{self.prefix}{name}." if times == 1 else f"{self.prefix}{name}~{times}."


_scope: ContextVar[Scope | None] = ContextVar("ravi_scope", default=None)


def current() -> Scope | None:
    return _scope.get()


def of_middleware(prefix: str) -> str:
    """The prefix of calls that function middlewares make, around a tool whose own calls have the `prefix`."""
    return f"{prefix}m"


def in_middleware() -> bool:
    scope = _scope.get()
    return scope is not None and scope.prefix.endswith("m")


class entered:
    """Number the calls inside by this scope. With None, tasks made inside do not belong to the run."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = _scope.set(self._scope)

    def __exit__(self, *error: object) -> None:
        _scope.reset(self._token)


TaskFactory = Callable[..., asyncio.Future[Any]]


def install(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Open a scope for every task that a run's code makes on this loop; returns a function that restores the loop."""
    before: Any = loop.get_task_factory()

    def factory(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> asyncio.Future[Any]:
        wanted = kwargs.get("context")
        parent = _scope.get() if wanted is None else wanted.get(_scope)
        if parent is not None:
            context = copy_context() if wanted is None else wanted
            context.run(_scope.set, parent.for_task())
            kwargs["context"] = context
        task = before(loop, coro, **kwargs) if before else asyncio.Task(coro, loop=loop, **kwargs)
        if parent is not None and parent.tasks is not None:
            parent.tasks.keep(task)  # type: ignore[arg-type]
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    return lambda: loop.set_task_factory(before)


def at_rest(tasks: RunTasks) -> bool:
    """Whether no callback of the run's code is ready, except the current one."""
    ready = with_ready_code(asyncio.get_running_loop())
    return ready is not None and tasks not in ready


def with_ready_code(loop: Any) -> set[RunTasks | None] | None:
    """The runs with a ready callback; None if the loop does not show it. Copied, as other threads add callbacks."""
    return {_of(handle) for handle in tuple(loop._ready)} if hasattr(loop, "_ready") else None


def _of(handle: Any) -> RunTasks | None:
    scope = handle._context.get(_scope)
    return None if scope is None or scope.whole.is_given_up else scope.tasks
