"""Who may write a run, and what a worker does once it may not."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_STATEFUL = UNIT + "test_store_stateful.py"

FENCE = [
    Mutant(
        "fence: the epoch, in one statement",
        STORE + "fence.py",
        "AND lease_epoch = %s::bigint",
        "AND %s::bigint IS NOT NULL",
        (UNIT + "test_store_fence.py",),
    ),
    Mutant(
        "fence: the epoch, under any order of steps",
        STORE + "fence.py",
        "AND lease_epoch = %s::bigint",
        "AND %s::bigint IS NOT NULL",
        (_STATEFUL,),
    ),
    Mutant(
        "fence: the owner, in one statement",
        STORE + "fence.py",
        "AND lease_owner = %s::text",
        "AND %s::text IS NOT NULL",
        (UNIT + "test_store_fence.py",),
    ),
    Mutant(
        "fence: the owner, under any order of steps",
        STORE + "fence.py",
        "AND lease_owner = %s::text",
        "AND %s::text IS NOT NULL",
        (_STATEFUL,),
    ),
    Mutant(
        "fence: the epoch, through the ORM",
        STORE + "fence.py",
        "lease_epoch=lease.epoch, lease_owner=lease.owner",
        "lease_owner=lease.owner",
        (UNIT + "test_append.py",),
    ),
    Mutant(
        "fence: the owner, through the ORM",
        STORE + "fence.py",
        "lease_epoch=lease.epoch, lease_owner=lease.owner",
        "lease_epoch=lease.epoch",
        (UNIT + "test_append.py", _STATEFUL),
    ),
    Mutant(
        "fence: an append is known by its row id",
        RUNTIME + "effects.py",
        "        if seq is None:\n            raise\n        return seq",
        "        raise",
        (UNIT + "test_store_fence.py",),
    ),
]

CLAIM = [
    Mutant(
        "claim: only what is claimable",
        STORE + "leases.py",
        "filter(claimable(), id=run_id",
        "filter(id=run_id",
        (UNIT + "test_store_claim.py",),
    ),
    Mutant(
        "claim: only an expired lease",
        STORE + "leases.py",
        "Q(status=Status.RUNNING, lease_expires_at__lt=now)",
        "Q(status=Status.RUNNING)",
        (UNIT + "test_store_claim.py",),
    ),
    Mutant(
        "claim: not before its time",
        STORE + "leases.py",
        "Q(status=Status.PENDING) & _due()",
        "Q(status=Status.PENDING)",
        (UNIT + "test_store_claim.py",),
    ),
    Mutant(
        "claim: the epoch rises",
        STORE + "leases.py",
        '            lease_epoch=F("lease_epoch") + 1,\n',
        "",
        (UNIT + "test_store_claim.py",),
    ),
    Mutant(
        "claim: a crash is an expired running lease alone",
        STORE + "leases.py",
        "When(status=Status.RUNNING, then=1), default=0",
        "When(status=Status.RUNNING, then=1), default=1",
        (_STATEFUL,),
    ),
    Mutant(
        "poison: a run that takes its workers down is blocked",
        RUNTIME + "engine.py",
        "if lease.run.crashes >= conf.MAX_ATTEMPTS:",
        "if False:",
        (UNIT + "test_outcomes.py",),
    ),
]

HEARTBEAT = [
    Mutant(
        "heartbeat: the verdict lost",
        STORE + "leases.py",
        "if mine != epoch:",
        "if mine is None:",
        (UNIT + "test_store_claim.py",),
    ),
    Mutant(
        "heartbeat: a worker that lost its lease lets go",
        RUNTIME + "heartbeat.py",
        'if verdict in ("cancel", "lost", "woken"):',
        'if verdict in ("cancel", "woken"):',
        (UNIT + "test_lease_lost.py",),
    ),
    Mutant(
        "heartbeat: the watchdog of the loop",
        RUNTIME + "heartbeat.py",
        "if age < 2 * conf.LEASE_S:",
        "if True:",
        (UNIT + "test_heartbeat.py",),
    ),
    Mutant(
        "heartbeat: a locked row does not hold up the others",
        STORE + "leases.py",
        'skip_locked(held.order_by("id"))',
        'held.order_by("id").select_for_update()',
        (UNIT + "test_heartbeat.py",),
    ),
    Mutant(
        "lease age: nothing begins on an old lease",
        RUNTIME + "gate.py",
        "time.monotonic() - self.renewed_at > conf.LEASE_S * 0.8",
        "False",
        (UNIT + "test_lease_lost.py",),
    ),
]

WAITING = [
    Mutant(
        "suspend: the wake-up that was seen",
        STORE + "waiting.py",
        "id=lease.run_id, wake_seq=seen, cancel",
        "id=lease.run_id, cancel",
        (_STATEFUL,),
    ),
    Mutant(
        "suspend: not when it is to be cancelled",
        STORE + "waiting.py",
        "wake_seq=seen, cancel_requested_at=None)",
        "wake_seq=seen)",
        (_STATEFUL,),
    ),
    Mutant(
        "wake: by id alone, whatever the run does",
        STORE + "touching.py",
        "Run.objects.filter(id=run_id).update(",
        "Run.objects.filter(id=run_id, status=Status.SUSPENDED).update(",
        (_STATEFUL,),
    ),
    Mutant(
        "signal: consumed once",
        STORE + "waiting.py",
        "Signal.objects.filter(id=signal_id, consumed_at=None).update(",
        "Signal.objects.filter(id=signal_id).update(",
        (_STATEFUL,),
    ),
    Mutant(
        "finish: not with a message unseen",
        STORE + "journal.py",
        "if status == Status.COMPLETED and _unseen(run, inbox_upto):",
        "if False:",
        (_STATEFUL,),
    ),
    Mutant(
        "cancel: what has ended stays as it is",
        STORE + "control.py",
        "if run.is_terminal:",
        "if False:",
        (UNIT + "test_store_cancel.py",),
    ),
]
