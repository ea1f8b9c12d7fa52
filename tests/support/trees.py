"""Trees of runs, made by the store alone: which runs have a slot, and which wait for one."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from ravi_django.kernel import SpawnBudget
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run, Status, uuid7
from tests.support import world
from tests.support.runs import leased, make_run, message
from tests.support.world import Entry, Lease

CHILD = "test/child"
TAKER = "test/taker"  # registered nowhere: no worker of a test takes it


def root(limit: int | None = None, **fields: Any) -> Lease:
    """A root run that is driven, in whose tree so many runs may be at work."""
    budget = None if limit is None else {"max_agents": limit}
    return leased(make_run(budget=budget, **fields))


def spawn(
    lease: Lease, priority: Priority | None = None, agent: str = CHILD, *, allowed: SpawnBudget | None = None
) -> Run:
    """A pending child, which may await a slot. Raises SpawnDeniedError."""
    child = world.make_child(lease, agent, uuid7(), uuid7(), priority=priority, deadline=None, allowed=allowed)
    entry = Entry("child.spawned", uuid7().hex, agent, result={"run": str(child.id)})
    world.spawn(lease, [entry], spawning=[world.Spawning(child, message("x", agent), allowed)])
    return child


def ended(lease: Lease, status: Status = Status.COMPLETED) -> list[Any]:
    """End the run as its worker does; returns the runs to hint."""
    _, hints = world.finish(lease, status, [Entry(f"run.{status}", f"@{status}.{lease.epoch}")], output="")
    return hints


def suspended(lease: Lease) -> list[Any]:
    """Suspend the run as its worker does; returns the runs to hint."""
    seen = Run.objects.values_list("wake_seq", flat=True).get(id=lease.run_id)
    entry = Entry("run.suspended", f"@suspended.{lease.epoch}")
    settled = world.suspend(lease, [entry], seen=seen, waits=[], wake_at=None)
    assert settled.status == Status.SUSPENDED
    return settled.hints


def at_work(lease: Lease) -> int:
    """How many runs of the tree have a slot."""
    tree = Run.objects.filter(Q(id=lease.run.tree_id) | Q(root_id=lease.run.tree_id), awaits_slot=False)
    return tree.filter(status__in=[Status.PENDING, Status.RUNNING]).count()


def awaiting(lease: Lease) -> list[Run]:
    """The tree's runs that await a slot, the oldest first."""
    return list(Run.objects.filter(root_id=lease.run.tree_id, awaits_slot=True).order_by("id"))


def awaits_slot(run: Run) -> bool:
    return Run.objects.filter(id=run.id, awaits_slot=True).exists()


def expire(run: Run) -> None:
    """Its worker is gone."""
    Run.objects.filter(id=run.id).update(lease_expires_at=world.clock_after(-1))
