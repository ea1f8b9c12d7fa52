"""From a person's answer to the run's going on: given once, woken for in the same commit, found by the sweep."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, Mutant

PEOPLE = "tests/acceptance/people/"
PAINS = (PEOPLE + "test_users_pains.py",)

ANSWERED = [
    Mutant(
        "answer: of two people at once one is first",
        STORE + "people.py",
        "id=request.id, status=HumanRequest.Status.PENDING, version=request.version if version is None else version\n",
        "id=request.id\n",
        PAINS,
    ),
    Mutant(
        "answer: wakes its run in its own commit",
        STORE + "people.py",
        """        if not inside:
            touch([request.run_id])
    return not inside
""",
        """    return not inside
""",
        PAINS,
    ),
    Mutant(
        "answer: inside a transaction it is marked until its run is woken",
        STORE + "people.py",
        "            woke=not inside,\n",
        "            woke=True,\n",
        PAINS,
    ),
    Mutant(
        "sweep: finds the answers that woke nobody",
        STORE + "waiting.py",
        "        HumanRequest.objects.filter(woke=False, answered_at__lte=before),\n",
        "",
        PAINS,
    ),
    Mutant(
        "sweep: wakes the runs of answers that woke nobody",
        RUNTIME + "sweeper.py",
        "    woken = [run_id for run_id in silent if _each(store.wake_silent, run_id) is not None]\n",
        "    woken: list[UUID] = []\n",
        PAINS,
    ),
    Mutant(
        "answer: recorded with who gave it",
        STORE + "people.py",
        """        record(request, event, run, {"answer": answer, "by": answer.get("by", "")})\n""",
        "",
        PAINS,
    ),
    Mutant(
        "answer: of those alone whose tenant it is",
        RUNTIME + "people.py",
        "    return found & in_tenant(user) & ~_own_calls(user)\n",
        "    return found & ~_own_calls(user)\n",
        (PEOPLE + "test_people_refusals.py",),
    ),
]
