"""What docs/howto/schedules.md shows is run here."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from django.core.management import call_command

from ravi_django import ReActAgent
from ravi_django.models import Run, Schedule
from ravi_django.testing import FakeClock, registered
from tests.support import world
from tests.support.docs import Page
from tests.support.world import check_cron

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Page("schedules")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    world.silence(monkeypatch, "dispatch_send")
    with FakeClock() as clock:
        yield clock


@registered(ReActAgent("helper", model="rehearsal"))
def test_the_pages_schedules_run_when_it_says(
    clock: FakeClock, django_user_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fay = django_user_model.objects.create_user("ada")
    module = ModuleType("shop.schedules")
    vars(module).update(PAGE.run("shop/schedules.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.schedules", module)
    command = PAGE.run("shop/management/commands/set_up_schedules.py")["Command"]
    for _ in range(2):
        call_command(command())

    summary, watch = Schedule.objects.order_by("name")
    assert summary.next_at == datetime(2030, 1, 1, 6, 30, tzinfo=UTC)
    assert summary.next_at <= summary.due_at < summary.next_at + timedelta(seconds=120)
    clock.now = summary.due_at
    world.scheduler_tick()
    run = Run.objects.get(owner=fay)
    assert run.metadata == {"schedule": str(summary.id), "tick": "2030-01-01T06:30:00+00:00"}
    assert Run.objects.filter(owner=None).count() <= 1, "what the other one missed is skipped"

    looked = PAGE.run("schedules: look")

    assert [b - a for a, b in zip(looked["soon"], looked["soon"][1:], strict=False)] == [timedelta(minutes=10)] * 2
    assert (looked["extra"].owner, looked["extra"].metadata) == (None, {"schedule": str(watch.id)})
    assert list(Schedule.objects.all()) == [summary]


def test_the_pages_expressions_are_what_it_says() -> None:
    for good in ("30 7 * * MON-FRI", "0 0 L * *", "0 0 LW * *", "0 0 * * 5L", "0 0 * * MON#2", "0 0 * JAN *"):
        check_cron(good)
    for bad in ("0 0 30 2 *", "@daily", "0 0 0 * * *"):
        with pytest.raises(ValueError, match="cron"):
            check_cron(bad)


def test_the_pages_numbers_are_the_codes() -> None:
    assert (world.SCHEDULER_MOST, world.PER_SCHEDULE, world.grace_s()) == (1000, 100, 20.0)


def test_the_pages_command_lists(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("ravi_schedules")

    assert capsys.readouterr().out == "no schedules\n"
