"""Replay-stable names for the places in an agent's code where effects happen.

Every asyncio task of a run has a path scope of its own, opened in creation order by the loop's task factory; a call
takes the next number of its scope when it starts. So parallel calls keep their paths whichever finishes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from ravi_django.kernel import CancellationError

if TYPE_CHECKING:
    from ravi_django.runtime.branches import Branches


class Scope:
    """One numbering. `prefix` is empty at the top, else ends with a dot."""

    __slots__ = ("branches", "call_id", "calls", "children", "is_given_up", "named", "opener", "prefix", "whole")

    def __init__(
        self,
        prefix: str = "",
        *,
        call_id: str = "",
        branches: Branches | None = None,
        opener: Scope | None = None,
        whole: Scope | None = None,
    ) -> None:
        self.prefix = prefix
        self.opener = opener  # of a task's scope: the scope of the code that made the task
        self.call_id = call_id  # the model's id of the tool call made here
        self.calls = 0
        self.children = 0
        self.named: dict[str, int] = {}
        self.branches = branches  # of the run: every task opened below is one
        self.whole = whole or self  # the run's own scope, or that of the tool call which this one is in
        self.is_given_up = False  # of a whole: nobody waits for the tool's code any more, its calls are refused

    def next_path(self) -> str:
        if self.whole.is_given_up:
            raise CancellationError("the tool call that this code belongs to was given up")
        self.calls += 1
        return f"{self.prefix}{self.calls}"

    def for_task(self) -> Scope:
        self.children += 1
        prefix = f"{self.prefix}t{self.children}."
        return Scope(prefix, call_id=self.call_id, branches=self.branches, opener=self, whole=self.whole)

    def for_name(self, name: str, call_id: str) -> Scope:
        """A named scope; the same name a second time gets a suffix.

        A task that names its place before anything else stands for that place: the name takes the task number's.
        """
        if self.opener is not None and not (self.calls or self.children or self.named):
            return self.opener.for_name(name, call_id)
        prefix = self.peek(name)
        self.named[name] = self.named.get(name, 0) + 1
        return Scope(prefix, call_id=call_id, branches=self.branches, whole=self.whole)

    def peek(self, name: str) -> str:
        """The prefix that the next scope of this name will have."""
        if self.opener is not None and not (self.calls or self.children or self.named):
            return self.opener.peek(name)
        times = self.named.get(name, 0) + 1
        return f"{self.prefix}{name}." if times == 1 else f"{self.prefix}{name}~{times}."


_scope: ContextVar[Scope | None] = ContextVar("ravi_scope", default=None)


def current() -> Scope | None:
    return _scope.get()


@contextmanager
def entered(scope: Scope | None) -> Iterator[None]:
    """Number the calls inside in this scope; None keeps tasks made inside out of the run's numbering."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


TaskFactory = Callable[..., asyncio.Future[Any]]


def install(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Open a scope for every task that a run's code makes on this loop; returns a function that undoes it."""
    before: Any = loop.get_task_factory()

    def factory(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> asyncio.Future[Any]:
        parent = _scope.get()
        if parent is not None:
            context = kwargs.get("context") or copy_context()
            context.run(_scope.set, parent.for_task())
            kwargs["context"] = context
        task = before(loop, coro, **kwargs) if before else asyncio.Task(coro, loop=loop, **kwargs)
        if parent is not None and parent.branches is not None:
            parent.branches.keep(task)  # type: ignore[arg-type]
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    return lambda: loop.set_task_factory(before)
