"""Figures of how people keep up: counts and times by tool and address."""

import math
import random
import statistics
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.models import HumanRequest, first_id_of, uuid7
from tests.support import world
from tests.support.asked import approval_of
from tests.support.cases import case
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run():
    return make_run()


def put(run, took=None, *, age=3600.0, action="approve", **fields):
    """A request opened `age` seconds ago; answered `took` seconds later."""
    made = datetime.now(UTC) - timedelta(seconds=age)
    values = {"kind": "approval", "tool": "pay", "to": "group:finance", "status": "pending", **fields}
    if took is not None:
        values |= {"status": "answered", "answer": {"action": action}, "answered_at": made + timedelta(seconds=took)}
    request = HumanRequest(
        id=UUID(int=first_id_of(made).int | (uuid7().int & (2**80 - 1))), run=run, path=str(uuid7()), **values
    )
    request.save(force_insert=True)
    HumanRequest.objects.filter(id=request.id).update(created_at=made)
    return request


def the_one(found):
    assert len(found) == 1, found
    return found[0]


def test_what_has_become_of_them(run):
    assert world.sla_figures() == []
    put(run, 10), put(run, 30, action="deny"), put(run), put(run, age=7200)
    put(run, status="expired"), put(run, status="cancelled")

    found = the_one(world.sla_figures())

    assert (found.tool, found.to) == ("pay", "group:finance")
    assert (found.asked, found.open, found.answered, found.denied) == (6, 2, 2, 1)
    assert (found.expired, found.cancelled, found.denied_share) == (1, 1, 0.5)
    assert found.oldest_open_s == pytest.approx(7200, abs=30)
    assert found.answer_s_max == 30


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no quantiles")
@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_the_times_to_an_answer_are_quantiles(run, count):
    spans = [random.Random(count).uniform(0, 3000) for _ in range(count)]
    for took in spans:
        put(run, took)

    found = the_one(world.sla_figures())

    assert found.answer_s_p50 == pytest.approx(statistics.median(spans), abs=0.001)
    place = 0.95 * (count - 1)
    low, ordered = math.floor(place), sorted(spans)
    expected = ordered[low] + (ordered[min(low + 1, count - 1)] - ordered[low]) * (place - low)
    assert found.answer_s_p95 == pytest.approx(expected, abs=0.001)
    assert found.answer_s_max == pytest.approx(max(spans), abs=0.001)


def test_only_answers_have_a_time_to_answer_and_none_by_a_clock_that_is_behind(run):
    put(run, -5)
    assert the_one(world.sla_figures()).answer_s_max == 0
    HumanRequest.objects.all().delete()
    put(run, 10)
    put(run, status="expired", answered_at=datetime.now(UTC) + timedelta(days=9))

    found = the_one(world.sla_figures())

    assert (found.answer_s_p95, found.answer_s_max) == (10, 10)


@pytest.mark.sqlite
def test_they_are_told_apart_by_tool_and_address(run):
    put(run, 1), put(run, 2, to="group:directors"), put(run, 3, tool="refund"), put(run, 4, tool="", kind="question")

    found = [(one.tool, one.to, one.answer_s_max) for one in world.sla_figures()]

    assert found == [
        ("pay", "group:directors", 2),
        ("pay", "group:finance", 1),
        ("question", "group:finance", 4),
        ("refund", "group:finance", 3),
    ]


def test_only_what_was_opened_since_is_counted_but_all_that_is_open(run):
    put(run, age=40 * 86400)
    found = the_one(world.sla_figures())
    assert (found.asked, found.open, found.answered, found.answer_s_p50, found.denied_share) == (0, 1, 0, None, None)
    put(run, 1, age=10 * 86400), put(run, 5), put(run, 1, age=400 * 86400)

    month, week = world.sla_figures(), world.sla_figures(datetime.now(UTC) - timedelta(days=7))

    assert (month[0].asked, month[0].answered, month[0].open) == (2, 2, 1)
    assert (week[0].asked, week[0].answered, week[0].open, week[0].answer_s_p50) == (1, 1, 1, 5)
    assert week[0].oldest_open_s == pytest.approx(40 * 86400, abs=30)


def ago(request, seconds, **fields):
    """As if it had been opened, and put to whoever is asked now, so long ago."""
    made = datetime.now(UTC) - timedelta(seconds=seconds)
    HumanRequest.objects.filter(id=request.id).update(created_at=made, **fields)
    return made


def test_the_next_address_is_timed_from_when_it_was_asked(run, django_user_model):
    """Finance sleeps for two hours; the directors answer at once."""
    django_user_model.objects.create_user("dora", is_staff=True)
    request = approval_of(run, [("group:finance", 7200), "staff"])
    made = ago(request, 7200)
    HumanRequest.objects.filter(id=request.id).update(escalates_at=made + timedelta(seconds=7200))
    assert world.escalate(request.id)
    world.answer(request.id, "approve")

    found = the_one(world.sla_figures())

    assert (found.to, found.asked, found.answered) == ("staff", 1, 1)
    assert found.answer_s_max < 60


def test_an_address_that_a_request_was_reassigned_to_is_timed_from_then_on(run, django_user_model):
    django_user_model.objects.create_user("dora", is_staff=True)
    django_user_model.objects.create_user("eve")
    request = approval_of(run, "user:eve")
    ago(request, 7200)
    world.reassign(request.id, "staff")
    assert the_one(world.sla_figures()).oldest_open_s < 60

    world.answer(request.id, "approve")
    assert the_one(world.sla_figures()).answer_s_max < 60


def test_an_approval_that_was_decided_and_not_approved_was_denied(run):
    denied = {"approve": 0, "edit": 0, "deny": 1, "skip": 1, "cancel": 1}
    for action in denied:
        put(run, 5, action=action, tool=action), put(run, 5, tool=action), put(run, status="expired", tool=action)
        put(run, 5, kind="uncertain", action="resolve", tool=action)  # it does not thin out the share
    put(run, 5, kind="question", action="skip", tool="passed over")

    for found in world.sla_figures():
        with case(found.tool):
            share = None if found.tool == "passed over" else denied[found.tool] / 2
            expected = denied.get(found.tool, 0)
            assert (found.denied, found.denied_share) == (expected, share)


def test_more_groups_than_a_page_can_take_are_cut_to_the_busiest(run, monkeypatch):
    world.patch(monkeypatch, "SLA_GROUPS", 2)
    for number, tool in enumerate(("rare", "often", "most")):
        for _ in range(number + 1):
            put(run, 1, tool=tool)

    assert [one.tool for one in world.sla_figures()] == ["most", "often"]


def test_it_takes_a_few_queries_however_many_there_are(run):
    for number in range(30):
        put(run, number, tool=f"t{number % 7}")

    with CaptureQueriesContext(connection) as queries:
        world.sla_figures()

    assert len(queries) == 2


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL's planner")
def test_what_is_older_is_not_read(run):
    put(run, 1)
    since = datetime.now(UTC) - timedelta(days=1)
    with CaptureQueriesContext(connection) as queries:
        world.sla_figures(since)

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries:
            cursor.execute("EXPLAIN " + query["sql"])
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Index" in plan and "Seq Scan" not in plan, plan
