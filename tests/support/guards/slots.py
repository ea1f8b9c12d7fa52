"""How many runs of a tree live at once, and who gives way."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_SLOTS = (UNIT + "test_spawn_slots.py",)
_PAUSES = (UNIT + "test_preemption.py",)
_WAITS = (UNIT + "test_paused_waits.py",)

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
        "lower.exclude(id__in=above(spawner))",
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
        " or not own.allow_preempt:",
        ":",
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
        " or (run.paused_at is not None and run.cancel_requested_at is None)",
        "",
        _PAUSES,
    ),
    Mutant(
        "slots: who drives a paused run is told",
        STORE + "leases.py",
        "    if paused:\n",
        "    if False:\n",
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
    Mutant(
        "slots: a paused run that is waited for goes on",
        STORE + "asking.py",
        "                let_go.extend(slots.let_go({**ahead, target.id: target.paused_at}, ask.asker_id, held))\n",
        "",
        _WAITS,
    ),
    Mutant(
        "slots: over several asks too",
        STORE + "asking.py",
        "{**ahead, target.id: target.paused_at}",
        "{target.id: target.paused_at}",
        _WAITS,
    ),
    Mutant(
        "slots: who waits for the asker waits too",
        STORE + "slots.py",
        "waiting = {asker_id} | waiters(asker_id)",
        "waiting = {asker_id}",
        _WAITS,
    ),
    Mutant(
        "slots: those above a paused run lift no pause by their waits",
        STORE + "waiters.py",
        "return bool(waiting) and not waiting <= above(run)",
        "return bool(waiting)",
        _WAITS,
    ),
    Mutant(
        "slots: who is waited for does not give way",
        STORE + "slots.py",
        "for run in candidates.iterator() if not is_needed(run)",
        "for run in candidates.iterator()",
        _WAITS,
    ),
    Mutant(
        "slots: none for a blocked run",
        STORE + "slots.py",
        "status__in=[*TERMINAL, Status.BLOCKED]",
        "status__in=TERMINAL",
        _PAUSES,
    ),
    Mutant(
        "slots: a handoff gives those of its children back",
        RUNTIME + "engine.py",
        "        if is_handoff or (settled.status",
        "        if (settled.status",
        _PAUSES,
    ),
    Mutant(
        "slots: a limit below the root counts what is below it",
        STORE + "spawning.py",
        "        _check_below(spawner, own)\n",
        "        pass\n",
        _SLOTS,
    ),
    Mutant(
        "slots: every limit on the way up counts",
        STORE + "spawning.py",
        "limit = own if run_id == spawner.id else said",
        "limit = own if run_id == spawner.id else None",
        _SLOTS,
    ),
]
