"""The tests of a site: nothing runs until `run_until_idle`, scripts for registered agents, and `run_sync`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import checks, mail
from django.db import transaction

from project.celery import app
from ravi_django import answer, emit, follow, register, run_sync, schedule, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import RunWaitsError, ToolUseBlock
from ravi_django.models import Run
from ravi_django.testing import FakeClock, ScriptedModel, arun_until_idle, run_until_idle, scripted
from tests.support import world
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "react/scripted-helper"


@pytest.fixture(autouse=True)
def helper(settings: Any) -> Iterator[ReActAgent]:
    settings.RAVI = {**settings.RAVI, "ENGINE": None}
    agent = register(ReActAgent("scripted-helper", model=ScriptedModel(["its own"])))
    yield agent
    world.unregister(agent.id)


def statuses() -> list[str]:
    return list(Run.objects.values_list("status", flat=True))


def test_runs_publications_and_schedules_wait_for_run_until_idle(caplog: pytest.LogCaptureFixture) -> None:
    with FakeClock() as clock:
        follow(ADDRESS, "shop/news", user=User.objects.create_user("ada"))
        schedule(ADDRESS, "What is new?", name="report", every=3600)
        emit("shop/news", "We have moved.")
        run = submit(ADDRESS, "Hello")
        assert statuses() == ["pending"]
        with pytest.raises(RuntimeError, match=r"call ravi_django.testing.run_until_idle"):
            run.result()

        run_until_idle()
        assert statuses() == ["completed"] * 2
        clock.advance(3600)
        run_until_idle()

    assert (statuses(), run.result(), caplog.messages) == (["completed"] * 3, "its own", [])


def test_result_says_what_a_suspended_run_waits_for_and_who_may_not_wait() -> None:
    async def waiting(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("parcel")

    code(waiting)
    run = submit("test/code", "Hello")
    run_until_idle()
    with pytest.raises(RuntimeError, match=r"it waits for signal parcel: let that happen, then call ravi_django"):
        run.result()
    with transaction.atomic(), pytest.raises(RuntimeError, match="in a test use TransactionTestCase"):
        run.result()

    async def test() -> None:
        run_until_idle()

    with pytest.raises(RuntimeError, match=r"await arun_until_idle\(\)"):
        asyncio.run(test())


def test_check_warns_of_it_outside_of_tests(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "manual"}
    assert "ravi.W032" not in [message.id for message in checks.run_checks(tags=["ravi"])]
    monkeypatch.delattr(mail, "outbox")
    assert "ravi.W032" in [message.id for message in checks.run_checks(tags=["ravi"])]


def test_scripts_replace_a_model_nest_and_are_taken_back(helper: ReActAgent) -> None:
    with scripted(ADDRESS, ["outer"]) as outer:
        with scripted(helper, ScriptedModel("inner")):
            assert run_sync(ADDRESS, "Hello") == "inner"
        assert run_sync(ADDRESS, "Hello") == "outer"
        assert len(outer.calls) == 1

    assert run_sync(ADDRESS, "Hello") == "its own"


def test_a_script_decorates_functions_and_classes() -> None:
    @scripted(ADDRESS, ["decorated"])
    async def in_a_loop() -> int:
        return await arun_until_idle()

    @scripted(ADDRESS, ["decorated"])
    class Case:
        def test_it(self, depth: int = 1) -> str:
            return self.test_it(depth - 1) if depth else run_sync(ADDRESS, "Hello")

    run = submit(ADDRESS, "Hello")
    assert asyncio.run(in_a_loop()) == 1
    assert [run.result(), Case().test_it(), Case().test_it()] == ["decorated"] * 3
    assert run_sync(ADDRESS, "Hello") == "its own"


def test_another_engine_is_refused_with_the_fix(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "celery"}
    app.conf.task_always_eager = True
    try:
        with pytest.raises(RuntimeError, match=r"CELERY_TASK_ALWAYS_EAGER .*set it to 'manual'"):
            run_until_idle()
    finally:
        app.conf.task_always_eager = False

    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    world.get_worker()
    try:
        with pytest.raises(RuntimeError, match=r"a worker runs in this process.*set it to 'manual'"):
            run_until_idle()
    finally:
        world.close_worker()


def test_an_engine_that_waited_for_a_request_says_so_on_a_developers_site(settings: Any, monkeypatch, capsys) -> None:
    settings.DEBUG, settings.RAVI = True, {**settings.RAVI, "ENGINE": "inline"}
    world.patch(monkeypatch, "server_begun", threading.Lock())
    world.patch(monkeypatch, "uses_litellm", lambda: False)
    try:
        world.start_when_ready()
        world.start_when_ready()
    finally:
        world.close_worker()
    assert capsys.readouterr().err.count("; it starts with the first request: manage.py ravi_worker executes runs") == 1


@pytest.mark.parametrize("engine", ["inline", "celery"])
def test_run_sync_executes_here_where_no_worker_is_alive(
    engine: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": engine}
    world.silence(monkeypatch, "dispatch_send")
    try:
        assert [run_sync(ADDRESS, "Hello", timeout=timedelta(minutes=5)) for _ in range(2)] == ["its own"] * 2
    finally:
        world.close_worker()


def test_run_sync_waits_for_the_workers_where_one_is_alive(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "celery"}
    world.silence(monkeypatch, "dispatch_send")
    world.worker_seen("elsewhere:1")

    with pytest.raises(TimeoutError, match=r"is pending after 0 s"):
        run_sync(ADDRESS, "Hello", timeout=timedelta())


def test_run_sync_names_the_request_that_its_run_waits_for() -> None:
    @tool(risk="high", approvers="staff")
    def refund() -> str:
        """Pay back."""
        return "paid back"

    call = ToolUseBlock(tool_name="refund", arguments={}, call_id="c1")
    agent = register(ReActAgent("refunds", model=ScriptedModel([call, "Done."]), tools=[refund]))
    grace = User.objects.create_user("grace", is_staff=True)

    with pytest.raises(RunWaitsError, match=r"waits for a person: approval .*refund") as waits:
        run_sync(agent, "Pay back.")
    answer(waits.value.request, "approve", by=grace)
    run_until_idle()

    assert Run.objects.get(id=waits.value.run).result() == "Done."


def test_run_sync_is_refused_where_it_would_wait_for_ever() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match=r"run_sync.. is inside a transaction"):
        run_sync(ADDRESS, "Hello")

    async def on_a_loop() -> None:
        run_sync(ADDRESS, "Hello")

    with pytest.raises(RuntimeError, match=r"would block the event loop: await asyncio.to_thread"):
        asyncio.run(on_a_loop())
    assert statuses() == []
