"""A claim is written twice, for PostgreSQL and for the others, and gives the rows without a second look."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.conf import conf
from ravi_django.kernel import Priority
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.runs import leased, make_run

pytestmark = pytest.mark.django_db

STATES = [  # seconds from now
    {"status": status, "wake_at": wake, "paused_at": paused, "for_release": release, "lease_expires_at": expires}
    for status in (Status.PENDING, Status.SUSPENDED, Status.RUNNING, Status.BLOCKED)
    for wake in (None, -1, 0, 1)
    for paused in (None, -1)
    for release in ("", "r2")
    for expires in (None, -1, 0, 1)
]


def all_claimed(agents, suspects=True):
    return [lease.run_id for lease in iter(lambda: world.claim_next("w", agents, suspects), None)]


@pytest.mark.parametrize("vendor", [None, "another"])
@pytest.mark.parametrize(("release", "suspects"), [("", True), ("r1", True), ("r2", False)])
def test_what_is_claimed_is_what_the_queries_call_claimable(clock, settings, monkeypatch, release, suspects, vendor):
    settings.RAVI = {**settings.RAVI, "RELEASE": release}
    runs = [make_run() for _ in STATES]
    for place, (run, state) in enumerate(zip(runs, STATES, strict=True)):
        values = {
            name: clock.now + timedelta(seconds=value) if isinstance(value, int) else value
            for name, value in state.items()
        }
        Run.objects.filter(id=run.id).update(**values, crashes=place % 3)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)
    found = Run.objects.filter(world.claimable()).values_list("id", "crashes", "status")
    expected = {run_id for run_id, crashes, status in found if suspects or crashes + (status == Status.RUNNING) < 2}

    with transaction.atomic():
        one_by_one = {run.id for run in runs if world.claim(run.id, "w", None, suspects) is not None}
        transaction.set_rollback(True)
    together = set(all_claimed(["test/code"], suspects))

    assert one_by_one == together == expected
    assert 0 < len(expected) < len(runs)


@pytest.mark.parametrize("vendor", [None, "another"])
def test_the_lease_holds_the_rows_as_claimed(monkeypatch, clock, vendor):
    metadata = {"a": [1, "é", None]}
    root = make_run(metadata=metadata, budget={"max_turns": 3}, priority=Priority.HIGH.value, tenant="t")
    child = make_run(parent=root, root=root, depth=1)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    for run in (root, child):
        found = world.claim(run.id, "w1").run

        stored = Run.objects.select_related("session", "root", "parent").get(id=run.id)
        for mine, its in ((found, stored), (found.session, stored.session), (found.root, stored.root)):
            assert (mine and model_values(mine)) == (its and model_values(its))
        assert found.parent == stored.parent
    with CaptureQueriesContext(connection) as queries:
        assert (found.session.next_position, found.root.event_mark, found.parent.agent) == (0, 1000, "test/code")
    assert not queries


def model_values(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


@pytest.mark.parametrize("vendor", [None, "another"])
def test_agents_that_are_rows_are_known_to_every_worker(monkeypatch, clock, vendor):
    row, code, dead = make_run("react/row", agent_version=1), make_run("test/other"), make_run("react/dead")
    Run.objects.filter(id=dead.id).update(agent_version=2)
    leased(dead)
    clock.advance(conf.LEASE_S + 1)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    assert world.claim(code.id, "w", []) is None
    assert all_claimed([]) == [dead.id, row.id]

    clock.advance(conf.LEASE_S + 1)
    assert world.claim(row.id, "w", ["test/x"]) is not None
    assert world.claim(code.id, "w", ["test/other"]) is not None
