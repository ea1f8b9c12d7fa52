"""UserRateLimit: who gets through is decided by the rows of the runs, and any worker decides the same."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from ravi_django import submit
from ravi_django.kernel import AgentId
from ravi_django.middleware import UserRateLimit
from ravi_django.models import JournalEntry, Run, Session, Status
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import CodeAgent, code, drive, make_run, message, on_postgresql, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _driven_by_the_test(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")


@pytest.fixture
def bob():
    return get_user_model().objects.create_user("bob")


def limited(*limits, ran=None, key="code"):
    async def story(ctx, inbox):
        if ran is not None:
            ran.append(ctx.run_id)
        return "done"

    agent = code(story) if key == "code" else CodeAgent(story, key=key)
    agent.middleware = list(limits)
    return agent


def statuses(runs):
    return [Run.objects.get(id=run.id).status for run in runs]


def test_who_is_over_the_limit_is_refused_and_told_when_to_come_back(ann, clock, ran):
    limited(UserRateLimit(2, per_s=60), ran=ran)
    runs = [drive(submit("test/code", "hi", user=ann)) for _ in range(2)]
    clock.advance(20)
    third = drive(submit("test/code", "hi", user=ann))
    assert statuses(runs) == ["completed", "completed"]
    assert third.status == Status.FAILED
    words = "at most 2 runs of yours in 60 s; try again in 40 s"
    assert third.error == {"type": "RateLimitedError", "message": words}
    assert (len(ran), third.attempts) == (2, 0)
    clock.advance(61)
    assert drive(submit("test/code", "hi", user=ann)).status == Status.COMPLETED


def test_other_agents_count_only_when_asked_to(ann, clock):
    other = limited(key="other")
    from ravi_django import register

    register(other)
    limited(UserRateLimit(1, per_s=60))
    drive(submit("test/other", "hi", user=ann))
    assert drive(submit("test/code", "hi", user=ann)).status == Status.COMPLETED
    limited(UserRateLimit(2, per_s=60, every_agent=True))
    assert drive(submit("test/code", "hi", user=ann)).status == Status.FAILED


def test_others_have_a_limit_of_their_own(ann, bob, clock):
    limited(UserRateLimit(1, per_s=60))
    drive(submit("test/code", "hi", user=ann))
    assert drive(submit("test/code", "hi", user=bob)).status == Status.COMPLETED
    assert drive(submit("test/code", "hi", user=ann)).status == Status.FAILED
    assert [drive(make_run()).status for _ in range(3)] == ["completed"] * 3, "the system's own"
    clock.advance(61)
    limited(UserRateLimit(1, per_s=60, scope="tenant"))
    drive(submit("test/code", "hi", user=ann, tenant="acme"))
    assert drive(submit("test/code", "hi", user=bob, tenant="other")).status == Status.COMPLETED
    assert drive(submit("test/code", "hi", user=bob, tenant="acme")).status == Status.FAILED
    limited(UserRateLimit(3, per_s=60, scope="site"))
    assert drive(submit("test/code", "hi")).status == Status.FAILED


def test_children_are_neither_limited_nor_counted(ann, clock):
    async def parent(ctx, inbox):
        handles = [await ctx.spawn(AgentId("test", "child"), "hi") for _ in range(3)]
        return [(await ctx.join(handle)).kind for handle in handles]

    from ravi_django import register

    limit = UserRateLimit(2, per_s=60, every_agent=True)
    child = limited(limit, key="child")
    register(child)
    agent = code(parent)
    agent.middleware = [limit]
    first, second = (submit("test/code", "hi", user=ann) for _ in range(2))
    run_until_idle()
    assert statuses([first, second]) == ["completed", "completed"]


def test_a_decision_stands_whatever_the_rows_say_later(ann, clock, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="a")
        return "done"

    agent = code(story, tools=[step])
    agent.middleware = [UserRateLimit(1, per_s=60)]
    passed = drive(submit("test/code", "hi", user=ann), dies="end")
    note = JournalEntry.objects.get(run=passed, kind="pinned")
    assert note.result == 0.0
    # As if an earlier run had come to light since.
    session = world.create_session(Session(agent="test/code"))
    early = Run(id=UUID(int=passed.id.int - 1), agent="test/code", session=session, owner=ann)
    world.create_run(early, message())
    assert take_over(clock, passed).status == Status.COMPLETED


def test_the_decision_costs_one_query_of_a_bounded_number_of_rows(ann, clock):
    run = [make_run(owner=ann) for _ in range(6)][-1]
    limit = UserRateLimit(3, per_s=60)
    with CaptureQueriesContext(connection) as queries:
        assert limit._retry_after(run) > 0
    assert len(queries) == 1
    assert "LIMIT 3" in queries[0]["sql"]


def submit_at_once(user, count):
    def one(number):
        try:
            return submit("test/code", f"hi {number}", user=user)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(count)))


@on_postgresql
def test_of_a_burst_exactly_as_many_as_allowed_pass(ann, ran):
    limited(UserRateLimit(20, per_s=60), ran=ran)
    runs = submit_at_once(ann, 50)
    run_until_idle()
    assert sorted(statuses(runs)) == ["completed"] * 20 + ["failed"] * 30
    first = [run.id for run in sorted(runs, key=lambda run: run.id)[:20]]
    assert {str(run_id) for run_id in first} == set(ran)


def test_bad_parameters_are_refused_by_name():
    for field, value in (
        ("runs", 0), ("runs", True), ("per_s", 0), ("scope", "planet"),
    ):  # fmt: skip
        with case(field, value), refused(field):
            UserRateLimit(**{"runs": 1, "per_s": 1, field: value})


def test_a_fork_counts_for_itself(ann, clock, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="a")
        return "done"

    def forked(run):
        """All of its past but the end."""
        clock.advance(1)
        return world.store_fork(run.id, JournalEntry.objects.filter(run=run).exclude(kind="run.completed").count())

    agent = code(story, tools=[step])
    agent.middleware = [UserRateLimit(1, per_s=60)]
    run = drive(submit("test/code", "hi", user=ann))
    fork = drive(forked(run))
    assert (run.status, fork.status, fork.error["type"]) == (Status.COMPLETED, Status.FAILED, "RateLimitedError")
