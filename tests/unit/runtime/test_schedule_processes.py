"""Scheduler processes on one PostgreSQL, and what is left when they are killed in the middle: a run a tick."""

import multiprocessing
import os
import random
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connections

from ravi_django import schedule
from ravi_django.models import Run, Schedule, ScheduleTick
from tests.support import world
from tests.support.cases import sizes
from tests.support.patience import BOUND_S
from tests.support.runs import code, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

DAY_S = 86_400  # no further tick comes while the test runs

fork = multiprocessing.get_context("fork")


async def nothing(ctx, inbox):
    return None


@pytest.fixture(autouse=True)
def agent():
    return code(nothing)


def due(name: str, ticks: int) -> Schedule:
    """A schedule of which so many ticks have come."""
    row = schedule("test/code", "hi", name=name, every=DAY_S, catch_up="all")
    first = world.schedules_present() - timedelta(days=ticks, seconds=-DAY_S // 2)
    Schedule.objects.filter(id=row.id).update(starts_at=first, next_at=first, due_at=first)
    return row


def start(work: Callable[[], Any]) -> Any:
    """In a process of its own, with connections of its own."""
    connections.close_all()
    process = fork.Process(target=_in_child, args=(work,))
    process.start()
    return process


def _in_child(work: Callable[[], Any]) -> None:
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no clean-up of what is the test's


def schedule_until_none_is_due() -> None:
    while world.schedules_due(1):
        world.scheduler_tick(limit=1)


def check_each_tick_has_its_run(ticks: int) -> None:
    assert Run.objects.count() == ticks
    recorded = list(ScheduleTick.objects.values_list("schedule", "at", "run"))
    assert len({run for *_, run in recorded} - {None}) == len(recorded) == ticks
    made = {(run.metadata["schedule"], run.metadata["tick"]) for run in Run.objects.all()}
    assert made == {(str(row), at.isoformat()) for row, at, _ in recorded}
    assert not world.schedules_due(1)


def dying(seed: int, risk: float) -> None:
    """A scheduler that is killed somewhere: before or after any of its steps, each time at this risk."""
    chance = random.Random(seed)

    def deadly(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **options: Any) -> Any:
            if chance.random() < risk:
                os.kill(os.getpid(), signal.SIGKILL)
            done = step(*args, **options)
            if chance.random() < risk:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return stepping

    for verb in ("schedules_advance", "schedules_seen", "schedules_record", "schedules_submit_once", "see_to"):
        world.replace(verb, deadly(getattr(world, verb)))
    schedule_until_none_is_due()


@pytest.mark.parametrize(
    ("processes", "schedules", "ticks", "risk", "kills"), sizes((2, 4, 20, 0.1, 3), (4, 6, 30, 0.06, 5))
)
def test_schedulers_killed_in_the_middle_leave_a_run_a_tick(processes, schedules, ticks, risk, kills):
    for number in range(schedules):
        due(str(number), ticks // schedules)
    seeds, killed = iter(range(1000)), 0

    alive = [start(partial(dying, next(seeds), risk)) for _ in range(processes)]
    while alive:
        process = alive.pop(0)
        process.join(BOUND_S)
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode:
            killed += 1
            alive.append(start(partial(dying, next(seeds), risk)))

    assert killed >= kills, "it was no test otherwise"
    check_each_tick_has_its_run(ticks)
