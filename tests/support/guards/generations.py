"""What a generation begins with: messages in parts, what is carried, and the publications behind it."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

AGENTS = "ravi_django/agents/"
LIMIT = (UNIT + "test_inbox_limit.py",)
CIRCLES = (UNIT + "test_circles.py",)
FORKED = (UNIT + "test_fork_generations.py",)
PLANS = (UNIT + "test_inbox_plans.py",)

GENERATIONS = [
    Mutant(
        "a generation that was carried nothing is given all",
        STORE + "inboxes.py",
        "    if limit is None or (run.generation and carried is None):\n",
        "    if limit is None:\n",
        LIMIT,
    ),
    Mutant(
        "what the journal has given is read whatever the limit",
        STORE + "leases.py",
        "0 if limit is None else _seen(journal)",
        "0",
        LIMIT,
    ),
    Mutant(
        "what is carried keeps no run from its end",
        STORE + "journal.py",
        ".exclude(message_id=CARRIED).exists()",
        ".exists()",
        LIMIT,
    ),
    Mutant(
        "what is carried is no message to who is handed the run",
        STORE + "inboxes.py",
        "_rows(run_id, after) if not is_carried]",
        "_rows(run_id, after)]",
        LIMIT,
    ),
    Mutant(
        "a generation that began with nothing is given nothing by a replay",
        RUNTIME + "engine.py",
        "= rounds.first_upto or 0  #",
        "= rounds.first_upto  #",
        LIMIT,
    ),
    Mutant(
        "beginning anew is no new beginning of the publications that are counted",
        RUNTIME + "hops.py",
        "else max(before, hops_of(batch))",
        "else hops_of(batch)",
        CIRCLES,
    ),
    Mutant(
        "what has come since is a new beginning",
        RUNTIME + "hops.py",
        "    return hops_of(batch) if len(batch) > own else",
        "    return",
        CIRCLES,
    ),
    Mutant(
        "what is given back is no new beginning",
        RUNTIME + "receiving.py",
        "    return sum(place >= same[0] for place, _ in given)\n",
        "    return 0\n",
        CIRCLES,
    ),
    Mutant(
        "the count that a generation begins with is recorded",
        RUNTIME + "engine.py",
        "        started.result |= noted(rounds.hops)\n",
        "",
        CIRCLES,
    ),
    Mutant(
        "handing over is no new beginning",
        RUNTIME + "handoff.py",
        "trail_of(ctx.hops, len(given))",
        "trail_of(0, len(given))",
        CIRCLES,
    ),
    Mutant(
        "a newsroom reads no message twice, as a message and as the signal beside it",
        AGENTS + "newsrooms.py",
        "    if value == NEW_ITEM:\n",
        "    if False:\n",
        (UNIT + "test_feed_specs.py",),
    ),
    Mutant(
        "an item by a signal keeps the publications behind it",
        AGENTS + "information.py",
        "payload=DataPayload(data=data), metadata=told)",
        "payload=DataPayload(data=data))",
        CIRCLES,
    ),
    Mutant(
        "an item that was not published has none behind it",
        AGENTS + "information.py",
        'if "publication" in data and "hops" in data else',
        'if "hops" in data else',
        CIRCLES,
    ),
    Mutant(
        "nor has a signal that tells of no publication",
        RUNTIME + "hops.py",
        'if isinstance(payload, Mapping) and "publication" in payload else 0',
        "if isinstance(payload, Mapping) else 0",
        CIRCLES,
    ),
    Mutant(
        "and keeps them in the next generation",
        AGENTS + "reading.py",
        "note = {**message.metadata, _CARRIED",
        "note = {_CARRIED",
        CIRCLES,
    ),
    Mutant(
        "a fork has what its generation was carried",
        STORE + "fork.py",
        " | Q(message_id=CARRIED)\n",
        "\n",
        FORKED,
    ),
    Mutant(
        "a fork has what its generation began on",
        STORE + "fork.py",
        "        *(last or 0 for last in batches),\n",
        "",
        FORKED,
    ),
    Mutant(
        "what a run has noted for itself is its fork's own",
        STORE + "fork.py",
        "new if value == old else value",
        "value",
        FORKED,
    ),
    Mutant(
        "what a run has told itself is no question to its fork",
        STORE + "fork.py",
        '{**body, "reply_to": new, ',
        "{**body, ",
        FORKED,
    ),
    Mutant(
        "what others have said to a run stays as it is in a fork",
        STORE + "fork.py",
        '    if body.get("reply_to") != old:\n        return body\n',
        "",
        FORKED,
    ),
    Mutant(
        "a batch of a backlog is read in the order of an index",
        STORE + "inboxes.py",
        "ORDER BY run_id, id LIMIT",
        "ORDER BY id LIMIT",
        PLANS,
    ),
    Mutant(
        "and no other index seems to be as good",
        STORE + "inboxes.py",
        "run_id BETWEEN %(run)s::uuid AND %(run)s::uuid",
        "run_id <= %(run)s::uuid",
        PLANS,
    ),
    Mutant(
        "a batch of a backlog is the run's",
        STORE + "inboxes.py",
        "run_id BETWEEN %(run)s::uuid AND %(run)s::uuid",
        "run_id >= %(run)s::uuid",
        PLANS,
    ),
    Mutant(
        "and begins behind what was read",
        STORE + "inboxes.py",
        "(run_id, id) > (%(run)s::uuid, %(after)s::bigint)",
        "%(after)s::bigint >= 0",
        PLANS,
    ),
]
