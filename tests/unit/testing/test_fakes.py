"""What a site's own tests are given."""

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.test import TestCase

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Run, Session
from ravi_django.testing import FakeClock, ScriptedModel, arun_until_idle, journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import on_postgresql, uncommitted

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No worker is hinted, and the agents of a test are its own."""
    world.silence(monkeypatch, "dispatch_send")
    known = dict(world.agents_by_address)
    yield
    world.agents_by_address.clear()
    world.agents_by_address.update(known)


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def adder(*script):
    return register(ReActAgent("adder", model=ScriptedModel(list(script)), tools=[add], retention="none"))


CALL = ToolUseBlock(tool_name="add", arguments={"a": 1, "b": 2}, call_id="c1")


def test_a_run_with_a_tool_call_is_driven_to_its_end():
    run = submit(adder(CALL, "three"), "what is 1 + 2?")
    leases = run_until_idle()
    run.refresh_from_db()
    assert leases == 1
    assert run.output == "three", run.error
    assert [entry.kind for entry in journal_of(run)] == [
        "run.started", "llm.call", "tool.call", "llm.call", "run.completed",
    ]  # fmt: skip


def test_queued_runs_are_driven_too():
    agent = adder("one")
    first = submit(agent, "a")
    second = submit(agent, "b", session=first.session)
    assert run_until_idle() == 2
    assert set(Run.objects.values_list("id", "status")) == {(first.id, "completed"), (second.id, "completed")}
    # async tests have it too
    submit(adder("one"), "a")
    assert asyncio.run(arun_until_idle()) == 1


def test_nothing_to_do_is_no_lease():
    assert run_until_idle() == 0
    # runs of agents that are not registered are left
    agent = adder("one")
    run = submit(agent, "a")
    world.unregister(agent.id)
    assert run_until_idle() == 0
    run.refresh_from_db()
    assert run.status == "pending"


def test_a_run_that_waits_for_a_retry_is_left_for_later():
    from ravi_django.kernel import TransientError

    with FakeClock() as clock:
        answers = [TransientError("busy"), "hello"]
        agent = register(ReActAgent("retrying", model=ScriptedModel([lambda *_: answers.pop(0)])))
        run = submit(agent, "a")
        assert run_until_idle() == 1
        clock.advance(60)
        assert run_until_idle() == 1
    run.refresh_from_db()
    assert run.output == "hello"


@on_postgresql
def test_it_waits_for_a_run_that_another_transaction_locks(monkeypatch):
    run = submit(adder("one"), "a")
    claim_batch, claims = world.claim_batch, []
    with ExitStack() as lock:

        def claiming(*args):
            claims.append(1)
            if len(claims) == 3:
                lock.close()
            return claim_batch(*args)

        lock.enter_context(uncommitted(lambda: Run.objects.select_for_update().get(id=run.id)))
        world.patch(monkeypatch, "claim_batch", claiming)
        with pytest.raises(TimeoutError, match=f"locked by another transaction after 0 s: {run.id}"):
            run_until_idle(timeout=0)
        assert run_until_idle(timeout=BOUND_S) == 1


class InATransaction(TestCase):
    def test_it_names_the_test_case_that_it_needs(self):
        with self.assertRaisesMessage(RuntimeError, "TransactionTestCase"):
            run_until_idle()

    async def test_async(self):
        with self.assertRaisesMessage(RuntimeError, "TransactionTestCase"):
            await arun_until_idle()


def test_it_gives_up_after_its_time_and_leaves_the_run_claimable(monkeypatch):
    now = [0.0]

    async def late(messages, options):
        now[0] = 31.0
        await asyncio.Event().wait()

    world.patch(monkeypatch, "running_time", SimpleNamespace(monotonic=lambda: now[0]))
    world.patch(monkeypatch, "ENGINE_END_S", BOUND_S)
    run = submit(register(ReActAgent("slow", model=ScriptedModel([late]))), "a")
    with pytest.raises(TimeoutError, match=f"still running after 30 s: {run.id}"):
        run_until_idle()
    run.refresh_from_db()
    assert (run.status, run.crashes) == ("pending", 0)


def test_the_journal_is_in_order_with_big_values_put_back():
    text = "x" * 100_000
    run = submit(adder(text), "a")
    run_until_idle()
    for given in (run, run.id, str(run.id)):
        entries = journal_of(given)
        assert ([entry.seq for entry in entries], entries[1].result["content"][0]["text"]) == ([1, 2, 3], text)


def test_the_fake_clock_is_the_present_of_rows_and_comparisons():
    start = datetime(2040, 2, 3, tzinfo=UTC)
    with FakeClock(start) as clock:
        session = world.create_session(Session())
        later = clock.advance(90)
        world.processes_swept()
    assert (session.created_at, later) == (start, datetime(2040, 2, 3, 0, 1, 30, tzinfo=UTC))
    # the clock before comes back
    with FakeClock() as outer:
        with FakeClock(datetime(2050, 1, 1, tzinfo=UTC)):
            assert world.clock_fixed().year == 2050
        assert world.clock_fixed() == outer.now
    assert world.clock_fixed() is None
