"""Schedules submit a run a tick: once, whoever looks, and whatever becomes of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

import pytest
from django.db import OperationalError, transaction

from ravi_django import schedule
from ravi_django.conf import conf
from ravi_django.kernel import AgentNotFoundError, InvalidInputError, NotFoundError, SessionNotFoundError
from ravi_django.models import Agent, Run, Schedule, ScheduleTick, Session
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code, in_background, on_postgresql, somebody_waits_for_a_lock, uncommitted, until

pytestmark = pytest.mark.django_db(transaction=True)

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)  # of the fake clock


async def nothing(ctx, inbox):
    return None


@pytest.fixture(autouse=True)
def agent(clock):
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
def test_a_tick_submits_a_run_of_what_the_row_says(clock, olga):
    session = world.create_session(Session(owner=olga, agent="test/code"))
    row = minutely(
        user=olga, tenant="acme", session=session, priority="high", budget={"max_turns": 3}, metadata={"why": "daily"}
    )
    assert (row.next_at, row.due_at) == (at(1), at(1))
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


def test_the_sweep_hints_what_the_clock_submitted(clock):
    minutely()
    clock.advance(60)
    hinted = []

    swept = world.sweeper_sweep(hinted.extend)

    assert hinted == [Run.objects.get().id] and swept.hinted == 1


def test_a_tick_waits_for_its_jitter(clock):
    row = minutely(every=3600, jitter_s=1800)
    late = row.due_at - row.next_at
    assert timedelta() < late < timedelta(minutes=30)
    clock.now = row.due_at - timedelta(seconds=1)
    assert world.scheduler_tick() == []
    clock.advance(1)

    world.scheduler_tick()

    assert ticks_of(row) == [(BEGIN + timedelta(hours=1), True, "")]


def test_one_that_is_off_submits_nothing_and_makes_up_for_nothing(clock):
    row = minutely(catch_up="all")
    world.schedules_disable(row)
    clock.advance(600)
    assert world.scheduler_tick() == [] and Run.objects.count() == 0

    again = world.schedules_enable(row)

    assert again.next_at == at(11)
    clock.advance(60)
    assert len(world.scheduler_tick()) == 1


def test_one_that_is_switched_off_between_reading_and_taking_submits_nothing(clock):
    row = minutely()
    clock.advance(60)
    with transaction.atomic():
        stale, now = world.read_due(row.id)
    world.schedules_disable(row)

    with transaction.atomic():
        assert world.scheduler_take(stale, now) == []

    assert Run.objects.count() == 0


def test_who_read_it_before_it_moved_on_does_not_move_it_back(clock):
    row = minutely()
    clock.advance(60)
    with transaction.atomic():
        stale, now = world.read_due(row.id)
    world.scheduler_tick()
    clock.advance(60)
    world.scheduler_tick()

    with transaction.atomic():
        assert world.scheduler_take(stale, now) == []

    row.refresh_from_db()
    assert (row.next_at, row.last_at, Run.objects.count()) == (at(3), at(2), 2)


@pytest.mark.sqlite
def test_a_tick_that_was_seen_to_is_not_submitted_again_wherever_the_row_points(clock):
    row = minutely()
    clock.advance(60)
    world.scheduler_tick()
    Run.objects.all().update(idempotency_scope=None)
    Schedule.objects.update(next_at=at(1), due_at=at(1))

    assert world.scheduler_tick() == []

    row.refresh_from_db()
    assert (Run.objects.count(), row.next_at) == (1, at(2))


def test_a_clock_that_is_set_back_submits_nothing_twice(clock):
    row = minutely()
    for _ in range(3):
        clock.advance(60)
        world.scheduler_tick()
    clock.advance(-150)

    assert world.scheduler_tick() == []
    world.schedules_disable(row)
    world.schedules_enable(row)
    for _ in range(3):
        clock.advance(60)
        world.scheduler_tick()

    assert [tick[0] for tick in ticks_of(row)] == [at(1), at(2), at(3)]
    assert Run.objects.count() == 3


def test_runs_in_one_session_are_queued_behind_each_other(clock, olga):
    session = world.create_session(Session(owner=olga, agent="test/code"))
    minutely(user=olga, session=session, catch_up="all")
    clock.advance(180)

    hinted = world.scheduler_tick()

    assert list(Run.objects.order_by("id").values_list("status", flat=True)) == ["pending", "queued", "queued"]
    assert hinted == [Run.objects.earliest("id").id]


# ------------------------------------------------------------------------------------------------- catching up


def test_skip_leaves_out_what_was_missed(clock):
    row = minutely(catch_up="skip")
    clock.now = at(30) + timedelta(seconds=world.grace_s() + 1)

    assert world.scheduler_tick() == []

    row.refresh_from_db()
    words = "skipped: 30 ticks before 2030-01-01 00:30:00 UTC: they were missed"
    assert (row.last_at, row.next_at, row.error) == (at(30), at(31), words)
    assert ticks_of(row) == [(at(1), False, words)], "one row, however many were missed"


def test_what_was_skipped_is_no_error_of_a_tick_that_ran(clock):
    row = minutely(catch_up="skip")
    clock.now = at(30)

    assert len(world.scheduler_tick()) == 1

    row.refresh_from_db()
    assert row.error == "" and [tick[:2] for tick in ticks_of(row)] == [(at(1), False), (at(30), True)]
    assert ticks_of(row)[0][2].startswith("skipped: 29 ticks before 2030-01-01 00:30:00 UTC")


def test_skip_lets_a_sweep_be_a_little_late(clock):
    row = minutely(catch_up="skip")
    clock.now = at(1) + timedelta(seconds=2 * conf.SWEEP_S + world.WITHIN_S)

    world.scheduler_tick()

    assert ticks_of(row) == [(at(1), True, "")]


def test_who_waits_for_a_turn_has_missed_nothing(clock):
    for name in "abcde":
        minutely(name, every=3600, catch_up="skip")
    clock.advance(3600)

    made = []
    for _ in range(6):  # one a sweep, and the last of them far behind the grace
        made.append(len(world.scheduler_tick(limit=1)))
        clock.advance(world.grace_s())

    assert made == [1, 1, 1, 1, 1, 0]
    assert {tick.error for tick in ScheduleTick.objects.all()} == {""}
    assert not Schedule.objects.exclude(seen_at=None).exists(), "it is said of one tick"


def test_what_was_missed_in_a_downtime_is_so_behind_a_turn_too(clock):
    for name in "abc":
        minutely(name, every=3600, catch_up="skip")
    clock.advance(3600 + 600)

    assert [len(world.scheduler_tick(limit=1)) for _ in range(3)] == [0, 0, 0]

    assert {tick.error for tick in ScheduleTick.objects.all()} == {
        "skipped: one tick before 2030-01-01 01:00:00 UTC: they were missed"
    }


def test_a_slow_sweep_is_no_downtime(clock, monkeypatch):
    late = minutely("b", every=3600, catch_up="skip")
    minutely("a", every=3599)
    clock.advance(3600)
    see_to = world.see_to

    def slow(*args):
        done = see_to(*args)
        clock.advance(60)
        return done

    world.patch(monkeypatch, "see_to", slow)

    assert len(world.scheduler_tick()) == 2

    assert [tick[1] for tick in ticks_of(late)] == [True]


def test_a_sweep_takes_so_long_and_leaves_the_others(clock):
    for name in "abc":
        minutely(name)
    clock.advance(60)

    assert world.scheduler_tick(within_s=0) == [] and Schedule.objects.filter(seen_at=at(1)).count() == 3

    assert len(world.scheduler_tick()) == 3


def test_a_sweep_goes_on_until_nothing_is_due(clock, monkeypatch):
    world.patch(monkeypatch, "SCHEDULER_BATCH", 3)
    for number in range(10):
        minutely(str(number), **({"catch_up": "all"} if number == 5 else {}))
    world.patch(monkeypatch, "PER_SCHEDULE", 2)
    clock.now = at(5)

    assert len(world.scheduler_tick()) == 11, "one each, and a part of what one has to catch up with"
    assert [len(world.scheduler_tick()) for _ in range(3)] == [2, 1, 0]


def test_one_run_stands_for_all_that_was_missed(clock):
    row = minutely(catch_up="one")
    clock.now = at(30) + timedelta(seconds=50)

    world.scheduler_tick()

    assert ticks_of(row) == [(at(30), True, "")]
    assert Run.objects.get().metadata == {"schedule": str(row.id), "tick": at(30).isoformat(), "missed": 29}


def test_all_get_a_run_each_in_their_order_so_many_a_sweep(clock, monkeypatch):
    world.patch(monkeypatch, "PER_SCHEDULE", 10)
    row = minutely(catch_up="all")
    clock.now = at(25)

    assert [len(world.scheduler_tick()) for _ in range(4)] == [10, 10, 5, 0]

    runs = Run.objects.order_by("id")
    assert [run.metadata["tick"] for run in runs] == [at(n).isoformat() for n in range(1, 26)]
    row.refresh_from_db()
    assert (row.next_at, row.last_at) == (at(26), at(25))


def test_all_are_the_latest_thousand_at_most(clock, monkeypatch):
    world.patch(monkeypatch, "SCHEDULER_MOST", 5)
    row = minutely(catch_up="all")
    clock.now = at(100)

    world.scheduler_tick()

    dropped, *done = ticks_of(row)
    assert [tick[:2] for tick in done] == [(at(n), True) for n in range(96, 101)]
    assert dropped == (at(1), False, "skipped: 95 ticks before 2030-01-01 01:36:00 UTC: they were more than 5")


def test_what_was_skipped_is_counted_so_far(clock, monkeypatch):
    world.patch(monkeypatch, "SCHEDULER_COUNTED", 7)
    rows = [minutely("a", catch_up="skip"), minutely("b", catch_up="skip", every=None, cron="* * * * *")]
    clock.now = at(100) - timedelta(seconds=1)

    world.scheduler_tick()

    for row in rows:
        assert ticks_of(row)[0][2].startswith("skipped: 7 ticks or more before 2030-01-01 01:39:00")


def test_a_sweep_submits_about_so_many_runs(clock):
    for name in "abcde":
        minutely(name, catch_up="all")
    clock.now = at(3)

    assert [len(world.scheduler_tick(limit=6)) for _ in range(3)] == [6, 6, 3]


def test_a_full_sweep_leaves_the_others_to_the_next(clock):
    minutely("a", catch_up="all")
    clock.advance(1)
    minutely("b"), minutely("c")
    clock.now = at(3) + timedelta(seconds=30)

    assert [len(world.scheduler_tick(limit=3)) for _ in range(3)] == [3, 2, 0]


# ------------------------------------------------------------------------------------------------------ faults


def ended_agent(row, olga):
    Schedule.objects.update(agent="test/gone")
    return "AgentNotFoundError"


def disabled_agent(row, olga):
    Agent.objects.update_or_create(address="test/code", defaults={"enabled": False})
    return "AgentNotFoundError"


def inactive_owner(row, olga):
    type(olga).objects.filter(pk=olga.pk).update(is_active=False)
    return "ForbiddenError: its owner, olga, is not active"


def big_input(row, olga):
    Schedule.objects.update(input="x" * 300_000)
    return "InputTooLargeError"


def bad_budget(row, olga):
    Schedule.objects.update(budget={"max_turns": -1})
    return "InvalidInputError: budget"


def bad_metadata(row, olga):
    Schedule.objects.update(metadata=[1])
    return "Error: "


def strangers_session(row, olga):
    other = type(olga).objects.create_user("other")
    Schedule.objects.update(session=world.create_session(Session(owner=other, agent="test/code")))
    return "SessionNotFoundError"


FAULTS = [ended_agent, disabled_agent, inactive_owner, big_input, bad_budget, bad_metadata, strangers_session]


@pytest.mark.parametrize("spoil", FAULTS)
def test_what_cannot_be_submitted_is_said_and_the_next_tick_is_set(clock, olga, spoil):
    row = minutely(user=olga)
    words = spoil(row, olga)
    clock.advance(60)

    assert world.scheduler_tick() == []

    row.refresh_from_db()
    ((when, has_run, error),) = ticks_of(row)
    assert (when, has_run, Run.objects.count()) == (at(1), False, 0)
    assert words in error and row.error == error
    assert row.next_at == at(2)


def test_the_error_goes_with_the_next_run(clock, olga):
    row = minutely(user=olga)
    inactive_owner(row, olga)
    clock.advance(60)
    world.scheduler_tick()
    type(olga).objects.update(is_active=True)
    clock.advance(60)

    assert len(world.scheduler_tick()) == 1

    row.refresh_from_db()
    assert row.error == ""


@pytest.mark.parametrize("error", [OperationalError("away"), RuntimeError("a bug")])
def test_one_that_fails_stops_no_other(clock, monkeypatch, error):
    bad, good = minutely("bad"), minutely("good")
    take = world.scheduler_take

    def faulty(row, *args):
        if row.id == bad.id:
            raise error
        return take(row, *args)

    world.patch(monkeypatch, "scheduler_take", faulty)
    clock.advance(60)

    assert len(world.scheduler_tick()) == 1

    assert ticks_of(good) and not ticks_of(bad)
    monkeypatch.undo()
    assert len(world.scheduler_tick()) == 1, "the next sweep tries again"


def test_the_databases_trouble_is_no_fault_of_the_schedule(clock, monkeypatch):
    row = minutely()
    clock.advance(60)

    def away(*args, **options):
        raise OperationalError("lock timeout")

    with monkeypatch.context() as patched:
        world.patch(patched, "schedules_submit_once", away)
        assert world.scheduler_tick() == []
    assert ticks_of(row) == [] and Schedule.objects.get().next_at == at(1)

    assert len(world.scheduler_tick()) == 1


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


@pytest.mark.parametrize("catch_up", Schedule.CatchUp.values)
def test_a_host_that_cannot_read_the_zone_leaves_the_tick_to_others(clock, monkeypatch, catch_up):
    zone = {"every": None, "cron": "*/30 * * * *", "timezone": "Europe/Berlin"}
    row = minutely(catch_up=catch_up, **zone)
    clock.now = at(30)

    def no_tzdata(name):
        raise ZoneInfoNotFoundError(name)

    with monkeypatch.context() as bad_host:
        world.patch(bad_host, "TicksZoneInfo", no_tzdata)
        assert world.scheduler_tick() == []
    row.refresh_from_db()
    assert (row.next_at, row.enabled) == (at(30), True) and "timezone" in row.error
    assert minutely(catch_up=catch_up, **zone).next_at == at(30), "a deploy leaves it so"
    clock.advance(world.SCHEDULER_RETRY_S)

    assert len(world.scheduler_tick()) == 1

    row.refresh_from_db()
    assert (row.next_at, row.seen_at, row.error) == (at(60), None, "")
    assert ticks_of(row) == [(at(30), True, "")]


@pytest.mark.parametrize("mend", ["enable", "deploy", "save"])
@pytest.mark.parametrize("lost", ["next_at", "due_at"])
def test_one_that_is_on_without_a_next_tick_gets_one(clock, mend, lost):
    row = minutely()
    Schedule.objects.update(**{lost: None})
    clock.advance(90)

    if mend == "enable":
        world.schedules_enable(row)
    elif mend == "deploy":
        minutely()
    else:
        world.schedules_keep(Schedule.objects.get())

    row.refresh_from_db()
    assert (row.next_at, row.due_at) == (at(2), at(2))


def test_with_its_session_a_schedule_is_switched_off_and_says_so(clock, olga):
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


def test_with_its_owner_a_schedule_is_gone(clock, olga):
    minutely("a", user=olga, session=world.create_session(Session(owner=olga, agent="test/code")))
    minutely("b", user=olga)

    olga.delete()

    assert not Schedule.objects.exists()


# ----------------------------------------------------------------------------------------------------- by name


def test_the_same_name_changes_the_row_and_leaves_its_next_tick_alone(clock):
    row = minutely()
    clock.advance(90)

    again = schedule("test/code", "other words", name="a", every=timedelta(minutes=1))

    assert (again.id, again.next_at, again.input) == (row.id, at(1), "other words")
    assert Schedule.objects.count() == 1


def test_another_rule_begins_from_now(clock):
    minutely()
    clock.advance(90)

    changed = schedule("test/code", "hi", name="a", cron="0 * * * *", timezone="Asia/Kathmandu")

    assert changed.next_at == at(15), "whose clocks are 45 minutes ahead of the hour"


def test_what_an_operator_has_switched_off_a_deploy_leaves_off(clock):
    world.schedules_disable(minutely())

    assert minutely().enabled is False
    assert minutely(enabled=True).enabled is True


@on_postgresql
def test_what_an_operator_changes_during_a_deploy_stays(clock):
    row = minutely(enabled=True)

    with uncommitted(lambda: world.schedules_disable(row)):
        deployed = in_background(lambda: minutely(priority="high"))
        until(somebody_waits_for_a_lock)

    assert (deployed.result(BOUND_S).enabled, deployed.result().priority) == (False, "high")
    row.refresh_from_db()
    assert (row.enabled, row.priority) == (False, "high")


def test_names_are_their_owners_and_their_tenants(clock, olga):
    assert len({minutely().id, minutely(user=olga).id, minutely(tenant="acme").id}) == 3
    other = minutely("b", user=olga)
    other.name = "a"

    with pytest.raises(InvalidInputError, match="already") as refused:
        world.schedules_keep(other)
    assert refused.value.field == "name"


@on_postgresql
def test_two_deploys_at_once_make_one_row(clock):
    made = [in_background(minutely) for _ in range(8)]

    assert len({future.result(BOUND_S).id for future in made}) == 1
    assert Schedule.objects.count() == 1


def test_it_is_gone_when_it_is_removed_and_its_runs_stay(clock):
    row = minutely()
    clock.advance(60)
    world.scheduler_tick()

    world.schedules_remove(row)
    world.schedules_remove(row)

    assert (Schedule.objects.count(), ScheduleTick.objects.count(), Run.objects.count()) == (0, 0, 1)
    for act in (world.schedules_enable, world.schedules_disable):
        with pytest.raises(NotFoundError):
            act(row.id)
        with pytest.raises(NotFoundError):
            act("nonsense")


def test_the_next_ticks_are_told_before_it_is_saved(clock):
    row = Schedule(cron="0 9 * * MON-FRI", timezone="Europe/Berlin")

    assert world.next_ticks(row, 2) == [BEGIN + timedelta(hours=8), BEGIN + timedelta(hours=32)]
    assert world.next_ticks(minutely(), 1) == [at(1)]


def test_a_run_now_is_one_beside_the_ticks(clock, olga):
    row = minutely(user=olga, metadata={"why": "x"})

    runs = [world.run_now(row), world.run_now(row)]

    assert runs[0].id != runs[1].id and runs[0].owner == olga
    assert runs[0].metadata == {"why": "x", "schedule": str(row.id)}
    assert ticks_of(row) == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"every": None}, "cron"),
        ({"cron": "* * * * *"}, "cron"),
        ({"every": None, "cron": "0 0 30 2 *"}, "cron"),
        ({"every": 0}, "every_s"),
        ({"every": -5}, "every_s"),
        ({"every": 1.5}, "every_s"),
        ({"every": True}, "every_s"),
        ({"every": 10**9}, "every_s"),
        ({"every": timedelta(seconds=1.5)}, "every_s"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"jitter_s": 60}, "jitter_s"),
        ({"jitter_s": -1}, "jitter_s"),
        ({"catch_up": "both"}, "catch_up"),
        ({"starts_at": "soon"}, "starts_at"),
        ({"starts_at": "9999-12-31T23:59:59Z"}, "starts_at"),
        ({"starts_at": "0001-01-01T00:00:00+14:00"}, "starts_at"),
        ({"starts_at": "9999-12-31T23:59:59Z", "every": None, "cron": "0 0 1 1 *"}, "starts_at"),
        ({"priority": "huge"}, "priority"),
        ({"budget": {"max_turns": -1}}, "budget"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"tick": 1}}, "metadata"),
        ({"tenant": "x" * 101}, "tenant"),
        ({"session": "nonsense"}, "session"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(clock, given, field):
    with pytest.raises(InvalidInputError) as refused:
        minutely(**given)

    assert (refused.value.field, Schedule.objects.count()) == (field, 0)


def test_agent_input_and_session_are_looked_at_before_the_first_tick(clock, olga):
    with pytest.raises(AgentNotFoundError):
        schedule("test/gone", "hi", name="a", every=60)
    for words in (" ", ["a list"], "x" * 300_000):
        with pytest.raises(InvalidInputError) as refused:
            schedule("test/code", words, name="a", every=60)
        assert refused.value.field == "input"
    with pytest.raises(SessionNotFoundError):
        minutely(user=olga, session=world.create_session(Session(agent="test/code")).id)
    assert not Schedule.objects.exists()


# -------------------------------------------------------------------------------------------------------- costs


def test_nothing_due_costs_a_sweep_one_query(clock, django_assert_num_queries):
    for name in "abc":
        minutely(name)

    with django_assert_num_queries(1):
        assert world.scheduler_tick() == []


@on_postgresql
def test_a_tick_costs_so_many_queries_and_its_agent_is_looked_up_once(clock, django_assert_max_num_queries):
    for number in range(10):
        minutely(str(number))
    clock.advance(60)

    with django_assert_max_num_queries(2 + 10 * 10):
        assert len(world.scheduler_tick()) == 10


@on_postgresql
def test_looking_for_what_is_due_reads_its_index(clock):
    from django.db import connection

    Schedule.objects.bulk_create(
        Schedule(name=str(n), agent="test/code", input="hi", every_s=60, next_at=at(n), due_at=at(n))
        for n in range(1, 2000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ravi_schedule")
    plan = world.store_schedules_due().order_by("due_at").values_list("id")[:500].explain()

    assert "ravi_schedule_due" in plan


def test_old_ticks_are_pruned(clock):
    row = minutely()
    clock.advance(60)
    world.scheduler_tick()
    clock.advance(10 * 86400)
    world.scheduler_tick()

    assert world.prune({"ticks": 86400.0}, dry_run=True)["ticks"] == 1
    assert world.prune({"ticks": 86400.0})["ticks"] == 1

    assert [tick[0] for tick in ticks_of(row)] == [BEGIN + timedelta(days=10, minutes=1)]
