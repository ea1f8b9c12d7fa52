"""The partial indexes serve the claim and the sweep: with 8,000 runs no query of theirs reads the table through."""

import json
from functools import partial

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.kernel import ChatMessage, LeaseLostError
from ravi_django.models import Run
from tests.support import world
from tests.support.runs import leased, make_run, on_postgresql
from tests.support.world import Entry, NewTurn

pytestmark = [pytest.mark.django_db, on_postgresql]

STATES = {  # how many, status, further columns
    "done": (6_900, "completed", {"published_at": "2029-01-01T00:00:00Z", "finished_at": "2029-01-01T00:00:00Z"}),
    "unpublished": (50, "completed", {"finished_at": "2029-01-01T00:00:00Z"}),
    "queued": (50, "queued", {}),
    "pending": (500, "pending", {}),
    "later": (100, "pending", {"wake_at": "2099-01-01T00:00:00Z"}),
    "leased": (200, "running", {"lease_owner": "w", "lease_expires_at": "2099-01-01T00:00:00Z"}),
    "expired": (100, "running", {"lease_owner": "w", "lease_expires_at": "2020-01-01T00:00:00Z"}),
    "waiting": (100, "suspended", {"wake_at": "2099-01-01T00:00:00Z"}),
}


@pytest.fixture(scope="module")
def busy_site(django_db_setup, django_db_blocker):
    """8,000 runs in all states, and the database's statistics of them; gone again at the end."""
    with django_db_blocker.unblock(), transaction.atomic():
        template = make_run("test/template")
        with connection.cursor() as cursor:
            for name, (count, status, columns) in STATES.items():
                cursor.execute(
                    "INSERT INTO ravi_run SELECT (jsonb_populate_record(r, jsonb_build_object("
                    " 'id', gen_random_uuid(), 'agent', 'test/' || %s || n, 'status', %s::text) || %s::jsonb)).*"
                    " FROM ravi_run r, generate_series(1, %s) n WHERE r.id = %s",
                    [name, status, json.dumps(columns), count, template.id],
                )
            cursor.execute("INSERT INTO ravi_afterlease SELECT id FROM ravi_run WHERE agent ~ '^test/unpublished'")
            cursor.execute("ANALYZE ravi_run, ravi_afterlease")
        assert Run.objects.count() == 8_001
        yield template
        transaction.set_rollback(True)


def plan_of(sql):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + sql)
        return "\n".join(row[0] for row in cursor.fetchall())


def plans_of(function, *args):
    """What the database does for each query on runs that the function makes."""
    with CaptureQueriesContext(connection) as captured:
        function(*args)
    queries = [query["sql"] for query in captured if query["sql"].lstrip().startswith(("SELECT", "UPDATE", "WITH"))]
    return [plan_of(sql) for sql in queries if "ravi_run" in sql]


def assert_indexed(plan, index):
    assert index in plan, plan
    assert "Seq Scan on ravi_run" not in plan, plan


def scans_of(plan):
    """Of each scan of the runs that was made: the index, and how many rows were read in vain."""
    if "Scan" in plan["Node Type"] and plan.get("Relation Name") == "ravi_run" and plan["Actual Loops"]:
        yield plan.get("Index Name"), plan.get("Rows Removed by Filter", 0)
    for part in plan.get("Plans", ()):
        yield from scans_of(part)


def scans_of_a_look(agents):
    with CaptureQueriesContext(connection) as captured:
        leases = world.claim_batch("w", agents, 16)
    with transaction.atomic(), connection.cursor() as cursor:
        Run.objects.filter(id__in=[lease.run_id for lease in leases]).update(status="pending")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + captured[0]["sql"])
        ((found,),) = cursor.fetchall()
        transaction.set_rollback(True)
    return [lease.run_id for lease in leases], list(
        scans_of((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])
    )


LOOKS = {"ravi_run_leased", "ravi_run_timers", "ravi_run_ready"}


def test_a_look_reads_no_run_of_agents_that_the_worker_does_not_know(busy_site):
    """Not one of the 500 that wait for other workers."""
    Run.objects.filter(status="running").update(lease_expires_at="2099-01-01T00:00:00Z")
    mine = make_run("test/mine")

    claimed, scans = scans_of_a_look(["test/mine", "test/none"])
    assert claimed == [mine.id]
    assert {index for index, _ in scans} == {*LOOKS, "ravi_run_pkey"}
    assert [vain for _, vain in scans if vain] == []

    claimed, scans = scans_of_a_look(["test/none"])
    assert claimed == []
    assert {index for index, _ in scans} == LOOKS
    assert [vain for _, vain in scans if vain] == []


def test_the_sweep_finds_runs_by_the_partial_indexes(busy_site):
    expired, timed, ready, *updates = plans_of(world.due_for_hint, 500)

    assert_indexed(expired, "ravi_run_leased")
    assert_indexed(timed, "ravi_run_timers")
    assert_indexed(ready, "ravi_run_ready")
    assert updates
    assert all("Seq Scan on ravi_run" not in plan for plan in updates)
    orphans, *_ = plans_of(world.queue_orphans, 500)
    assert "Seq Scan on ravi_run" not in orphans, orphans
    (unpublished,) = plans_of(world.unpublished, 50, 10)
    assert_indexed(unpublished, "ravi_run_pkey")


@pytest.mark.parametrize("fair_by", ["owner", "tenant"])
def test_a_new_run_counts_the_open_ones_by_a_partial_index(busy_site, settings, fair_by):
    settings.RAVI = {**settings.RAVI, "FAIR_BY": fair_by}

    plans = plans_of(partial(make_run, tenant="another"))
    (plan,) = [plan for plan in plans if "Insert on ravi_run" in plan]

    assert_indexed(plan, "ravi_run_open")


def test_a_worker_reaches_its_own_runs_by_the_primary_key(busy_site):
    lease = leased(busy_site)

    plans = plans_of(world.heartbeat, lease.owner, [(lease.run_id, lease.epoch)]) + plans_of(world.requeue, lease)

    for plan in plans:
        assert_indexed(plan, "ravi_run_pkey")


def test_the_fence_reaches_its_row_by_the_primary_key(busy_site, monkeypatch):
    lease = leased(busy_site)
    plans = []

    def explain(sql, params):
        from psycopg import ClientCursor

        with ClientCursor(connection.connection) as cursor:
            plans.append("\n".join(row[0] for row in cursor.execute("EXPLAIN " + sql, params)))

    world.patch(monkeypatch, "fence_execute", explain)
    turn = NewTurn(busy_site.session_id, busy_site.agent, ChatMessage.of("user", "hi"))
    with pytest.raises(LeaseLostError):  # nothing was executed
        world.append(lease, [Entry("tool.call", "1", "t"), Entry("tool.call", "2", "t")], [turn])

    plan = plans[0]
    update = plan[plan.index("Update on ravi_run") :]
    assert_indexed(update, "Index Scan using ravi_run_pkey on ravi_run")
