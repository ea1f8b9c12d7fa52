"""The tasks of one lease, and its calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ravi_django.kernel import SuspendInterrupt

inside: ContextVar[tuple[object, ...]] = ContextVar("ravi_inside", default=())  # the open effects around this code


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits, for a condition, for its turn in the order of results, or for the end of the lease."""

    future: asyncio.Future[None]
    inside: tuple[object, ...]  # the open effects around it, which wait for it
    wait: Any = None  # its condition, a `Wait`; None if it has none


class RunTasks:
    """Used only on the loop's thread."""

    def __init__(self) -> None:
        self.main: asyncio.Task[Any] | None = None
        self.others: set[asyncio.Task[Any]] = set()  # made by the code

    def start(self, code: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run the agent's code as the main task."""
        self.main = asyncio.create_task(code, name=name)
        return self.main

    def keep(self, task: asyncio.Task[Any]) -> None:
        self.others.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self.others.remove(task)
        if not task.cancelled() and isinstance(task._exception, SuspendInterrupt):
            task.exception()  # the lease ended: asyncio need not log the error of a task that is not awaited

    @property
    def alone(self) -> bool:
        """Whether the run has one task, so nothing runs concurrently."""
        return not self.others

    def cancel_main(self) -> None:
        if self.main is not None:
            self.main.cancel()

    def close(self) -> None:
        """The agent's code has ended."""
        self.main = None
