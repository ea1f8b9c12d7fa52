"""A tree ends as one, in one order of locks, and streams as one."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

API = "tests/acceptance/api/"

TREES = [
    Mutant(
        "lock: whoever refers to a run need not wait for its writers",
        STORE + "touching.py",
        "Run.objects.select_for_update(no_key=True).filter(id__in=wanted)",
        "Run.objects.select_for_update().filter(id__in=wanted)",
        (UNIT + "test_session_locks.py",),
    ),
    Mutant(
        "lock: nobody else writes a locked run",
        STORE + "touching.py",
        "Run.objects.select_for_update(no_key=True).filter(id__in=wanted)",
        "Run.objects.filter(id__in=wanted)",
        (UNIT + "test_session_locks.py",),
    ),
    Mutant(
        "cancel: children that came meanwhile are locked too",
        STORE + "endings.py",
        "    if {child.id for child in live} - held:\n        raise NotLocked(concerned(run.id))\n"
        "    return [woken for child in live for woken",
        "    live = [child for child in live if child.id in held]\n    return [woken for child in live for woken",
        (UNIT + "test_cancel_trees.py",),
    ),
    Mutant(
        "cancel: who asks is locked in the order of the ids",
        STORE + "endings.py",
        "    require(askers, held)\n",
        "",
        (UNIT + "test_cancel_trees.py",),
    ),
    Mutant(
        "cancel: a pause does not keep a run from it",
        STORE + "claims.py",
        '_MAY_GO_ON = "(paused_at IS NULL OR cancel_requested_at IS NOT NULL)"',
        '_MAY_GO_ON = "paused_at IS NULL"',
        (UNIT + "test_cancel_trees.py",),
    ),
    Mutant(
        "cancel: a run that cannot be driven ends",
        RUNTIME + "settle.py",
        "    if lease.run.cancel_requested_at is not None:  # it need not",
        "    if False:  # it need not",
        (UNIT + "test_cancel_trees.py",),
    ),
    Mutant(
        "locks: several runs in the order of their ids",
        STORE + "touching.py",
        'filter(id__in=wanted).order_by("id")',
        'filter(id__in=wanted).order_by("-id")',
        (UNIT + "test_cancel_trees.py",),
    ),
    Mutant(
        "stream: begun before a child can be had",
        RUNTIME + "spawns.py",
        "            await effects.publisher.begun(effects.source.tree)  # any process may have the child",
        "            pass  # any process may have the child",
        (UNIT + "test_stream_end.py",),
    ),
    Mutant(
        "stream: sent before another process can have the run",
        RUNTIME + "engine.py",
        "            await self.publisher.sent(str(lease.run.tree_id))",
        "            pass",
        (UNIT + "test_publish.py",),
    ),
    Mutant(
        "stream: what is not sent of a child is out before the end",
        RUNTIME + "engine.py",
        "if settled.status in TERMINAL and effects.entangled:",
        "if False:",
        (UNIT + "test_stream_end.py",),
    ),
    Mutant(
        "owner: the runs of a tree",
        "ravi_django/api/tree.py",
        "read(Run.objects.for_user(request.user).order_by(",
        "read(Run.objects.order_by(",
        (API + "test_api_tree.py",),
    ),
    Mutant(
        "owner: usage",
        "ravi_django/api/usage.py",
        "_made_within(Run.objects.for_user(request.user), given)",
        "_made_within(Run.objects.all(), given)",
        (API + "test_api_usage.py",),
    ),
    Mutant(
        "owner: a tenant's day",
        "ravi_django/api/usage.py",
        "if named and not theirs:",
        "if False:",
        (API + "test_api_usage.py",),
    ),
    Mutant(
        "owner: the day of the tenant without a name",
        "ravi_django/api/usage.py",
        'today if theirs else {**today, "tenant": None}',
        "today",
        (API + "test_api_usage.py",),
    ),
    Mutant(
        "usage: an unknown price is not zero",
        "ravi_django/api/usage.py",
        'None if row["unknown"] else known',
        "known",
        (API + "test_api_usage.py",),
    ),
]
