"""Schedules in `ravi_schedules`, and what `ravi_doctor` says of them and of tenants."""

from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import schedule
from ravi_django.management import diagnosis
from ravi_django.models import Run, Schedule, Session
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.runs import code, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock():
    async def nothing(ctx, inbox):
        return None

    code(nothing)
    with FakeClock() as clock:
        yield clock


def listed(*options: str) -> list[str]:
    out = StringIO()
    call_command("ravi_schedules", *options, stdout=out)
    return out.getvalue().splitlines()


def found() -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in diagnosis.examine() if one.what.startswith("schedules")]


def test_the_list_tells_next_and_last_runs(clock, django_user_model):
    assert listed() == ["no schedules"]
    schedule("test/code", "hi", name="a", every=60, user=django_user_model.objects.create_user("olga"))
    off = schedule("test/code", "hi", name="b", cron="0 9 * * *", timezone="Asia/Kathmandu")
    clock.advance(60)
    world.scheduler_tick()
    Run.objects.update(status="completed")
    world.schedules_disable(off)

    assert listed() == [
        "a  test/code  every 60 s  next 2030-01-01 00:02:00  last run 2030-01-01 00:01:00 completed  owner olga",
        "b  test/code  0 9 * * * Asia/Kathmandu  off  last run —  of the system",
    ]
    assert [line.split()[0] for line in listed("--enabled")] == ["a"]
    Schedule.objects.filter(name="a").update(agent="test/gone")
    clock.advance(60)
    world.scheduler_tick()
    assert "last run 2030-01-01 00:01:00 completed  last tick 2030-01-01 00:02:00" in listed()[0]


def test_the_doctor_names_those_in_error_and_those_that_nobody_sees_to(clock):
    assert found() == []
    row = schedule("test/code", "hi", name="a", every=60)
    assert found() == [("ok", "schedules: 1 enabled")]
    clock.advance(60)
    Schedule.objects.update(agent="test/gone")
    world.scheduler_tick()
    assert found() == [("warning", "schedules: 1 in error: 'a'")]
    assert "error: AgentNotFoundError" in listed()[0]
    clock.advance(60 + 61)

    assert found()[1] == ("warning", "schedules: 1 overdue for more than 60 s: 'a'")
    world.schedules_disable(row)
    assert found() == []


def test_the_doctor_names_those_that_will_submit_nothing(django_user_model):
    olga = django_user_model.objects.create_user("olga")
    session = world.create_session(Session(owner=olga, agent="test/code"))
    schedule("test/code", "hi", name="a", every=60, user=olga, session=session)
    schedule("test/code", "hi", name="b", every=60)
    Schedule.objects.filter(name="b").update(next_at=None, due_at=None)
    session.delete()
    assert found() == [
        ("warning", "schedules: 1 on, and without a next tick: 'b'"),
        ("warning", "schedules: 1 off, since their conversation was deleted: 'a'"),
    ]


def test_runs_with_tenants_need_a_rule_of_whose_requests_people_see(settings):
    make_run()
    assert list(diagnosis.tenants()) == []
    make_run(tenant="acme")
    (finding,) = [found for found in diagnosis.examine() if found.what.startswith("tenants:")]
    assert (finding.level, "only owners and superusers" in finding.what) == ("warning", True)
    assert finding.fix.startswith("RAVI['TENANT_OF'] =")
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: None}
    assert list(diagnosis.tenants()) == []
