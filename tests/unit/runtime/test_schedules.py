"""Schedules submit a run a tick: once, whoever looks, and whatever becomes of the others."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

import pytest
from django.db import OperationalError, connection, transaction

from ravi_django import schedule
from ravi_django.conf import conf
from ravi_django.models import Agent, Run, Schedule, ScheduleTick, Session
from tests.support import world
from tests.support.runs import code, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)  # of the fake clock


@pytest.fixture(autouse=True)
def agent(clock):
    async def nothing(ctx, inbox):
        return None

    return code(nothing)


@pytest.fixture
def olga(django_user_model):
    return django_user_model.objects.create_user("olga")


def minutely(name="a", **more) -> Schedule:
    return schedule("test/code", "hi", **{"name": name, "every": 60, **more})


def ticks_of(row) -> list[tuple[datetime, bool, str]]:
    found = ScheduleTick.objects.filter(schedule=row).order_by("at")
    return [(tick.at, tick.run_id is not None, tick.error) for tick in found]


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


# ---------------------------------------------------------------------------------------------------- a tick


@pytest.mark.sqlite
def test_a_tick_submits_a_run_of_what_the_row_says(clock, olga, django_assert_num_queries):
    session = world.create_session(Session(owner=olga, agent="test/code"))
    more = {"tenant": "acme", "priority": "high", "budget": {"max_turns": 3}, "metadata": {"why": "daily"}}
    row = minutely(user=olga, session=session, **more)
    assert (row.next_at, row.due_at) == (at(1), at(1))
    with django_assert_num_queries(1):
        assert world.scheduler_tick() == []
    clock.advance(60)

    (hinted,) = world.scheduler_tick()

    run = Run.objects.get()
    assert (run.id, run.owner, run.tenant, run.session, run.priority) == (hinted, olga, "acme", session, 4)
    assert run.budget == {"max_turns": 3}
    assert run.metadata == {"why": "daily", "schedule": str(row.id), "tick": "2030-01-01T00:01:00+00:00"}
    row.refresh_from_db()
    assert (row.last_at, row.next_at, row.error) == (at(1), at(2), "")
    assert ticks_of(row) == [(at(1), True, "")]
    assert world.scheduler_tick() == [] and Run.objects.count() == 1
    minutely("b")
    clock.advance(60)
    hints = []
    assert world.sweeper_sweep(hints.extend).hinted == len(hints)
    queued, beside = Run.objects.exclude(id=run.id).order_by("status").reverse()
    assert (queued.status, beside.status) == ("queued", "pending"), "in one session one after the other"
    assert beside.id in hints and queued.id not in hints


def test_a_tick_waits_for_its_jitter_and_one_that_is_off_makes_up_for_nothing(clock):
    row = minutely(every=3600, jitter_s=1800, catch_up="all")
    late = row.due_at - row.next_at
    assert timedelta() < late < timedelta(minutes=30)
    clock.now = row.due_at - timedelta(seconds=1)
    assert world.scheduler_tick() == []
    clock.advance(1)
    world.scheduler_tick()
    assert ticks_of(row) == [(BEGIN + timedelta(hours=1), True, "")]

    world.schedules_disable(row)
    clock.now = at(600)
    assert world.scheduler_tick() == []
    again = world.schedules_enable(row)
    assert again.next_at == at(660)
    clock.now = again.due_at
    assert len(world.scheduler_tick()) == 1


@pytest.mark.parametrize("meanwhile", ["switched off", "moved on"])
def test_who_read_it_before_it_changed_submits_nothing_and_does_not_move_it_back(clock, meanwhile):
    row = minutely()
    clock.advance(60)
    with transaction.atomic():
        stale, now = world.read_due(row.id)
    if meanwhile == "switched off":
        world.schedules_disable(row)
    else:
        for _ in range(2):
            world.scheduler_tick()
            clock.advance(60)
        clock.advance(-60)

    with transaction.atomic():
        assert world.scheduler_take(stale, now, 1, now, {}) == []

    row.refresh_from_db()
    made = (row.next_at, row.last_at, Run.objects.count())
    assert made == ((at(3), at(2), 2) if meanwhile == "moved on" else (row.next_at, None, 0))


@pytest.mark.sqlite
def test_a_tick_is_not_submitted_again_wherever_the_row_or_the_clock_points(clock):
    row = minutely()
    clock.advance(60)
    world.scheduler_tick()
    Run.objects.all().update(idempotency_scope=None)
    Schedule.objects.update(next_at=at(1), due_at=at(1))
    assert world.scheduler_tick() == []
    row.refresh_from_db()
    assert (Run.objects.count(), row.next_at) == (1, at(2))

    for _ in range(2):
        clock.advance(60)
        world.scheduler_tick()
    clock.advance(-150)  # it is set back
    assert world.scheduler_tick() == []
    world.schedules_disable(row)
    world.schedules_enable(row)
    for _ in range(3):
        clock.advance(60)
        world.scheduler_tick()

    assert [tick[0] for tick in ticks_of(row)] == [at(1), at(2), at(3)]
    assert Run.objects.count() == 3


# ------------------------------------------------------------------------------------------------- catching up


def test_skip_leaves_out_what_was_missed_but_a_sweep_may_be_a_little_late(clock, monkeypatch):
    row = minutely(catch_up="skip")
    clock.now = at(1) + timedelta(seconds=2 * conf.SWEEP_S + world.WITHIN_S)
    world.scheduler_tick()
    assert ticks_of(row) == [(at(1), True, "")]
    clock.now = at(31) + timedelta(seconds=world.grace_s() + 1)
    assert world.scheduler_tick() == []
    row.refresh_from_db()
    words = "skipped: 30 ticks before 2030-01-01 00:31:00 UTC: they were missed"
    assert (row.last_at, row.next_at, row.error) == (at(31), at(32), words)
    assert ticks_of(row)[1:] == [(at(2), False, words)], "one row, however many were missed"

    clock.now = at(61)
    assert len(world.scheduler_tick()) == 1
    row.refresh_from_db()
    assert row.error == "", "what was skipped is no error of a tick that ran"
    skipped, ran = ticks_of(row)[2:]
    assert (skipped[:2], ran[:2]) == ((at(32), False), (at(61), True))
    assert skipped[2].startswith("skipped: 29 ticks before 2030-01-01 01:01:00 UTC")

    world.patch(monkeypatch, "SCHEDULER_COUNTED", 7)
    rows = [minutely("b", catch_up="skip"), minutely("c", catch_up="skip", every=None, cron="* * * * *")]
    clock.now = at(162) - timedelta(seconds=1)
    world.scheduler_tick()
    for row in rows:
        assert ticks_of(row)[0][2].startswith("skipped: 7 ticks or more before 2030-01-01 02:41:00")


@pytest.mark.parametrize("late_s", [0, 600])
def test_who_waits_for_a_turn_has_missed_nothing_but_what_a_downtime_made_it_miss(clock, late_s):
    for name in "abcde":
        minutely(name, every=3600, catch_up="skip")
    clock.advance(3600 + late_s)

    made = []
    for _ in range(6):  # one a sweep, and the last of them far behind the grace
        made.append(len(world.scheduler_tick(limit=1)))
        clock.advance(world.grace_s())

    missed = "skipped: one tick before 2030-01-01 01:00:00 UTC: they were missed" if late_s else ""
    assert made == ([0] * 6 if late_s else [1, 1, 1, 1, 1, 0])
    assert {tick.error for tick in ScheduleTick.objects.all()} == {missed}
    assert not Schedule.objects.exclude(seen_at=None).exists(), "it is said of one tick"


def test_a_sweep_takes_so_long_and_submits_about_so_many_runs(clock, monkeypatch):
    for name in "abcde":
        minutely(name, catch_up="all")
    clock.advance(60)
    assert world.scheduler_tick(within_s=0) == [] and Schedule.objects.filter(seen_at=at(1)).count() == 5
    clock.now = at(3)

    assert [len(world.scheduler_tick(limit=6)) for _ in range(3)] == [6, 6, 3]

    Schedule.objects.all().delete()
    late, _ = minutely("b", every=3600, catch_up="skip"), minutely("a", every=3599)
    clock.advance(3600)
    see_to = world.see_to

    def slow(*args):
        done = see_to(*args)
        clock.advance(60)
        return done

    world.patch(monkeypatch, "see_to", slow)
    assert len(world.scheduler_tick()) == 2
    assert [tick[1] for tick in ticks_of(late)] == [True], "a slow sweep is no downtime"


def test_a_sweep_goes_on_until_nothing_is_due_and_a_full_one_leaves_the_others_to_the_next(clock, monkeypatch):
    world.patch(monkeypatch, "SCHEDULER_BATCH", 3)
    for number in range(10):
        minutely(str(number), **({"catch_up": "all"} if number == 5 else {}))
    with monkeypatch.context() as patched:
        world.patch(patched, "PER_SCHEDULE", 2)
        clock.now = at(5)
        assert len(world.scheduler_tick()) == 11, "one each, and a part of what one has to catch up with"
        assert [len(world.scheduler_tick()) for _ in range(3)] == [2, 1, 0]

    Schedule.objects.all().delete()
    minutely("a", catch_up="all")
    clock.advance(1)
    minutely("b"), minutely("c")
    clock.advance(3 * 60)
    assert [len(world.scheduler_tick(limit=3)) for _ in range(3)] == [3, 2, 0]


def test_all_get_a_run_each_in_their_order_so_many_a_sweep_and_one_stands_for_all(clock, monkeypatch):
    world.patch(monkeypatch, "PER_SCHEDULE", 10)
    row, one = minutely(catch_up="all"), minutely("b", catch_up="one")
    clock.now = at(25) + timedelta(seconds=50)

    assert [len(world.scheduler_tick()) for _ in range(4)] == [11, 10, 5, 0]

    runs = Run.objects.filter(metadata__schedule=str(row.id)).order_by("id")
    assert [run.metadata["tick"] for run in runs] == [at(n).isoformat() for n in range(1, 26)]
    row.refresh_from_db()
    assert (row.next_at, row.last_at) == (at(26), at(25))
    assert ticks_of(one) == [(at(25), True, "")]
    run = Run.objects.get(metadata__schedule=str(one.id))
    assert run.metadata == {"schedule": str(one.id), "tick": at(25).isoformat(), "missed": 24}


def test_all_are_the_latest_thousand_at_most(clock, monkeypatch):
    world.patch(monkeypatch, "SCHEDULER_MOST", 5)
    row = minutely(catch_up="all")
    clock.now = at(100)

    world.scheduler_tick()

    dropped, *done = ticks_of(row)
    assert [tick[:2] for tick in done] == [(at(n), True) for n in range(96, 101)]
    assert dropped == (at(1), False, "skipped: 95 ticks before 2030-01-01 01:36:00 UTC: they were more than 5")


# ------------------------------------------------------------------------------------------------------ faults


def inactive_owner(olga):
    type(olga).objects.filter(pk=olga.pk).update(is_active=False)


def strangers_session(olga):
    other = type(olga).objects.create_user("other")
    Schedule.objects.update(session=world.create_session(Session(owner=other, agent="test/code")))


FAULTS = [
    (lambda _: Schedule.objects.update(agent="test/gone"), "AgentNotFoundError"),
    (lambda _: Agent.objects.create(address="test/code", enabled=False), "AgentNotFoundError"),
    (inactive_owner, "ForbiddenError: its owner, olga, is not active"),
    (lambda _: Schedule.objects.update(input="x" * 300_000), "InputTooLargeError"),
    (lambda _: Schedule.objects.update(budget={"max_turns": -1}), "InvalidInputError: budget"),
    (lambda _: Schedule.objects.update(metadata=[1]), "Error: "),
    (strangers_session, "SessionNotFoundError"),
]


@pytest.mark.parametrize(("spoil", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_what_cannot_be_submitted_is_said_and_the_next_tick_is_set(clock, olga, spoil, words):
    row = minutely(user=olga)
    spoil(olga)
    clock.advance(60)

    assert world.scheduler_tick() == []

    row.refresh_from_db()
    ((when, has_run, error),) = ticks_of(row)
    assert (when, has_run, Run.objects.count()) == (at(1), False, 0)
    assert words in error and row.error == error
    assert row.next_at == at(2)
    if spoil is inactive_owner:
        type(olga).objects.update(is_active=True)
        clock.advance(60)
        assert len(world.scheduler_tick()) == 1
        row.refresh_from_db()
        assert row.error == "", "the error goes with the next run"


@pytest.mark.parametrize("error", [OperationalError("away"), RuntimeError("a bug")])
def test_one_that_fails_stops_no_other_and_the_databases_trouble_is_no_fault_of_it(clock, monkeypatch, error):
    bad, good = minutely("bad"), minutely("good")
    take = world.scheduler_take

    def faulty(row, *args):
        if row.id == bad.id:
            raise error
        return take(row, *args)

    def away(*args, **options):
        raise OperationalError("lock timeout")

    clock.advance(60)
    with monkeypatch.context() as patched:
        world.patch(patched, "scheduler_take", faulty)
        assert len(world.scheduler_tick()) == 1
    assert ticks_of(good) and not ticks_of(bad)
    assert Schedule.objects.get(id=bad.id).seen_at == at(1), "its wait for the next sweep is no downtime"
    with monkeypatch.context() as patched:
        world.patch(patched, "schedules_submit_once", away)
        assert world.scheduler_tick() == []
    assert ticks_of(bad) == [] and Schedule.objects.get(id=bad.id).next_at == at(1)
    assert len(world.scheduler_tick()) == 1, "the next sweep tries again"


@pytest.mark.parametrize("change", [{"cron": "nonsense", "every_s": None}, {"timezone": "Mars/Olympus"}])
def test_a_rule_spoilt_behind_our_back_puts_that_schedule_off_alone(clock, change):
    minutely("good")
    bad = minutely("bad")
    Schedule.objects.filter(id=bad.id).update(**change)
    clock.advance(60)

    assert len(world.scheduler_tick()) == 1

    bad.refresh_from_db()
    assert (bad.next_at, bad.due_at) == (at(1), at(1) + timedelta(seconds=world.SCHEDULER_RETRY_S))
    assert next(iter(change)) in bad.error
    assert world.scheduler_tick() == []


def test_a_host_that_cannot_read_the_zone_leaves_the_tick_to_others(clock, monkeypatch):
    zone = {"every": None, "cron": "*/30 * * * *", "timezone": "Europe/Berlin"}
    row = minutely(**zone)
    clock.now = at(30)

    def no_tzdata(name):
        raise ZoneInfoNotFoundError(name)

    with monkeypatch.context() as bad_host:
        world.patch(bad_host, "TicksZoneInfo", no_tzdata)
        assert world.scheduler_tick() == []
    row.refresh_from_db()
    assert (row.next_at, row.enabled) == (at(30), True) and "timezone" in row.error
    assert minutely(**zone).next_at == at(30), "a deploy leaves it so"
    clock.advance(world.SCHEDULER_RETRY_S)

    assert len(world.scheduler_tick()) == 1

    row.refresh_from_db()
    assert (row.next_at, row.seen_at, row.error) == (at(60), None, "")
    assert ticks_of(row) == [(at(30), True, "")]


@pytest.mark.parametrize("lost", ["next_at", "due_at"])
def test_one_that_is_on_without_a_next_tick_gets_one(clock, lost):
    row = minutely()
    clock.advance(90)
    fixes = [lambda: world.schedules_enable(row), minutely, lambda: world.schedules_keep(Schedule.objects.get())]
    for number, fix in enumerate(fixes):  # by its switch, a deploy, a save
        Schedule.objects.update(**{lost: None})
        fix()
        row.refresh_from_db()
        assert (row.next_at, row.due_at) == (at(2), at(2)), number


def test_with_its_session_a_schedule_is_switched_off_and_says_so_and_with_its_owner_it_is_gone(clock, olga):
    session = world.create_session(Session(owner=olga, agent="test/code"))
    row = minutely("a", user=olga, session=session, catch_up="all")
    minutely("b", user=olga)
    clock.advance(60)

    session.delete()

    assert len(world.scheduler_tick()) == 1, "the other one's"
    minutely("a", user=olga)
    row.refresh_from_db()
    assert (row.session, row.enabled, row.error) == (None, False, "its conversation was deleted")
    assert world.schedules_enable(row).error == "", "somebody wants a new one each"
    minutely("c", user=olga, session=world.create_session(Session(owner=olga, agent="test/code")))
    olga.delete()
    assert not Schedule.objects.exists()


# ----------------------------------------------------------------------------------------------------- by name


# -------------------------------------------------------------------------------------------------------- costs


@on_postgresql
def test_a_tick_costs_so_many_queries_and_what_is_due_is_found_by_its_index(clock, django_assert_max_num_queries):
    for number in range(10):
        minutely(str(number))
    clock.advance(60)
    with django_assert_max_num_queries(2 + 10 * 10):  # the agent is looked up once
        assert len(world.scheduler_tick()) == 10

    Schedule.objects.bulk_create(
        Schedule(name=f"n{n}", agent="test/code", input="hi", every_s=60, next_at=at(n), due_at=at(n))
        for n in range(1, 2000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ravi_schedule")
    plan = world.store_schedules_due().order_by("due_at").values_list("id")[:500].explain()
    assert "ravi_schedule_due" in plan
