"""Followers of many topics: one home each, no run after run that fails, a bounded backlog, and who is left out."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_HOMES = (UNIT + "test_fan_out_homes.py",)
_BACKLOGS = (UNIT + "test_digests.py",)
_LEFT_OUT = (UNIT + "test_fan_out_homes.py",)

FOLLOWER_HOMES = [
    Mutant(
        "home: a new follow is at home where the follower is",
        STORE + "follows.py",
        "    if follow.home_id is None:\n",
        "    if False:\n",
        _HOMES,
    ),
    Mutant(
        "home: that of another follow is taken",
        STORE + "homes.py",
        "        if home_id is not None:\n",
        "        if False:\n",
        _HOMES,
    ),
    Mutant(
        "home: only who has the follower's first follow gives one",
        STORE + "homes.py",
        "        elif first not in held or follower in begun:\n",
        "        elif follower in begun:\n",
        _HOMES,
    ),
    Mutant(
        "home: one of the follows that are given at once",
        STORE + "homes.py",
        "        elif first not in held or follower in begun:\n",
        "        elif first not in held:\n",
        _HOMES,
    ),
    Mutant(
        "home: it is looked for behind the lock",
        STORE + "homes.py",
        "        rows = _look(ids)  # what was committed until we had the lock\n",
        "",
        _HOMES,
    ),
    Mutant(
        "home: nobody waits for the first follow",
        STORE + "homes.py",
        "select_for_update(skip_locked=True, no_key=True)",
        "select_for_update(no_key=True)",
        _HOMES,
    ),
    Mutant(
        "home: it stays when the follow that brought it goes",
        STORE + "deliveries.py",
        "for first, follow_id, home in firsts if first != follow_id)",
        "for first, follow_id, home in firsts if first is None)",
        _HOMES,
    ),
    Mutant(
        "rest: who has just failed is given no other run",
        STORE + "homes.py",
        "finished_at__gt=clock.after(-REST_S)",
        "finished_at__gt=clock.after(REST_S)",
        _HOMES,
    ),
    Mutant(
        "rest: unless it has run since",
        STORE + "homes.py",
        "rows.filter(~Exists(newer))",
        "rows.filter(Exists(newer) | ~Exists(newer))",
        _HOMES,
    ),
    Mutant(
        "backlog: so many wait",
        STORE + "fan_out.py",
        "    drop_oldest(list(later), publication.present)\n",
        "",
        _BACKLOGS,
    ),
    Mutant(
        "backlog: only the oldest is due",
        STORE + "followers.py",
        "            return BEHIND if self.items_at < BEHIND else present\n",
        "            return max(self.items_at, present)\n",
        _BACKLOGS,
    ),
    Mutant(
        "backlog: what is behind those that are dropped moves up",
        STORE + "backlog.py",
        "    move_up(list(counts), present)\n",
        "",
        _BACKLOGS,
    ),
    Mutant(
        "backlog: what is behind a message moves up",
        STORE + "digests.py",
        "    move_up([*given.given, *given.own], present)\n",
        "",
        _BACKLOGS,
    ),
    Mutant(
        "backlog: those that were dropped are told once",
        STORE + "digests.py",
        "        Follow.objects.filter(id__in=told).update(dropped=0)\n",
        "",
        _BACKLOGS,
    ),
    Mutant(
        "digest: a policy that raises puts off its topic alone",
        "ravi_django/access.py",
        "            failed[topic] = error\n",
        "            raise error\n",
        _BACKLOGS,
    ),
    Mutant(
        "digest: what it raises for is put off",
        STORE + "digests.py",
        "        _put_off_undecided(looked.undecided, present)\n",
        "",
        _BACKLOGS,
    ),
    Mutant(
        "fan-out: an agent gets nothing of its own, if its run is live",
        STORE + "bulk_delivery.py",
        "f.agent IS DISTINCT FROM %(sender)s::text OR f.owner_id",
        "%(sender)s::text IS NULL OR true OR f.owner_id",
        _LEFT_OUT,
    ),
    Mutant(
        "fan-out: nor if it is idle",
        STORE + "fan_out.py",
        "found = [one for one in looked.found if not _is_its_own(publication, one)]",
        "found = looked.found",
        _LEFT_OUT,
    ),
    Mutant(
        "fan-out: another owner's agent of that name does",
        STORE + "fan_out.py",
        " and one.follower.owner_id == publication.owner_id",
        "",
        _LEFT_OUT,
    ),
    Mutant(
        "fan-out: nor does the run that has published it",
        STORE + "deliveries.py",
        "        if run_id == due.letter.by:\n",
        "        if False:\n",
        _LEFT_OUT,
    ),
    Mutant(
        "fan-out: that run is not told at home either",
        STORE + "bulk_delivery.py",
        "    AND r.id IS DISTINCT FROM %(by)s::uuid\n",
        "    AND (r.id IS DISTINCT FROM %(by)s::uuid OR true)\n",
        _LEFT_OUT,
    ),
    Mutant(
        "fan-out: an agent that is not known here is for later",
        STORE + "fan_out.py",
        "{follow_id: error for follow_id, error in unknown.items() if follow_id not in later}",
        "{}",
        _LEFT_OUT,
    ),
    Mutant(
        "digest: nor is it lost there",
        STORE + "digests.py",
        "        given.failed |= {follow_id: UnknownAgent(agent) for follow_id, agent in looked.unknown.items()}\n",
        "",
        _LEFT_OUT,
    ),
    Mutant(
        "sweep: one publication a topic",
        STORE + "fan_out.py",
        ".annotate(place=place).filter(place=1)",
        "",
        _LEFT_OUT,
    ),
    Mutant(
        "sweep: no topic stands before the others",
        STORE + "fan_out.py",
        'rows.order_by("?").values_list',
        'rows.order_by("id").values_list',
        _LEFT_OUT,
    ),
    Mutant(
        "sweep: the topic's next one is hinted",
        RUNTIME + "fan_out.py",
        "            if store.has_next(publication_id):\n",
        "            if not batch.done:\n",
        _LEFT_OUT,
    ),
]
