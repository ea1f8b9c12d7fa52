"""How many runs of a tree live at once, and who gives way."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_SLOTS = (UNIT + "test_spawn_slots.py",)
_PAUSES = (UNIT + "test_preemption.py",)

SLOTS = [
    Mutant(
        "slots: counted under the root's lock",
        STORE + "spawning.py",
        "locking({lease.run.tree_id, lease.run_id}, write)",
        "locking({lease.run_id}, write)",
        _SLOTS,
    ),
    Mutant(
        "slots: what has ended holds none",
        STORE + "slots.py",
        "paused_at=None).exclude(status__in=TERMINAL).count() + 1",
        "paused_at=None).count() + 1",
        _SLOTS,
    ),
    Mutant(
        "slots: only strictly lower runs give way",
        STORE + "slots.py",
        "priority__lt=priority",
        "priority__lte=priority",
        _SLOTS,
    ),
    Mutant(
        "slots: no run above the spawner gives way",
        STORE + "slots.py",
        "lower.exclude(id__in=above)",
        "lower",
        _SLOTS,
    ),
    Mutant(
        "slots: nobody gives way to NORMAL",
        STORE + "spawning.py",
        "if child.priority < Priority.HIGH or",
        "if",
        _SLOTS,
    ),
    Mutant(
        "slots: no pause where it is forbidden",
        STORE + "spawning.py",
        " or not own.allow_preempt or",
        " or",
        _SLOTS,
    ),
    Mutant(
        "slots: the tree's limit outlives the lease that set it",
        STORE + "spawning.py",
        "            Run.objects.filter(id=lease.run_id).update(budget=limit)\n",
        "            pass\n",
        _SLOTS,
    ),
    Mutant(
        "slots: a resumption needs room",
        STORE + "slots.py",
        "            if not _has_room(Run.objects.get(id=tree_id)):\n                return resumed\n",
        "",
        _PAUSES,
    ),
    Mutant(
        "slots: a takeover drives no paused run on",
        RUNTIME + "engine.py",
        "            if lease.run.paused_at is not None and",
        "            if False and",
        _PAUSES,
    ),
    Mutant(
        "slots: who drives a paused run is told",
        STORE + "leases.py",
        "        elif paused:\n",
        "        elif False:\n",
        _PAUSES,
    ),
    Mutant(
        "slots: an ending resumes",
        RUNTIME + "engine.py",
        "            self.wake(await self.database.call(store.resume_paused, tree_id))\n",
        "            pass\n",
        _PAUSES,
    ),
    Mutant(
        "slots: who was resumed before it had yielded is hinted",
        RUNTIME + "engine.py",
        "        if active.paused and not self.draining:",
        "        if False:",
        _PAUSES,
    ),
    Mutant(
        "slots: a check tears down no open effect",
        RUNTIME + "gate.py",
        "        if self.stop is None or self._open:\n",
        "        if self.stop is None:\n",
        _PAUSES,
    ),
    Mutant(
        "slots: the epoch rises with a pause that no lease covers",
        STORE + "slots.py",
        "epoch = run.lease_epoch + (run.status != Status.RUNNING)",
        "epoch = run.lease_epoch",
        _PAUSES,
    ),
    Mutant(
        "slots: the sweep resumes",
        RUNTIME + "sweeper.py",
        "for tree in store.trees_with_paused(BATCH)",
        "for tree in ()",
        _PAUSES,
    ),
]
