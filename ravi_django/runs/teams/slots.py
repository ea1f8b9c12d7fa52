"""The slots of a tree: how many of its runs are at work at once, and which child waits for a free slot.

A pending or running run has a slot. A suspended or blocked run has none: so a parent that waits never keeps a slot from
its children. A child that finds no free slot is pending with `awaits_slot`: no worker claims it. The transaction that
frees a slot gives it to such a run, and the lock of the root puts these transactions in order. So a tree with a free
slot has no run that awaits one.

A run that wakes up takes a slot at once, also in a full tree: then the next free slots stay unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django.conf import conf
from ravi_django.engine.db import claim_order
from ravi_django.engine.lease.claims import skip_locked
from ravi_django.kernel import SpawnBudget
from ravi_django.kernel.supervision import Priority
from ravi_django.models import TERMINAL, Run, Status
from ravi_django.runs.wake import require

TREE = 10  # by default a tree may have so many times as many live runs as runs at work


def limit_of(root: Run | Member) -> SpawnBudget:
    """The limit of the root's tree."""
    return narrowed(SpawnBudget(max_agents=conf.MAX_AGENTS), recorded(root.budget))


def recorded(budget: dict[str, Any] | None) -> SpawnBudget | None:
    """The spawn limits of a row: a root's for its tree, a child's for the runs below it; None without any."""
    budget = budget or {}
    most, preempt = budget.get("max_agents"), budget.get("allow_preempt")
    if most is None and preempt is None:
        return None
    return SpawnBudget(max_agents=most or conf.MAX_AGENTS, allow_preempt=preempt is not False)


def joined(*budgets: SpawnBudget | None) -> dict[str, Any] | None:
    """The tightest limits of these, as a row holds them; None without any."""
    limits = [budget for budget in budgets if budget is not None]
    return narrowed(*limits).model_dump(mode="json") if limits else None


def narrowed(limit: SpawnBudget, *others: SpawnBudget | None) -> SpawnBudget:
    """The first limit, tightened by each of the others."""
    for other in filter(None, others):
        limit = SpawnBudget(
            max_agents=min(limit.max_agents, other.max_agents),
            allow_preempt=limit.allow_preempt and other.allow_preempt,
        )
    return limit


@dataclass(slots=True)
class Member:
    """A live run of a tree."""

    id: UUID
    parent_id: UUID | None
    status: str
    priority: int
    awaits_slot: bool
    cancel_requested_at: datetime | None
    budget: dict[str, Any] | None

    @property
    def is_at_work(self) -> bool:
        return self.status in (Status.PENDING, Status.RUNNING) and not self.awaits_slot


@dataclass(slots=True)
class Tree:
    """The live runs of a tree whose root is locked."""

    root_id: UUID
    limit: SpawnBudget  # of its runs at work
    runs: dict[UUID, Member]  # by id, without the root
    at_work: dict[UUID, int]  # how many of a run and the runs below it are at work

    @classmethod
    def of(cls, tree_id: UUID, allowed: SpawnBudget | None = None) -> Tree:
        """`allowed` is a limit that the root's agent sets, and that the root's row may not have yet."""
        live = Q(id=tree_id) | (Q(root_id=tree_id) & ~Q(status__in=TERMINAL))
        columns = ("id", "parent_id", "status", "priority", "awaits_slot", "cancel_requested_at", "budget")
        runs = {row[0]: Member(*row) for row in Run.objects.filter(live).values_list(*columns)}
        root = runs.pop(tree_id)
        tree = cls(tree_id, narrowed(limit_of(root), allowed), runs, {})
        for run in (root, *runs.values()):
            tree.count(run)
        return tree

    @property
    def most_live(self) -> int:
        """How many live runs the tree may have."""
        return int(conf.MAX_TREE or TREE * self.limit.max_agents)

    def above(self, run: Member) -> list[UUID]:
        """The run and its ancestors, the root last."""
        path, parent_id = [run.id], run.parent_id
        while parent_id in self.runs:
            path.append(parent_id)
            parent_id = self.runs[parent_id].parent_id
        return path if run.id == self.root_id else [*path, self.root_id]

    def count(self, run: Member) -> None:
        """Count a run that was not counted before."""
        if run.is_at_work:
            self._add(run, 1)

    def _add(self, run: Member, change: int) -> None:
        for run_id in self.above(run):
            self.at_work[run_id] = self.at_work.get(run_id, 0) + change

    def add(self, child: Run) -> UUID | None:
        """Give a new child a slot, or let it await one. Returns the run whose slot it takes, if any."""
        new = Member(child.id, child.parent_id, child.status, child.priority, False, None, child.budget)
        full = self.full_above(new) if new.is_at_work else None
        displaced = None if full is None else self._lower_than(new, full)
        if displaced is not None:
            displaced.awaits_slot = True
            self._add(displaced, -1)
        new.awaits_slot = full is not None and displaced is None
        self.runs[new.id] = new
        self.count(new)
        return None if displaced is None else displaced.id

    def full_above(self, child: Member) -> UUID | None:
        """The nearest run above this child whose limit is reached; None when there is a free slot."""
        at = child
        while at.parent_id in self.runs:  # a run's limit is on the rows of its children
            limit = recorded(at.budget)
            if limit is not None and self.at_work.get(at.parent_id, 0) >= limit.max_agents:
                return at.parent_id
            at = self.runs[at.parent_id]
        return self.root_id if self.at_work.get(self.root_id, 0) >= self.limit.max_agents else None

    def _lower_than(self, child: Member, full: UUID) -> Member | None:
        """The run at work whose slot a HIGH or CRITICAL child takes: of those below `full` with a strictly lower
        priority the lowest, then the newest. Never a run above the child, or one that is being cancelled."""
        if child.priority < Priority.HIGH or not narrowed(self.limit, recorded(child.budget)).allow_preempt:
            return None
        above = self.above(child)
        lower = [
            run
            for run in self.runs.values()
            if run.is_at_work and run.priority < child.priority and run.cancel_requested_at is None
            if run.id not in above and full in self.above(run)
        ]
        return min(lower, key=lambda run: (run.priority, -run.id.int), default=None)


def promote(tree_id: UUID, held: set[UUID]) -> list[UUID]:
    """Give the free slots of a tree to the runs that await one: the highest priority first, then the oldest. The
    caller holds the lock of the root, and has written what frees a slot. Returns the runs to hint. Raises NotLocked."""
    if not Run.objects.filter(root_id=tree_id, awaits_slot=True).exists():
        return []
    tree, promoted = Tree.of(tree_id), []
    awaiting = [run for run in tree.runs.values() if run.awaits_slot]
    for run in sorted(awaiting, key=lambda run: (-run.priority, run.id)):
        full = tree.full_above(run)
        if full == tree_id:
            break
        if full is None:
            run.awaits_slot = False
            tree.count(run)
            promoted.append(run.id)
    # Runs of a queue are seldom locked: to roll back and lock them in order each time would make all other ends wait.
    free = skip_locked(Run.objects.filter(id__in=promoted)).values_list("id", flat=True)
    require(set(promoted) - set(free), held)
    Run.objects.filter(id__in=promoted).update(
        awaits_slot=False, claim_at=claim_order.of_row(), hints=0, hint_after=None
    )
    return promoted


def reached(start: Iterable[UUID], step: Callable[[set[UUID]], Iterable[UUID]]) -> set[UUID]:
    """`start` and all that repeated steps lead to. A step gets the new ids of the step before."""
    edge = ids = set(start)
    while edge:
        edge = set(step(edge)) - ids
        ids = ids | edge
    return ids


def above(run: Run) -> set[UUID]:
    """The run itself and its ancestors."""
    ids, at = {run.id}, run.parent_id
    while at is not None:
        ids.add(at)
        at = Run.objects.values_list("parent_id", flat=True).get(id=at)
    return ids
