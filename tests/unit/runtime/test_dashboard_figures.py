"""The figures of the dashboard are those of the runs, and cost few queries."""

import time
from bisect import bisect_left
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model
from hypothesis import given, strategies as st

from ravi_django.kernel import Usage
from ravi_django.models import HumanRequest, Status, SweepState, WorkerProcess
from ravi_django.models.rollup import BOUNDS
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.asked import approval_of
from tests.support.cases import queries_of, sizes
from tests.support.many_runs import fill
from tests.support.runs import leased, make_run, on_postgresql
from tests.support.trees import ended
from tests.support.world import Entry, Wanted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


@given(st.lists(st.floats(0, 4999), min_size=1), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_in_the_bucket_of_the_exact_one(seconds, share):
    times = world.DashboardTimes()
    for one in seconds:
        times.counts[bisect_left(BOUNDS, one)] += 1
    exact = sorted(seconds)[max(0, -int(-share * len(seconds) // 1) - 1)]
    place = bisect_left(BOUNDS, exact)
    assert (0, *BOUNDS)[place] <= times.percentile(share) <= BOUNDS[place]


def test_without_a_time_there_is_no_percentile():
    assert world.DashboardTimes().percentile(0.5) is None


def worked(clock, seconds, status=Status.COMPLETED, *, model="gpt", cost=0.5, **fields):
    lease = leased(make_run(**fields))
    clock.advance(seconds)
    call = Entry("llm.call", "1", model, usage=Usage(input_tokens=9), cost=cost, elapsed_s=seconds)
    world.append(lease, [call])
    ended(lease, status)
    return lease.run


def test_figures_by_hour_day_agent_model_and_user():
    ann = get_user_model().objects.create_user("ann")
    with FakeClock(datetime(2030, 5, 6, 10, tzinfo=UTC)) as clock:
        worked(clock, 3, owner=ann)
        worked(clock, 30, Status.FAILED)
        clock.advance(5 * 3600)
        worked(clock, 8, model="big", cost=None, tenant="acme")
        clock.advance(20 * 3600)
        worked(clock, 4, agent="test/b", owner=ann)
        world.rollups_sweep()

        today, week = world.read_dashboard(Wanted()), world.read_dashboard(Wanted(days=7))
        hers = world.read_dashboard(Wanted(user=str(ann.pk)))
        of_model = world.read_dashboard(Wanted(days=7, model="big"))
        of_agent = world.read_dashboard(Wanted(days=7, agent="test/b"))
        acme = world.read_dashboard(Wanted(days=7, tenants=["acme"]))

    def spread(found):
        return {f"{at:%d %H}": tally.runs.total for at, tally in found.slots.items() if tally.runs.total}

    assert (today.total.runs.completed, today.before.runs.total, spread(today)) == (1, 2, {"07 11": 1})
    assert (len(today.slots), len(week.slots)) == (24, 7)
    assert (week.total.runs.completed, week.total.runs.failed, spread(week)) == (3, 1, {"06 00": 3, "07 00": 1})
    assert (week.total.cost, week.total.unpriced, week.total.tokens) == (Decimal("1.5"), 1, 36)
    assert {agent: of.runs.total for agent, of in week.agents.items()} == {"test/code": 3, "test/b": 1}
    assert {model: of.calls.total for model, of in week.models.items()} == {"gpt": 3, "big": 1}
    assert [(user.name, user.runs, user.failed, user.tokens) for user in week.users] == [
        ("ann", 2, 0, 18),
        ("", 2, 1, 18),
    ]
    assert (hers.total.runs.total, len(hers.slots)) == (1, 1)
    assert (of_model.total.calls.total, of_model.total.runs.total, len(of_model.models)) == (1, 0, 2)
    assert (of_agent.total.runs.total, list(of_agent.models), len(of_agent.agents)) == (1, ["gpt"], 2)
    assert (acme.total.runs.total, acme.total.calls.total) == (1, 1)


def test_present_runs_requests_workers_and_the_sweep():
    now = datetime.now(UTC)
    leased(make_run())
    make_run()
    make_run(tenant="acme")
    first, second = approval_of(make_run(), "staff"), approval_of(make_run(), "staff")
    WorkerProcess.objects.create(name="w1", runs=3, started_at=now, seen_at=now)
    SweepState.objects.create(ran_at=now)

    found = world.read_dashboard(Wanted(), HumanRequest.objects.all())
    without = world.read_dashboard(Wanted(tenants=["acme"]))

    assert (found.live["pending"], found.live["running"]) == (4, 1)
    assert (without.live, without.requests) == ({"pending": 1}, [])
    assert ([request.id for request in found.requests], found.open_requests) == ([first.id, second.id], 2)
    assert (found.workers, found.swept_at) == ([("w1", 3, now)], now)


@on_postgresql
@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs", sizes(20_000, 250_000))
def test_many_runs_take_five_queries(runs):
    fill(runs)
    for days in (1, 90):
        wanted, begun = Wanted(days=days), time.perf_counter()
        assert queries_of(lambda wanted=wanted: world.read_dashboard(wanted, HumanRequest.objects.all())) == 5
        print(f"{runs} runs, {days} days: {time.perf_counter() - begun:.2f} s")
    found = world.read_dashboard(wanted)
    assert (found.total.runs.total, found.live["suspended"]) == (runs - runs // 100, runs // 100)
