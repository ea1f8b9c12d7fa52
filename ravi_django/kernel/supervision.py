"""A run's place in its tree, and the limits of the tree."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.kernel.cancellation import CancellationToken
from ravi_django.kernel.identity import AgentId


class Priority(IntEnum):
    BACKGROUND = 0
    LOW = 1
    NORMAL = 2
    HIGH = 4
    CRITICAL = 8


class HistoryRetention(StrEnum):
    NONE = "none"  # turns are not stored
    RUN = "run"  # dropped when the run ends
    PERMANENT = "permanent"  # kept with the session


class SpawnBudget(BaseModel):
    """How many agents of one tree may live at once; the root counts 1."""

    model_config = ConfigDict(frozen=True)

    max_agents: int = Field(default=50, ge=1)
    allow_preempt: bool = True  # HIGH and CRITICAL may pause a strictly lower one


class ExecutionBudget(BaseModel):
    """What a whole tree may use; None is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, ge=0)
    max_turns: int | None = Field(default=None, ge=1)  # model calls
    deadline_s: float | None = Field(default=None, gt=0)  # seconds from the run's start
    max_agents: int | None = Field(default=None, ge=1)
    allow_preempt: bool | None = None  # False: HIGH and CRITICAL pause no other run
    when_exhausted: Literal["fail", "ask"] = "fail"  # "ask": a person may raise it, and the run continues


class Supervision(BaseModel):
    """A run's position in its tree."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    session_id: str
    root_id: AgentId
    parent_id: AgentId | None = None
    depth: int = 0
    spawn_budget: SpawnBudget = Field(default_factory=SpawnBudget)
    execution_budget: ExecutionBudget = Field(default_factory=ExecutionBudget)
    retention: HistoryRetention = HistoryRetention.PERMANENT
    priority: Priority = Priority.NORMAL


class RunMeta(BaseModel):
    """The facts that every call below a run gets. Immutable: a child span gets a copy with a child token."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    run_id: str
    cancellation: CancellationToken = Field(default_factory=CancellationToken, exclude=True, repr=False)
    supervision: Supervision | None = None
    deadline: datetime | None = None  # UTC
    trace_id: str = ""
    tenant_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)  # of the run, as it was submitted

    def child(self, *, trace_id: str | None = None) -> RunMeta:
        """A copy whose token is cancelled with this one's."""
        return self.model_copy(
            update={"cancellation": self.cancellation.child(), "trace_id": trace_id or self.trace_id}
        )
