"""The slots of a tree: how many of its runs may live at once, and which run is paused for another.

A run holds its slot from its spawn to its end, also while it waits. Only a pause frees the slot: no worker claims a
paused run, and it continues when there is room. Counting slots and changing pauses takes the lock of the root.

The limit is the least of `RAVI["MAX_AGENTS"]` and `max_agents` of the root's budget. The tree may exceed it after an
operator has lifted a pause, or after `let_go`: the slot of a run that waits may be the one that the paused run needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import SpawnBudget
from ravi_django.kernel.supervision import Priority
from ravi_django.models import TERMINAL, Ask, JournalEntry, Run, Status
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import write_outside
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.lease.facts import Paused
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.waking import lock, require


def limit_of(root: Run) -> SpawnBudget:
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
    given = [budget for budget in budgets if budget is not None]
    return narrowed(*given).model_dump(mode="json") if given else None


def narrowed(limit: SpawnBudget, *others: SpawnBudget | None) -> SpawnBudget:
    """The first limit, tightened by each of the others."""
    for other in filter(None, others):
        limit = SpawnBudget(
            max_agents=min(limit.max_agents, other.max_agents),
            allow_preempt=limit.allow_preempt and other.allow_preempt,
        )
    return limit


def live(tree_id: UUID) -> int:
    """The number of taken slots of the tree, the root's included."""
    return Run.objects.filter(root_id=tree_id, paused_at=None).exclude(status__in=TERMINAL).count() + 1


def live_below(run: Run) -> list[tuple[UUID, int, SpawnBudget | None]]:
    """For a run below the root, and each run between the two: its id, the number of slots of it and the runs below it,
    and the limit that it has set for them, as its child's row has it; None for the run itself. One query."""
    names = ("id", "parent_id", "status", "paused_at", "budget")
    tree = {row[0]: row[1:] for row in Run.objects.filter(root_id=run.tree_id).values_list(*names)}
    taken = dict.fromkeys(tree, 0)
    for run_id, (_, status, paused_at, _) in tree.items():
        if paused_at is None and status not in TERMINAL:
            at: UUID | None = run_id
            while at in tree:
                taken[at] += 1
                at = tree[at][0]
    found: list[tuple[UUID, int, SpawnBudget | None]] = []
    limit, at = None, run.id
    while at in tree:
        found.append((at, taken[at], limit))
        at, limit = tree[at][0], recorded(tree[at][3])  # a run's limit is on the rows of its children
    return found


def who_gives_way(spawner: Run, priority: int) -> Run | None:
    """The run that a child of this priority may pause: of those strictly below it the lowest, then the newest. Never
    the spawner or a run above it, one that others wait for, or one that is being cancelled."""
    lower = Run.objects.filter(
        root_id=spawner.tree_id, paused_at=None, cancel_requested_at=None, priority__lt=priority
    ).exclude(status__in=TERMINAL)
    candidates = lower.exclude(id__in=above(spawner)).order_by("priority", "-id")
    return next((run for run in candidates.iterator() if not is_needed(run)), None)


def pause(run: Run, taker: Run) -> Paused:
    """Take the slot of a locked run for another. The caller notifies the run's worker, which gives it back at its next
    check."""
    taken_by = {"run": str(taker.id), "agent": taker.agent, "priority": Priority(taker.priority).name.lower()}
    run.parent = Run.objects.only("agent").get(id=run.parent_id)  # its frame on the event loop needs it
    return Paused(run, _change(run, "paused", {"taken_by": taken_by}, paused_at=clock.now()))


def lift_pause(run_id: UUID | str) -> list[UUID]:
    """Lift a pause, whether there is room or not. Returns the runs to hint; none when the run is not paused."""
    with transaction.atomic():
        lock(to_resume(UUID(str(run_id))))
        run = Run.objects.select_for_update(no_key=True).get(id=run_id)
        return _unpause(run) if run.paused_at is not None else []


def to_resume(run_id: UUID) -> set[UUID]:
    """The runs to lock before a pause is lifted."""
    return {run_id, Run.objects.values_list("root_id", flat=True).get(id=run_id) or run_id}


def let_go(ahead: Mapping[UUID, datetime | None], asker_id: UUID, held: set[UUID]) -> list[UUID]:
    """Lift the pauses of the runs that a run is about to wait for; `ahead` has since when each is paused. One that only
    runs above it wait for stays paused: they hold none of its slots. Returns the runs to hint. Raises NotLocked."""
    asleep = [run_id for run_id, paused_at in ahead.items() if paused_at is not None]
    if not asleep:
        return []
    waiting = {asker_id} | waiters(asker_id)
    needed = [run for run in Run.objects.filter(id__in=asleep).order_by("id") if is_needed(run, waiting)]
    require({id for run in needed for id in (run.id, run.tree_id)}, held)
    return [run_id for run in needed if run.paused_at is not None for run_id in _unpause(run)]


def resume_in_room(run_id: UUID) -> list[UUID]:
    """Lift a pause if the tree has room; else it is lifted later. The root and the run are locked."""
    run = Run.objects.select_related("root").get(id=run_id)
    return _unpause(run) if run.paused_at is not None and _has_room(run.root or run) else []


def resume_paused(tree_id: UUID) -> list[UUID]:
    """Give a tree's free slots to its paused runs: the highest priority first, then the oldest. In transactions of its
    own, after the one that freed the slots. Returns the runs to hint."""
    resumed: list[UUID] = []
    while (run := _paused(tree_id).first()) is not None:
        with transaction.atomic():
            lock([tree_id, run.id])
            if not _has_room(Run.objects.get(id=tree_id)):
                return resumed
            if _paused(tree_id).values_list("id", flat=True).first() == run.id:
                resumed += _unpause(Run.objects.get(id=run.id))
    return resumed


def trees_with_paused(limit: int) -> list[UUID]:
    """Roots of trees that have paused runs, in random order: full trees must not keep out the others."""
    paused = Run.objects.filter(paused_at__isnull=False).values("root_id")
    return list(Run.objects.filter(id__in=paused).order_by("?").values_list("id", flat=True)[:limit])


def _paused(tree_id: UUID) -> QuerySet[Run]:
    """The paused runs that can use a slot. A blocked one waits for an operator."""
    paused = Run.objects.filter(root_id=tree_id, paused_at__isnull=False, cancel_requested_at=None)
    return paused.exclude(status__in=[*TERMINAL, Status.BLOCKED]).order_by("-priority", "id")


def _has_room(root: Run) -> bool:
    return live(root.id) < limit_of(root).max_agents


def _unpause(run: Run) -> list[UUID]:
    _change(run, "unpaused", None, paused_at=None, hints=0, hint_after=None)
    return [run.id]


def _change(run: Run, what: str, result: dict[str, Any] | None, **changes: Any) -> JournalEntry:
    """Write the change of a locked run and its row."""
    return write_outside(run, Entry(f"run.{what}", f"@{what}.{run.next_seq}", result=result), **changes)


def reached(start: Iterable[UUID], step: Callable[[set[UUID]], Iterable[UUID]]) -> set[UUID]:
    """`start` and all that repeated steps lead to. A step gets the new ids of the step before."""
    edge = found = set(start)
    while edge:
        edge = set(step(edge)) - found
        found = found | edge
    return found


def awaited(run_id: UUID) -> dict[UUID, datetime | None]:
    """The runs that this run waits for, and since when each is paused."""
    found: dict[UUID, datetime | None] = {}
    edge = {run_id}
    while edge:
        asked = Ask.objects.filter(asker_id__in=edge, outcome=None).exclude(asker__status__in=TERMINAL)
        targets = dict(asked.values_list("target_id", "target__paused_at"))
        edge = targets.keys() - found.keys()
        found |= targets
    return found


def waiters(run_id: UUID) -> set[UUID]:
    """The runs that wait for this run."""

    def asking(edge: set[UUID]) -> Iterable[UUID]:
        open_asks = Ask.objects.filter(target_id__in=edge, outcome=None).exclude(asker__status__in=TERMINAL)
        return open_asks.values_list("asker_id", flat=True)

    return reached(asking({run_id}), asking)


def above(run: Run) -> set[UUID]:
    """The run itself and its ancestors."""
    found, at = {run.id}, run.parent_id
    while at is not None:
        found.add(at)
        at = Run.objects.values_list("parent_id", flat=True).get(id=at)
    return found


def is_needed(run: Run, also: Iterable[UUID] = ()) -> bool:
    """Whether a run that is not above it waits for it, or one of `also` is about to."""
    waiting = waiters(run.id) | set(also)
    return bool(waiting) and not waiting <= above(run)


def resume(run_id: UUID | str) -> bool:
    """Let a paused run continue, for an operator: its tree may exceed its limit until runs end. Returns whether it was
    paused."""
    resumed = lift_pause(run_id)
    _hint(resumed)
    return bool(resumed)


def resume_in(tree_id: UUID) -> None:
    """A run of the tree has ended: let paused runs continue after the commit. The sweep does it if this fails."""
    transaction.on_commit(lambda: _hint(resume_paused(tree_id)), robust=True)


def _hint(run_ids: Iterable[UUID]) -> None:
    for claimable in run_ids:
        hints.on_commit(claimable)
