"""The right to write one run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ravi_django.models import Run


@dataclass(slots=True)
class Lease:
    """The right to write one run, until another claim raises the epoch."""

    run: Run  # the row as claimed
    epoch: int
    owner: str
    asked_at: float = field(default_factory=time.monotonic, compare=False)  # before the claim was sent, in seconds
    expired_at: datetime | None = None  # the end of the lost lease that this one follows
    sole: tuple[int, dict[str, Any]] | None = field(
        default=None, compare=False
    )  # its only message, if the claim read it
    fault: str = field(default="", compare=False)  # why the claim could not read a part of its rows
    woken: set[int] = field(default_factory=set, compare=False)  # the run's `wake_seq` as later appends have found it
    reserved: set[str] = field(default_factory=set, compare=False)  # calls that may hold a part of a budget
    next_seq: int = field(default=0, compare=False)  # of the run's next row, as the last append has left it

    def __post_init__(self) -> None:
        self.next_seq = self.next_seq or self.run.next_seq

    @property
    def run_id(self) -> UUID:
        return self.run.id
