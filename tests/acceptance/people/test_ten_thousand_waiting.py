"""Ten thousand runs that wait for people are nothing but rows: no memory, no slow sweep, no slow inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from benchmarks import people_agents
from benchmarks.stack import Stack, worker
from project.process import Child, wait_until
from ravi_django import register, submit
from ravi_django.models import AfterLease, HumanRequest, Run, Status, WorkerProcess
from tests.support import forked_bench, world
from tests.support.cases import queries_of
from tests.support.inbox import logged_in
from tests.support.many_waiting import copy
from tests.support.runs import BOUND_S, database_url, on_postgresql

MANY = 10_000
SWEEP_S = 0.5  # of the worker
MOST_MEMORY = 16 * 1024 * 1024  # bytes that a worker may grow by meanwhile; a run in it would take some 50 kB
MOST_QUERIES = 9  # of a page
MOST_READ = 200  # rows of a sweep
AGENT = "test/bench-approval"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300), on_postgresql, pytest.mark.crash]


@pytest.fixture
def staff(django_user_model: Any) -> Any:
    """Who may approve, and see the admin."""
    from django.contrib.auth.models import Group

    user = django_user_model.objects.create_superuser("root")
    user.groups.add(Group.objects.create(name=people_agents.APPROVERS))
    return user


@pytest.fixture
def site(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A Celery worker of the site that the benchmarks use, over this test's database."""
    stack = Stack(tmp_path, database_url(), valkey_url)
    env = {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "BENCH_SCRIPTED_ALONE": "1", "BENCH_SWEEP_S": str(SWEEP_S)}
    env["BENCH_HEARTBEAT_S"] = str(SWEEP_S)  # which shows that it has looked
    monkeypatch.setattr("benchmarks.stack.Child", forked_bench.Forked)
    with worker(stack, **env, REDIS_URL=valkey_url) as child:
        assert wait_until(WorkerProcess.objects.exists, BOUND_S), child.tail()
        yield child


@pytest.fixture
def first(site: Child, staff: Any) -> Run:
    """A run that the worker has driven to its request."""
    register(people_agents.payer)
    run = submit(AGENT, "Pay them.", user=staff)
    found = Run.objects.filter(id=run.id, status=Status.SUSPENDED)
    assert wait_until(found.exists, BOUND_S), (Run.objects.values().get(id=run.id), site.tail())
    return found.get()


def test_they_hold_no_memory_and_slow_no_sweep_and_no_inbox(site: Child, first: Run, staff: Any) -> None:
    assert site.pid is not None
    process = psutil.Process(site.pid)
    _some_sweeps()
    while AfterLease.objects.filter(run=first).exists():  # by the dashboard: each of them would be once
        world.sweeper_sweep(lambda run_ids: None)
    before = process.memory_info().rss

    copy(first, MANY)

    assert Run.objects.filter(status=Status.SUSPENDED).count() == MANY + 1
    _some_sweeps()
    grown = process.memory_info().rss - before
    assert grown < MOST_MEMORY
    assert _read_by_a_sweep() <= MOST_READ
    assert _queries(_api(logged_in(staff))) <= MOST_QUERIES
    assert _queries(_admin(logged_in(staff))) <= MOST_QUERIES
    _any_of_them_goes_on(site, staff)


def _some_sweeps() -> None:
    """Until the worker has looked for work twice more."""
    for _ in range(2):
        seen = WorkerProcess.objects.latest("seen_at").seen_at
        assert wait_until(WorkerProcess.objects.filter(seen_at__gt=seen).exists, BOUND_S)


def _read_by_a_sweep() -> int:
    """Rows of the tables that grew."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # as autovacuum does soon; what is known of emptied tables is of other tests
    ran = False
    while not ran:  # the worker may be at it
        with transaction.atomic():
            before = _read()
            ran = world.sweeper_sweep(lambda run_ids: None).ran
            read = _read() - before
    return read


def _read() -> int:
    """Since the server has last collected them: what came before the transaction may be among them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables"
            " WHERE relname IN ('ravi_run', 'ravi_humanrequest')"
        )
        return int(cursor.fetchone()[0])


def _api(client: Client) -> Callable[[], Any]:
    def page() -> Any:
        response = client.get("/ravi/requests/?status=pending")
        assert response.json()["results"][0]["status"] == "pending"
        return response

    return page


def _admin(client: Client) -> Callable[[], Any]:
    def page() -> Any:
        response = client.get(reverse("admin:ravi_humanrequest_changelist"))
        assert response.content.count(AGENT.encode()) > 1
        return response

    return page


def _queries(get: Callable[[], Any]) -> int:
    """Of a page; the first one warms caches up."""
    assert get().status_code == 200
    return queries_of(get)


def _any_of_them_goes_on(site: Child, user: Any) -> None:
    """A copy is as good as the first: answered, the worker drives it to its end."""
    request = HumanRequest.objects.filter(status="pending").order_by("id")[MANY // 2]
    world.answer(request, "approve", by=user)
    done = Run.objects.filter(id=request.run_id, status=Status.COMPLETED)
    assert wait_until(done.exists, BOUND_S), (Run.objects.get(id=request.run_id).error, site.tail())
