"""Ten thousand runs to drive are a few hints: each has a worker look for what can be claimed."""

from __future__ import annotations

import pytest

from ravi_django import register, tasks
from ravi_django.kernel import AgentId
from ravi_django.models import Run, WorkerProcess, uuid7
from tests.support import world
from tests.support.runs import CodeAgent, make_run, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent(monkeypatch):
    sent = []
    world.patch(monkeypatch, "send_many", lambda run_ids: sent.extend(run_ids))
    world.patch(monkeypatch, "background_hint", lambda task, *args: sent.append(task.name))
    return sent


def test_few_are_hinted_one_by_one(sent):
    ids = [uuid7() for _ in range(world.FAN_OUT_FEW)]

    world.fan_out_wake(ids)
    world.fan_out_wake([])

    assert sent == ids


@pytest.mark.parametrize(("workers", "looks"), [(0, 16), (3, 16), (40, 80)])
def test_of_many_all_workers_are_set_going(sent, workers, looks):
    WorkerProcess.objects.bulk_create(
        WorkerProcess(name=f"w{number}", seen_at=world.now(), started_at=world.now()) for number in range(workers)
    )

    world.fan_out_wake([uuid7() for _ in range(10_000)])

    assert sent == ["ravi.look"] * looks


@pytest.fixture
def driven(monkeypatch):
    async def nothing(ctx, inbox):
        return "done"

    agent = CodeAgent(nothing)
    assert agent.id == AgentId("test", "code")
    register(agent)
    yield [make_run() for _ in range(5)]
    world.close_worker()


def test_one_look_drives_them_all(driven):
    tasks.look.run()

    until(lambda: Run.objects.filter(status="completed").count() == 5)
