"""A run's place in its tree, the limits of the tree, and its cooperative cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.kernel.errors import CancellationError
from ravi_django.kernel.identity import AgentId

DEADLINE = "deadline passed"  # the reason of a token whose deadline has passed


class CancellationToken:
    """Poll it with `check()`, await it with `wait()`; it cascades to children. Safe to cancel from any thread.

    `deadline` is in seconds of `clock` (monotonic by default); a passed deadline reads as cancelled.
    """

    def __init__(self, *, deadline: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadline = deadline
        self._clock = clock
        self._reason: str | None = None
        self._children: list[CancellationToken] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def reason(self) -> str | None:
        """Why it was cancelled; None before that."""
        if self._reason is None and self.deadline is not None and self._clock() >= self.deadline:
            self.cancel(DEADLINE)
        return self._reason

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled or its deadline has passed."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel; the first reason stays."""
        if self._reason is not None:
            return
        self._reason = reason
        for loop, waiter in self._waiters:
            loop.call_soon_threadsafe(_wake, waiter)
        self._waiters.clear()
        for child in self._children:
            child.cancel(reason)

    def check(self) -> None:
        """Raise CancellationError when cancelled or past the deadline."""
        if (reason := self.reason) is not None:
            raise CancellationError(reason)

    async def wait(self) -> None:
        """Return once the token is cancelled or its deadline has passed."""
        if self.cancelled:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        entry = (loop, waiter)
        self._waiters.append(entry)
        try:
            remaining = None if self.deadline is None else max(0.0, self.deadline - self._clock())
            await asyncio.wait([waiter], timeout=remaining)
            _ = self.reason  # a passed deadline cancels
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)

    def child(self, *, deadline: float | None = None) -> CancellationToken:
        """A linked token: cancelled with this one, and by its own deadline if that is earlier."""
        limits = [limit for limit in (self.deadline, deadline) if limit is not None]
        token = CancellationToken(deadline=min(limits, default=None), clock=self._clock)
        self._children.append(token)
        if self._reason is not None:
            token.cancel(self._reason)
        return token


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Priority(IntEnum):
    """Which pending run is claimed first; in a full tree, which run goes first."""

    BACKGROUND = 0
    LOW = 1
    NORMAL = 2
    HIGH = 4
    CRITICAL = 8


class HistoryRetention(StrEnum):
    """How long the turns of a run are kept."""

    NONE = "none"  # turns are not stored
    RUN = "run"  # dropped when the run ends
    PERMANENT = "permanent"  # kept with the session


class SpawnBudget(BaseModel):
    """How many agents of one tree may be at work at once; the root counts 1, an agent that waits counts 0."""

    model_config = ConfigDict(frozen=True)

    max_agents: int = Field(default=50, ge=1)  # at work at once
    allow_preempt: bool = True  # HIGH and CRITICAL may take the slot of a strictly lower one


class ExecutionBudget(BaseModel):
    """What a whole tree may use; None is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=1)  # input and output of all model calls
    max_cost_usd: float | None = Field(default=None, ge=0)  # US dollars, of all model calls
    max_turns: int | None = Field(default=None, ge=1)  # model calls
    deadline_s: float | None = Field(default=None, gt=0)  # seconds from the run's start
    max_agents: int | None = Field(default=None, ge=1)  # at work at once
    allow_preempt: bool | None = None  # False: HIGH and CRITICAL take no other run's slot
    when_exhausted: Literal["fail", "ask"] = "fail"  # "ask": a person may raise it, and the run continues


class Supervision(BaseModel):
    """A run's position in its tree."""

    model_config = ConfigDict(frozen=True)

    run_id: str  # the UUID of the run
    session_id: str  # the UUID of its conversation
    root_id: AgentId  # the agent at the root of the tree
    parent_id: AgentId | None = None  # the agent that started this run; None at the root
    depth: int = 0  # 0 at the root, 1 for its children
    spawn_budget: SpawnBudget = Field(default_factory=SpawnBudget)  # of the tree
    execution_budget: ExecutionBudget = Field(default_factory=ExecutionBudget)  # of the tree
    retention: HistoryRetention = HistoryRetention.PERMANENT  # how long the turns are kept
    priority: Priority = Priority.NORMAL  # which pending run is claimed first


class RunMeta(BaseModel):
    """The facts that every call below a run gets. Immutable: a child span gets a copy with a child token."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    run_id: str  # the UUID of the run
    # Cancelled with the run.
    cancellation: CancellationToken = Field(default_factory=CancellationToken, exclude=True, repr=False)
    supervision: Supervision | None = None  # its position in the tree
    deadline: datetime | None = None  # UTC
    trace_id: str = ""  # the id of the tree's root run, for logs
    tenant_id: str | None = None  # the run's tenant; None without one
    metadata: dict[str, Any] = Field(default_factory=dict)  # of the run, as it was submitted
    result_schema: dict[str, Any] | None = None  # JSON Schema of the result that the request asked for

    def child(self, *, trace_id: str | None = None) -> RunMeta:
        """A copy whose token is cancelled with this one's."""
        return self.model_copy(
            update={"cancellation": self.cancellation.child(), "trace_id": trace_id or self.trace_id}
        )
