"""What is done at most once, what is replayed, and what a stream takes."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

EFFECTS = [
    Mutant(
        "at most once: the started row",
        RUNTIME + "tool_promises.py",
        "        await effects.record(started)\n",
        "",
        (UNIT + "test_tool_effects.py",),
    ),
    Mutant(
        "at most once: a started row is looked at",
        RUNTIME + "tool_uncertain.py",
        "    if begun is None:\n        return None\n",
        "    return None\n",
        (UNIT + "test_tool_effects.py",),
    ),
    Mutant(
        "at most once: an error leaves it open",
        RUNTIME + "tool_promises.py",
        '            why = f"it raised {words(error)}"\n',
        "            return _error(words(error))\n",
        (UNIT + "test_tool_effects.py",),
    ),
    Mutant(
        "transactional: one commit with its row",
        RUNTIME + "tool_promises.py",
        "        with transaction.atomic():\n            with last",
        "        if True:\n            with last",
        (UNIT + "test_tool_effects.py",),
    ),
    Mutant(
        "effects: a write is seen through",
        RUNTIME + "effects.py",
        "first, error, cancelled = await self.database.see_through(append_repeatable, *args)",
        "first, error, cancelled = await self.database.call(append_repeatable, *args), None, False",
        (UNIT + "test_lease_lost.py",),
    ),
    Mutant(
        "effects: an append is repeated while the database is away",
        RUNTIME + "effects.py",
        "while error is not None and may_pass(error) and not self.gives_up:",
        "while False:",
        (UNIT + "test_effects_kept.py",),
    ),
    Mutant(
        "effects: nothing begins while an append is repeated",
        RUNTIME + "gate.py",
        "while self._repeating and self.stop is None:",
        "while False:",
        (UNIT + "test_effects_kept.py",),
    ),
    Mutant(
        "lease age: counted from before the claim",
        RUNTIME + "engine.py",
        "replace(lease, asked_at=asked_at)",
        "lease",
        (UNIT + "test_effects_kept.py",),
    ),
    Mutant(
        "claims: none after a heartbeat that failed",
        RUNTIME + "engine.py",
        "self.draining or self.heartbeat.failed or",
        "self.draining or",
        (UNIT + "test_effects_kept.py",),
    ),
    Mutant(
        "drain: not over unread messages",
        RUNTIME + "story.py",
        "effects.unwinding or effects.has_unread",
        "effects.unwinding",
        (UNIT + "test_drain.py",),
    ),
    Mutant(
        "check: asked once an attempt",
        RUNTIME + "checking.py",
        "if recorded is not None:",
        "if False:",
        (UNIT + "test_checks.py",),
    ),
    Mutant(
        "check: not while the dead worker may still perform it",
        RUNTIME + "checking.py",
        "if not_before is not None:",
        "if False:",
        (UNIT + "test_checks.py",),
    ),
    Mutant(
        "at most once: the end of the lost lease is on record",
        RUNTIME + "settle.py",
        '{} if lease.expired_at is None else {"after": lease.expired_at.isoformat()}',
        "{}",
        (UNIT + "test_checks.py",),
    ),
    Mutant(
        "alias: no read from a replica",
        "ravi_django/apps.py",
        "router.routers.insert(0, Router())",
        "pass",
        (UNIT + "test_database_alias.py",),
    ),
]

REPLAY = [
    Mutant(
        "replay: the identity of a call",
        RUNTIME + "replay.py",
        "if (row.kind, row.name) == (kind, name) and _same(recorded, asked):",
        "if True:",
        (UNIT + "test_replay_mismatch.py",),
    ),
    Mutant(
        "replay: the arguments of a tool",
        RUNTIME + "replay.py",
        " and _same(recorded, asked):",
        ":",
        (UNIT + "test_replay_mismatch.py",),
    ),
    Mutant(
        "at rest: a callback of the run that is ready",
        RUNTIME + "branches.py",
        "if ready is None else branches not in ready",
        "if ready is None else True",
        (UNIT + "test_at_rest.py",),
    ),
    Mutant(
        "at rest: a wait for something outside",
        RUNTIME + "branches.py",
        "not task.done() and task not in reached",
        "False",
        (UNIT + "test_at_rest.py",),
    ),
    Mutant(
        "replay: results in the order of their recording",
        RUNTIME + "turnstile.py",
        "seq <= self._journal.next_seq",
        "True",
        (UNIT + "test_replay_order.py",),
    ),
    Mutant(
        "live: in the order of the rows",
        RUNTIME + "turnstile.py",
        "seq <= self._next or not before & self._under_way",
        "True",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: a commit under way may be of the row before",
        RUNTIME + "effects.py",
        "        with self.turnstile.committing():\n",
        "        if True:\n",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: what is told of a tool's end comes before its result",
        RUNTIME + "tool_calls.py",
        "                await effects.record(entry, then=partial(_tell_end, ctx, entry, result))\n",
        "                await effects.record(entry)\n                await _tell_end(ctx, entry, result)\n",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: what is told of a model's answer comes before it",
        RUNTIME + "llm_calls.py",
        "        await effects.record(entry, then=functools.partial(_tell_end, ctx, entry))\n",
        "        await effects.record(entry)\n        await _tell_end(ctx, entry)\n",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: a call whose result is recorded is closed, though it was cancelled over it",
        RUNTIME + "effects.py",
        '            if entry.phase == "result":\n',
        '            if entry.phase == "result" and not cancelled:\n',
        (UNIT + "test_uncertain.py",),
    ),
    Mutant(
        "live: a transactional tool's commit is one",
        RUNTIME + "tool_promises.py",
        "with paths.entered(below), effects.turnstile.committing(under_way):",
        "with paths.entered(below):",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: from its append on",
        RUNTIME + "tool_promises.py",
        "Commit(begun=False)",
        "Commit()",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "live: one result at a time",
        RUNTIME + "turnstile.py",
        "(self._branches.alone or self._branches.at_rest)",
        "True",
        (UNIT + "test_live_order.py",),
    ),
    Mutant(
        "replay: rows inside of an uncertain tool are not missed",
        RUNTIME + "replay.py",
        "if not row.path.startswith(uncertain)]",
        "if True]",
        (UNIT + "test_uncertain.py",),
    ),
    Mutant(
        "replay: rows inside of a recorded tool are not missed",
        RUNTIME + "replay.py",
        "if not self._inside_recorded(row.path)",
        "if True",
        (UNIT + "test_replay_order.py",),
    ),
]

SWEEP = [
    Mutant(
        "sweep: one at a time",
        RUNTIME + "sweeper.py",
        "return bool(cursor.fetchone()[0])",
        "return True",
        (UNIT + "test_sweeper.py",),
    ),
    Mutant(
        "sweep: hints back off", STORE + "processes.py", "part.filter(quiet)", "part", (UNIT + "test_store_sweep.py",)
    ),
    Mutant(
        "sweep: the pause between hints doubles",
        STORE + "processes.py",
        "conf.SWEEP_S * 2**hints",
        "conf.SWEEP_S",
        (UNIT + "test_store_sweep.py",),
    ),
    Mutant(
        "stream: an older epoch is refused, in Valkey",
        RUNTIME + "buffer_valkey.py",
        "if epoch < seen and (key == '' or done) then",
        "if false then",
        (UNIT + "test_buffers.py",),
    ),
    Mutant(
        "stream: an older epoch is refused, in the database",
        RUNTIME + "buffer_database.py",
        "if frame.source.epoch < epochs.get(frame.source.run, 0) and not is_recorded:",
        "if False:",
        (UNIT + "test_buffers.py",),
    ),
]
