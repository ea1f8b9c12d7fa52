"""What runs have done is counted once, whatever happens to the sweep."""

from collections import Counter
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum

from ravi_django.kernel import Usage
from ravi_django.models import Rollup, Run, Session, Status
from tests.support import world
from tests.support.runs import at_once, leased, make_run, on_postgresql
from tests.support.trees import ended
from tests.support.world import Entry, cancel, fork, retry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

USED = Usage(input_tokens=100, output_tokens=10)


def call(path, seconds=3.0, cost=0.5, **more):
    return Entry("llm.call", path, "gpt", usage=USED, cost=cost, elapsed_s=seconds, **more)


def wait(clock, lease, seconds):
    """The run is suspended, and woken by somebody."""
    clock.advance(1)
    entry = Entry("run.suspended", f"@suspended.{lease.epoch}")
    world.suspend(lease, [entry], seen=0, waits=[], wake_at=None)
    clock.advance(seconds)
    Run.objects.filter(id=lease.run_id).update(status=Status.PENDING)
    return leased(Run.objects.get(id=lease.run_id))


def answered(clock, run=None):
    """A run that works for 4 s, waits for an hour, works for 6 s and completes."""
    lease = leased(run or make_run())
    clock.advance(3)
    world.append(lease, [Entry("run.started", "@started"), call("1")])
    lease = wait(clock, lease, 3600)
    clock.advance(6)
    world.append(lease, [call("2", 6.0, None)])
    ended(lease)
    return lease.run


def ends(**where):
    rows = Rollup.objects.filter(span="hour", model="", **where).values_list("outcome", "count")
    return dict(sum((Counter({outcome: count}) for outcome, count in rows), Counter()))


def tokens(span="hour"):
    return Rollup.objects.filter(span=span).aggregate(sum=Sum("input_tokens"))["sum"] or 0


def test_an_end_counts_with_its_time_at_work_and_a_call_where_it_was_made(clock):
    run = answered(clock, make_run(owner=get_user_model().objects.create_user("ann")))

    assert world.rollups_sweep() == 1
    assert world.rollups_sweep() == 0

    for span, user in (("hour", ""), ("day", str(run.owner_id))):
        rows = {(row.model, row.outcome, row.bucket): row for row in Rollup.objects.filter(span=span)}
        assert {key: row.count for key, row in rows.items()} == {
            ("", "completed", 9): 1,  # 10 s and not 3610: up to the bound 10
            ("gpt", "ok", 8): 1,
            ("gpt", "ok", 9): 1,
        }
        first, second = rows["gpt", "ok", 8], rows["gpt", "ok", 9]
        assert (first.input_tokens, first.output_tokens, first.cost, first.unpriced) == (100, 10, Decimal("0.5"), 0)
        assert (second.cost, second.unpriced) == (0, 1)
        assert {row.user for row in rows.values()} == {user}
    assert Run.objects.get(id=run.id).work_s == 10


def test_a_sweep_that_dies_at_any_statement_counts_nothing(clock):
    class Died(Exception):
        pass

    def dying(execute, sql, *more):
        nonlocal left
        left -= 1
        if not left:
            raise Died
        return execute(sql, *more)

    for _ in range(2):
        answered(clock)
    for statement in range(1, 100):
        left = statement
        try:
            with connection.execute_wrapper(dying):
                world.rollups_count(Run.objects.all())
        except Died:
            assert not Rollup.objects.exists()
        else:
            break
    assert statement > 3
    assert (ends(), tokens(), tokens("day")) == ({"completed": 2}, 400, 400)


@on_postgresql
def test_sweeps_at_once_count_each_run_once(clock):
    for _ in range(20):
        answered(clock)
    at_once(*[world.rollups_sweep] * 4)
    world.rollups_sweep()
    assert (ends(), tokens(), tokens("day")) == ({"completed": 20}, 4000, 4000)


def test_what_a_waiting_run_has_used_counts_at_once_and_its_end_later(clock):
    lease = leased(make_run())
    world.append(lease, [call("1")])
    assert world.rollups_sweep() == 0  # it is being driven
    lease = wait(clock, lease, 60)
    assert world.rollups_sweep() == 0
    world.append(lease, [call("2")])
    lease = wait(clock, lease, 60)
    Run.objects.filter(id=lease.run_id).update(status=Status.SUSPENDED)
    world.rollups_sweep()
    assert (ends(), tokens()) == ({}, 200)
    cancel(lease.run_id, "enough")
    world.rollups_sweep()
    assert (ends(), tokens()) == ({"cancelled": 1}, 200)


def test_a_retried_run_counts_each_end_and_each_call_once(clock):
    lease = leased(make_run())
    world.append(lease, [call("1")])
    ended(lease, Status.FAILED)
    world.rollups_sweep()
    lease = leased(retry(lease.run_id, send=lambda run: None))
    world.append(lease, [call("2")])
    ended(lease)
    world.rollups_sweep()
    assert (ends(), tokens()) == ({"failed": 1, "completed": 1}, 200)


def test_a_fork_counts_only_what_it_does_itself(clock):
    run = answered(clock)
    copy = fork(run.id, 2, send=lambda run: None)
    lease = leased(copy)
    world.append(lease, [call("2")])
    ended(lease)
    world.rollups_sweep()
    assert (ends(), tokens()) == ({"completed": 2}, 300)


def test_rows_before_a_handoff_are_the_first_agents(clock):
    lease = leased(make_run())
    world.append(lease, [call("1")])
    world.append(lease, [Entry("run.handoff", "2", "test/b", result={"from": "test/code", "to": "test/b"}), call("3")])
    Run.objects.filter(id=lease.run_id).update(agent="test/b")
    ended(lease)
    world.rollups_sweep()
    rows = Rollup.objects.filter(span="hour").values_list("agent", "model", "input_tokens")
    assert sorted(rows) == [("test/b", "", 0), ("test/b", "gpt", 100), ("test/code", "gpt", 100)]


@pytest.mark.parametrize("by", ["erase", "anonymize", "command"])
def test_a_deleted_user_leaves_figures_without_a_name(clock, settings, by):
    if by != "command":
        settings.RAVI = {**settings.RAVI, "ON_USER_DELETE": by}
    ann = get_user_model().objects.create_user("ann")
    answered(clock)
    session = Session.objects.create(owner=ann, agent="test/code")
    answered(clock, make_run(owner=ann, session=session))
    world.rollups_sweep()
    answered(clock, make_run(owner=ann, session=session))  # not counted yet
    if by == "command":
        call_command("ravi_erase", "ann")
    else:
        ann.delete()
    world.erasing_work()
    world.rollups_sweep()
    assert Run.objects.exists()
    assert set(Rollup.objects.values_list("user", flat=True)) == {""}
    assert (ends(), tokens("day")) == ({"completed": 3}, 600)


def test_a_prune_deletes_nothing_that_is_not_counted(clock):
    answered(clock)
    clock.advance(1)
    world.prune({"journal": 0, "runs": 0})
    assert not Run.objects.exists()
    assert (ends(), tokens()) == ({"completed": 1}, 200)
