"""Who may write a run, and what a worker does once it may not."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_STATEFUL = UNIT + "test_store_stateful.py"
_SIMULATION = "tests/sim/test_simulation.py"

FENCE = [
    Mutant(
        "fence, in the simulation",
        STORE + "fence.py",
        "lease_epoch = %s::bigint AND lease_owner = %s::text {since}",
        "%s::bigint IS NOT NULL AND %s::text IS NOT NULL {since}",
        (_SIMULATION,),
    ),
    Mutant(
        "wake_seq, in the simulation",
        STORE + "waiting.py",
        "id=lease.run_id, wake_seq=seen, cancel",
        "id=lease.run_id, cancel",
        (_SIMULATION,),
    ),
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
        RUNTIME + "appending.py",
        "        if seq is None:\n            raise\n        return seq",
        "        raise",
        (UNIT + "test_store_fence.py",),
    ),
]

_CLAIMED = (UNIT + "test_store_claim.py",)

CLAIM = [
    Mutant(
        "claim: only what is claimable",
        STORE + "claims.py",
        "WHERE {which} AND {_KNOWN} AND (({_READY}) OR ({_TIMED}) OR ({_EXPIRED}))",
        "WHERE {which} AND {_KNOWN}",
        _CLAIMED,
    ),
    Mutant(
        "claim: only an expired lease",
        STORE + "claims.py",
        """_EXPIRED = f"status = 'running' AND lease_expires_at < {NOW}\"""",
        """_EXPIRED = "status = 'running'\"""",
        _CLAIMED,
    ),
    Mutant(
        "claim: not before its time",
        STORE + "claims.py",
        """f"status = 'pending' AND {_MAY_GO_ON} AND {_DUE}\"""",
        """f"status = 'pending' AND {_MAY_GO_ON}\"""",
        _CLAIMED,
    ),
    Mutant(
        "claim: no timer before its time",
        STORE + "claims.py",
        """f"status = 'suspended' AND {_MAY_GO_ON} AND wake_at <= {NOW}\"""",
        """f"status = 'suspended' AND {_MAY_GO_ON}\"""",
        (*_CLAIMED, UNIT + "test_waiting.py"),
    ),
    Mutant(
        "claim: nothing that is paused",
        STORE + "claims.py",
        """f"status = 'pending' AND {_MAY_GO_ON} AND {_DUE}\"""",
        """f"status = 'pending' AND {_DUE}\"""",
        _CLAIMED,
    ),
    Mutant(
        "claim: the head start of the priority",
        STORE + "touching.py",
        "min(one, most) * conf.PRIORITY_HEAD_START_S",
        "conf.PRIORITY_HEAD_START_S",
        _CLAIMED,
    ),
    Mutant(
        "claim: the epoch rises",
        STORE + "claims.py",
        " lease_epoch = lease_epoch + 1,",
        "",
        _CLAIMED,
    ),
    Mutant(
        "claim: a crash is an expired running lease alone",
        STORE + "claims.py",
        "({_CRASHED})::int",
        "1",
        (*_CLAIMED, _STATEFUL),
    ),
    Mutant(
        "claim: a slot is kept for expired leases",
        RUNTIME + "engine.py",
        "max(1, conf.MAX_RUNS - 1)",
        "conf.MAX_RUNS",
        (UNIT + "test_engine.py",),
    ),
    Mutant(
        "claim: a worker that lives blames no run",
        STORE + "claims.py",
        "AND alive.seen_at > lease_expires_at",
        "AND false",
        (UNIT + "test_engine.py",),
    ),
    Mutant(
        "claim: one suspect at a time",
        STORE + "claims.py",
        "= known.agent AND {_READY} AND {_ALLOWED}",
        "= known.agent AND {_READY}",
        (UNIT + "test_engine.py",),
    ),
    Mutant(
        "poison: a run that takes its workers down is blocked",
        RUNTIME + "engine.py",
        "if lease.run.crashes >= conf.MAX_ATTEMPTS:",
        "if False:",
        (UNIT + "test_odd_code.py",),
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
        'if verdict in ("cancel", "lost", "paused", "woken"):',
        'if verdict in ("cancel", "paused", "woken"):',
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
        "heartbeat: a locked row is waited for",
        STORE + "leases.py",
        "            if run_id in skipped:",
        "            if False:",
        (UNIT + "test_heartbeat.py",),
    ),
    Mutant(
        "heartbeat: a transaction that signals a run does not lock it",
        STORE + "leases.py",
        "skip_locked=True, no_key=True",
        "skip_locked=True",
        (UNIT + "test_heartbeat.py",),
    ),
    Mutant(
        "lease age: nothing begins on an old lease",
        RUNTIME + "gate.py",
        "time.monotonic() - self.renewed_at <= conf.LEASE_S * 0.8",
        "True",
        (UNIT + "test_lease_lost.py",),
    ),
]

WAITING = [
    Mutant(
        "suspend: the wake-up that was seen",
        STORE + "waiting.py",
        "id=lease.run_id, wake_seq=seen, cancel",
        "id=lease.run_id, cancel",
        (UNIT + "test_wake_up.py", _STATEFUL),
    ),
    Mutant(
        "suspend: not when it is to be cancelled",
        STORE + "waiting.py",
        "wake_seq=seen, cancel_requested_at=None)",
        "wake_seq=seen)",
        (UNIT + "test_wake_up.py", _STATEFUL),
    ),
    Mutant(
        "wake: by id alone, whatever the run does",
        STORE + "touching.py",
        "Run.objects.filter(id=run_id).update(",
        "Run.objects.filter(id=run_id, status=Status.SUSPENDED).update(",
        (UNIT + "test_wake_up.py", _STATEFUL),
    ),
    Mutant(
        "signal: consumed once",
        STORE + "waiting.py",
        "filter(id=signal_id, consumed_at=None)",
        "filter(id=signal_id)",
        (UNIT + "test_wake_up.py",),
    ),
    Mutant(
        "finish: not with a message unseen",
        STORE + "journal.py",
        "if status == Status.COMPLETED and _unseen(run, inbox_upto):",
        "if False:",
        (UNIT + "test_wake_up.py", _STATEFUL),
    ),
    Mutant(
        "cancel: what has ended stays as it is",
        STORE + "control.py",
        "if run.is_terminal:",
        "if False:",
        (UNIT + "test_store_settle.py",),
    ),
    Mutant(
        "suspend: what is seen after the decision is not seen",
        RUNTIME + "effects.py",
        "        if self.stop is not None:  # no wait is met any more",
        "        if False:  # no wait is met any more",
        (UNIT + "test_wake_up.py",),
    ),
    Mutant(
        "replay: nothing new before what is recorded",
        RUNTIME + "gate.py",
        "if self.stop is None and not self.journal.replaying and (found",
        "if self.stop is None and (found",
        (UNIT + "test_waiting.py",),
    ),
    Mutant(
        "spawn: no child of a run that is to be cancelled",
        STORE + "spawning.py",
        "if Run.objects.filter(id=lease.run_id, cancel_requested_at__isnull=False).exists():",
        "if False:",
        (UNIT + "test_asks.py",),
    ),
    Mutant(
        "spawn: no more than the tree has room for",
        STORE + "spawning.py",
        "    if taken < tree.max_agents:",
        "    if True:",
        (UNIT + "test_spawn_slots.py",),
    ),
    Mutant(
        "ask: a reply settles what is open alone",
        STORE + "asking.py",
        "asks.filter(outcome=None).update(",
        "asks.update(",
        (UNIT + "test_asks.py",),
    ),
    Mutant(
        "ask: the end settles what is open alone",
        STORE + "endings.py",
        "Ask.objects.filter(target_id=target_id, outcome=None)",
        "Ask.objects.filter(target_id=target_id)",
        (UNIT + "test_asks.py",),
    ),
    Mutant(
        "ask: no timeout over an outcome",
        STORE + "asking.py",
        "        if ask.outcome is not None:\n            raise NotDue(None)",
        "        if False:\n            raise NotDue(None)",
        (UNIT + "test_asks.py",),
    ),
    Mutant(
        "ask: a reply is matched by the asked message",
        STORE + "asking.py",
        "asker_id=asker_id, message_id=message_id)",
        "asker_id=asker_id)",
        (UNIT + "test_asks.py",),
    ),
    Mutant(
        "end: no child outlives its parent",
        STORE + "endings.py",
        ", *cancel_children(run, ended_reason(run.id), held)]",
        "]",
        (UNIT + "test_asks.py",),
    ),
]

PEOPLE = [
    Mutant(
        "answer: the first one wins",
        STORE + "people.py",
        "id=request.id, status=HumanRequest.Status.PENDING, version",
        "id=request.id, version",
        (UNIT + "test_uncertain.py",),
    ),
    Mutant(
        "answer: to the version that was read",
        STORE + "people.py",
        "version=request.version if version is None else version",
        "version=request.version",
        (UNIT + "test_requests_stateful.py",),
    ),
    Mutant(
        "answer: not while the worker may still be at it",
        STORE + "people.py",
        "if request.not_before is not None and present() < request.not_before:",
        "if False:",
        (UNIT + "test_uncertain.py",),
    ),
    Mutant(
        "at most once: not on a lease that may be over",
        RUNTIME + "tool_running.py",
        "        ctx.effects.check_awake()",
        "        pass",
        (UNIT + "test_uncertain.py",),
    ),
    Mutant(
        "at most once: the tool does not wait",
        RUNTIME + "effects.py",
        """            if path.startswith(f"{begun}/"):""",
        "            if False:",
        (UNIT + "test_uncertain.py",),
    ),
]
