"""Schedules by name: made, changed and removed by code."""

from datetime import UTC, datetime, timedelta

import pytest

from ravi_django import schedule
from ravi_django.kernel import AgentNotFoundError, NotFoundError, SessionNotFoundError
from ravi_django.models import Run, Schedule, ScheduleTick, Session
from tests.support import world
from tests.support.cases import case, refused
from tests.support.patience import BOUND_S
from tests.support.runs import code, in_background, on_postgresql, somebody_waits_for_a_lock, uncommitted, until

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


def test_the_same_name_changes_the_row_and_another_rule_begins_from_now(clock):
    row = minutely()
    clock.advance(90)

    again = schedule("test/code", "other words", name="a", every=timedelta(minutes=1))
    assert (again.id, again.next_at, again.input) == (row.id, at(1), "other words")
    changed = schedule("test/code", "hi", name="a", cron="0 * * * *", timezone="Asia/Kathmandu")

    assert changed.next_at == at(15), "whose clocks are 45 minutes ahead of the hour"
    assert Schedule.objects.count() == 1


@on_postgresql
def test_deploys_at_once_make_one_row_and_what_an_operator_changes_meanwhile_stays(clock):
    made = [in_background(minutely) for _ in range(8)]
    assert len({future.result(BOUND_S).id for future in made}) == 1
    assert Schedule.objects.count() == 1
    row = minutely(enabled=True)

    with uncommitted(lambda: world.schedules_disable(row)):
        deployed = in_background(lambda: minutely(priority="high"))
        until(somebody_waits_for_a_lock)

    assert (deployed.result(BOUND_S).enabled, deployed.result().priority) == (False, "high")
    row.refresh_from_db()
    assert (row.enabled, row.priority) == (False, "high")
    assert minutely(enabled=True).enabled is True


def test_names_are_their_owners_and_their_tenants(clock, olga):
    assert len({minutely().id, minutely(user=olga).id, minutely(tenant="acme").id}) == 3
    other = minutely("b", user=olga)
    other.name = "a"

    with refused("name", "already"):
        world.schedules_keep(other)


def test_it_is_gone_when_it_is_removed_and_its_runs_stay_and_old_ticks_are_pruned(clock):
    row = minutely()
    clock.advance(60)
    world.scheduler_tick()
    clock.advance(10 * 86400)
    world.scheduler_tick()
    for dry_run in (True, False):
        assert world.prune({"ticks": 86400.0}, dry_run=dry_run)["ticks"] == 1
    assert [tick[0] for tick in ticks_of(row)] == [BEGIN + timedelta(days=10, minutes=1)]

    world.schedules_remove(row)
    world.schedules_remove(row)

    assert (Schedule.objects.count(), ScheduleTick.objects.count(), Run.objects.count()) == (0, 0, 2)
    for act in (world.schedules_enable, world.schedules_disable):
        for gone in (row.id, "nonsense"):
            with pytest.raises(NotFoundError):
                act(gone)


def test_the_next_ticks_are_told_before_it_is_saved_and_a_run_now_is_beside_them(clock, olga):
    row = Schedule(cron="0 9 * * MON-FRI", timezone="Europe/Berlin")
    assert world.next_ticks(row, 2) == [BEGIN + timedelta(hours=8), BEGIN + timedelta(hours=32)]
    row = minutely(user=olga, metadata={"why": "x"})
    assert world.next_ticks(row, 1) == [at(1)]

    runs = [world.run_now(row), world.run_now(str(row.id))]

    assert runs[0].id != runs[1].id and runs[0].owner == olga
    assert runs[0].metadata == {"why": "x", "schedule": str(row.id)}
    assert ticks_of(row) == []


FIRST, LAST = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z"
CRON = {"every": None, "cron": "0 0 1 1 *"}


BAD = {
    "name": [{"name": " "}, {"name": "x" * 201}, {"name": "a\0b"}],
    "cron": [{"every": None}, {"cron": "* * * * *"}, {"every": None, "cron": "0 0 30 2 *"}],
    "every": [{"every": bad} for bad in (1.5, timedelta(seconds=1.5))],
    "every_s": [{"every": bad} for bad in (0, -5, True, 10**9)],
    "timezone": [{"timezone": "Mars/Olympus"}],
    "jitter_s": [{"jitter_s": 60}, {"jitter_s": -1}],
    "catch_up": [{"catch_up": "both"}],
    "starts_at": [{"starts_at": LAST, **CRON}, *({"starts_at": bad} for bad in ("soon", LAST, FIRST))],
    "priority": [{"priority": "huge"}],
    "budget": [{"budget": {"max_turns": -1}}],
    "metadata": [{"metadata": [1]}, {"metadata": {"tick": 1}}],
    "tenant": [{"tenant": "x" * 101}],
    "session": [{"session": "n" * 201}],
    "input": [{"input": words} for words in (" ", ["a list"], "x" * 300_000)],
}


def test_what_is_wrong_is_named_and_nothing_is_written(clock, olga):
    for field, cases in BAD.items():
        for given in cases:
            with case(given), refused(field):
                schedule(**{"agent": "test/code", "input": "hi", "name": "a", "every": 60, **given})
    with pytest.raises(AgentNotFoundError):
        schedule("test/gone", "hi", name="a", every=60)
    with pytest.raises(SessionNotFoundError):
        minutely(user=olga, session=world.create_session(Session(agent="test/code")).id)
    assert not Schedule.objects.exists()
