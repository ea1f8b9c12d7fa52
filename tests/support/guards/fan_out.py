"""Delivering to followers: each once, nobody held up, nothing lost."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_ONCE = (UNIT + "test_fan_out.py",)
_RACES = (UNIT + "test_fan_out_races.py",)
_LATER = (UNIT + "test_digests.py",)

FAN_OUT = [
    Mutant(
        "fan-out: a batch begins behind the one before",
        STORE + "bulk_delivery.py",
        "    AND (%(upto)s::uuid IS NULL OR id > %(upto)s::uuid)\n",
        "    AND (%(upto)s::uuid IS NULL OR true)\n",
        _ONCE,
    ),
    Mutant(
        "fan-out: who follows later gets nothing",
        STORE + "bulk_delivery.py",
        " AND id <= %(last)s::uuid\n",
        " AND %(last)s::uuid IS NOT NULL\n",
        _ONCE,
    ),
    Mutant(
        "fan-out: a tenant's own",
        STORE + "bulk_delivery.py",
        "WHERE topic = %(topic)s::text AND tenant = %(tenant)s::text AND",
        "WHERE topic = %(topic)s::text AND %(tenant)s::text IS NOT NULL AND",
        _ONCE,
    ),
    Mutant(
        "fan-out: the run of the follow's own owner",
        STORE + "bulk_delivery.py",
        "    AND r.owner_id IS NOT DISTINCT FROM held.owner_id\n",
        "",
        _ONCE,
    ),
    Mutant(
        "fan-out: owners who are not active get nothing",
        STORE + "bulk_delivery.py",
        'is_active = "AND (f.owner_id IS NULL OR u.is_active)" if active else ""',
        'is_active = ""',
        _ONCE,
    ),
    Mutant(
        "fan-out: those of idle agents neither",
        STORE + "followers.py",
        "        if owner_id is not None and active and not is_active:\n",
        "        if False:\n",
        _ONCE,
    ),
    Mutant(
        "fan-out: whom the policy refuses gets nothing",
        STORE + "followers.py",
        "        elif agent in disabled or (agent, owner_id, topic) in refused:\n",
        "        elif agent in disabled:\n",
        _ONCE,
    ),
    Mutant(
        "fan-out: an agent that is switched off gets nothing",
        STORE + "followers.py",
        "        if row.enabled:\n",
        "        if True:\n",
        _ONCE,
    ),
    Mutant(
        "fan-out: no run is waited for",
        STORE + "bulk_delivery.py",
        "  FOR NO KEY UPDATE OF r SKIP LOCKED\n",
        "  FOR NO KEY UPDATE OF r\n",
        _RACES,
    ),
    Mutant(
        "fan-out: nor a publication that somebody is at",
        STORE + "fan_out.py",
        "rows.select_for_update(skip_locked=True, no_key=True)",
        "rows.select_for_update(no_key=True)",
        _RACES,
    ),
    Mutant(
        "fan-out: one at a time at a publication",
        STORE + "fan_out.py",
        "rows.select_for_update(skip_locked=True, no_key=True).first()",
        "rows.first()",
        _RACES,
    ),
    Mutant(
        "fan-out: a run that has ended since is not told",
        STORE + "deliveries.py",
        "if agent != due.follower.agent or status not in (*ACTIVE, Status.QUEUED):",
        "if agent != due.follower.agent:",
        _RACES,
    ),
    Mutant(
        "fan-out: nor one that was handed over",
        STORE + "deliveries.py",
        "if agent != due.follower.agent or status not in (*ACTIVE, Status.QUEUED):",
        "if status not in (*ACTIVE, Status.QUEUED):",
        _RACES,
    ),
    Mutant(
        "fan-out: a run that has just begun in the home is told, and no second one begins",
        STORE + "deliveries.py",
        "one.home_id not in held or taken.get(place) == [one.owner_id, one.tenant]",
        "one.home_id not in held",
        _RACES,
    ),
    Mutant(
        "fan-out: who is just unfollowing is not waited for",
        STORE + "followers.py",
        "FOR KEY SHARE SKIP LOCKED",
        "FOR KEY SHARE",
        _RACES,
    ),
    Mutant(
        "fan-out: what could not be given is set aside",
        STORE + "fan_out.py",
        "            *((follow_id, publication.present, 0) for follow_id in given.busy),\n",
        "",
        _RACES,
    ),
    Mutant(
        "fan-out: one that fails fails alone",
        STORE + "deliveries.py",
        "        if len(dues) == 1 or not apart[0]:",
        "        if True:",
        _LATER,
    ),
    Mutant(
        "fan-out: no more than so many unread",
        STORE + "deliveries.py",
        "        elif run_id in full:",
        "        elif False:",
        _LATER,
    ),
    Mutant(
        "digest: nothing before its time",
        STORE + "bulk_delivery.py",
        "    AND (f.every_s = 0 OR f.last_at IS NULL OR f.last_at + make_interval(secs => f.every_s) <= {NOW})\n",
        "",
        _LATER,
    ),
    Mutant(
        "digest: nothing overtakes what waits",
        STORE + "bulk_delivery.py",
        "    AND NOT EXISTS (SELECT FROM ravi_feeditem i WHERE i.follow_id = f.id) {is_active}\n",
        "    {is_active}\n",
        _LATER,
    ),
    Mutant(
        "digest: given once",
        STORE + "digests.py",
        "    FeedItem.objects.filter(id__in=over).delete()\n",
        "",
        _LATER,
    ),
    Mutant(
        "digest: a message has its size",
        STORE + "digests.py",
        "        if count and size + more > _room():",
        "        if False:",
        _LATER,
    ),
    Mutant(
        "digest: who cannot be given it now stands in nobody's way",
        STORE + "digests.py",
        "DueBatch(len(given.given), len(looked.ids), given.woken)",
        "DueBatch(len(given.given), len(given.given) + len(looked.refused), given.woken)",
        (UNIT + "test_digests.py",),
    ),
    Mutant(
        "digest: one sweep is bounded",
        RUNTIME + "fan_out.py",
        "    for _ in range(BATCHES):\n        batch = store.deliver_due(",
        "    while True:\n        batch = store.deliver_due(",
        (UNIT + "test_digests.py",),
    ),
    Mutant(
        "digest: given up after so many tries",
        STORE + "digests.py",
        "            if item.tries + 1 >= TRIES:",
        "            if False:",
        _LATER,
    ),
    Mutant(
        "fan-out: the sweep goes on with it",
        RUNTIME + "sweeper.py",
        '    _each(lambda _: fan_out.sweep(), "the fan-outs")\n',
        "",
        _ONCE,
    ),
]
