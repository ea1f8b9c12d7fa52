"""Trees of runs, made by the store alone: who has a slot, who waits for one."""

from __future__ import annotations

from typing import Any

from ravi_django.kernel import SpawnBudget
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run, Status, uuid7
from tests.support import world
from tests.support.runs import leased, make_run, message
from tests.support.world import Entry, Lease

CHILD = "test/child"
TAKER = "test/taker"  # registered nowhere: no worker of a test takes it


def root(limit: int | None = None, **fields: Any) -> Lease:
    """A root run that is driven, in whose tree so many runs may live."""
    budget = None if limit is None else {"max_agents": limit}
    return leased(make_run(budget=budget, **fields))


def spawn(
    lease: Lease, priority: Priority | None = None, agent: str = CHILD, *, allowed: SpawnBudget | None = None
) -> Run:
    """A pending child. Raises SpawnDeniedError."""
    child = world.make_child(lease, agent, uuid7(), uuid7(), priority=priority, deadline=None, allowed=allowed)
    entry = Entry("child.spawned", uuid7().hex, agent, result={"run": str(child.id)})
    world.spawn(lease, [entry], spawning=[world.Spawning(child, message("x", agent), allowed, [])])
    return child


def ended(lease: Lease, status: Status = Status.COMPLETED) -> list[Any]:
    """End the run as its worker does; returns the runs that go on because of it."""
    _, hints = world.finish(lease, status, [Entry(f"run.{status}", f"@{status}.{lease.epoch}")], output="")
    return [*hints, *world.resume_paused(lease.run.tree_id)]


def suspended(lease: Lease) -> None:
    seen = Run.objects.values_list("wake_seq", flat=True).get(id=lease.run_id)
    entry = Entry("run.suspended", f"@suspended.{lease.epoch}")
    _, status = world.suspend(lease, [entry], seen=seen, waits=[], wake_at=None)
    assert status == Status.SUSPENDED


def paused(lease: Lease) -> list[Run]:
    """The tree's paused runs, the oldest first."""
    return list(Run.objects.filter(root_id=lease.run.tree_id, paused_at__isnull=False).order_by("id"))


def is_paused(run: Run) -> bool:
    return Run.objects.filter(id=run.id, paused_at__isnull=False).exists()


def expire(run: Run) -> None:
    """Its worker is gone."""
    Run.objects.filter(id=run.id).update(lease_expires_at=world.clock_after(-1))
