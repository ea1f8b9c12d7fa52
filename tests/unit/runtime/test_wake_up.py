"""No wake-up is lost: signal and suspend in every order, on two connections."""

import asyncio
from functools import partial

import pytest
from django.db import transaction

from ravi_django import signal, tool
from ravi_django.kernel import LeaseLostError
from ravi_django.models import Run, Signal, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    auntil,
    code,
    drive,
    in_background,
    leased,
    make_run,
    message,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.world import Engine, Entry

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

WAITS = [{"kind": "signal", "name": "go", "until": None}]


def suspend(lease):
    entry = Entry("run.suspended", f"@suspended.{lease.epoch}")
    return world.suspend(lease, [entry], seen=lease.run.wake_seq, waits=WAITS, wake_at=None).status


def status_of(run_id):
    return Run.objects.values_list("status", flat=True).get(id=run_id)


@pytest.mark.parametrize(
    "act", [partial(world.send_signal, name="go", payload=1), partial(world.request_cancel, reason="x")]
)
def test_a_signal_or_a_cancel_before_the_suspension_keeps_the_run_from_suspending(act):
    lease = leased()
    act(lease.run_id)

    assert suspend(lease) == Status.PENDING
    assert status_of(lease.run_id) == Status.PENDING


def test_a_signal_that_comes_while_the_suspension_is_not_yet_committed_wakes_the_run():
    lease = leased()
    with transaction.atomic():
        assert suspend(lease) == Status.SUSPENDED
        sending = in_background(world.send_signal, lease.run_id, "go", 1)
        until(somebody_waits_for_a_lock)  # it must not pass by a row that is being suspended

    assert sending.result(BOUND_S).new
    assert status_of(lease.run_id) == Status.PENDING


def test_a_suspension_that_comes_while_the_signal_is_not_yet_committed_sees_it():
    lease = leased()
    with transaction.atomic():
        Signal.objects.create(run_id=lease.run_id, name="go", payload=1)
        world.touch([lease.run_id])
        suspending = in_background(suspend, lease)
        until(somebody_waits_for_a_lock)

    assert suspending.result(BOUND_S) == Status.PENDING


def test_a_signal_of_a_long_transaction_is_touched_after_its_commit():
    lease = leased()
    with transaction.atomic():
        signal(lease.run_id, "go", 1)
        assert in_background(suspend, lease).result(BOUND_S) == Status.SUSPENDED  # and holds up no worker

    assert status_of(lease.run_id) == Status.PENDING


def test_a_signal_for_a_run_that_other_effects_keep_here_is_seen_when_it_is_hinted(step):
    order = []

    async def scenario(run):
        gate = asyncio.Event()

        async def story(ctx, inbox):
            async def listen():
                order.append(await ctx.sleep_until_signal("go"))
                gate.set()

            async def work():
                await ctx.tool("step", name="long")

            await asyncio.gather(listen(), work())

        @tool
        async def step(name: str) -> str:
            """Step."""
            await gate.wait()
            order.append(name)
            return name

        code(story, tools=[step])
        engine = Engine()
        try:
            driving = engine.hint(run.id)
            await auntil(lambda: run.id in engine.active and engine.active[run.id].recorder.waits.waits_for)
            await asyncio.to_thread(lambda: in_background(signal, run.id, "go", "now").result(BOUND_S))
            engine.hint(run.id)
            await asyncio.wait_for(driving, BOUND_S)
        finally:
            await engine.close(drain_s=0.5)

    run = make_run()

    asyncio.run(scenario(run))

    assert order == ["now", "long"]
    assert status_of(run.id) == Status.COMPLETED


def test_a_look_that_is_asked_for_during_another_is_made_after_it():
    """The one under way may have read before the signal was there."""
    busy, free = asyncio.Event(), asyncio.Event()

    async def story(ctx, inbox):
        call = ctx.recorder.threads.call

        async def late(function, *args, **kwargs):
            answer = await call(function, *args, **kwargs)
            if function is world.wake_state_later and not free.is_set():
                busy.set()
                await free.wait()
            return answer

        async def signalled():
            first = asyncio.create_task(ctx.recorder.refresh())
            await busy.wait()
            await asyncio.to_thread(lambda: in_background(world.send_signal, run.id, "go", 1).result(BOUND_S))
            await ctx.recorder.refresh()
            free.set()
            await first

        ctx.recorder.threads.call = late
        with ctx.recorder.waits.busy():  # the run does not suspend meanwhile
            await signalled()
        ctx.recorder.threads.call = call
        return str(ctx.recorder.state.wake_state.take_signal("go")[1])

    code(story)
    run = make_run()

    assert drive(run).output == "1"


def test_a_look_at_the_facts_after_the_decision_to_suspend_does_not_hide_the_signal():
    async def story(ctx, inbox):
        return await ctx.sleep_until_signal("go")

    async def scenario(run):
        code(story)
        engine = Engine(on_promoted=lambda run_id: None)
        settle = engine._finish

        async def late(active, outcome):
            await asyncio.to_thread(lambda: in_background(world.send_signal, run.id, "go", 1).result(BOUND_S))
            await active.recorder.refresh()
            await settle(active, outcome)

        engine._finish = late
        try:
            await asyncio.wait_for(engine.drive(run.id), BOUND_S)
        finally:
            await engine.close(drain_s=0.5)

    run = make_run()

    asyncio.run(scenario(run))

    assert status_of(run.id) == Status.PENDING


def test_a_signal_is_consumed_once():
    lease = leased()
    world.send_signal(lease.run_id, "go", 1)
    signal_id = Signal.objects.get().id
    world.consume_signal(lease, [Entry("signal", "1", "go")], signal_id=signal_id)

    with pytest.raises(LeaseLostError):
        world.consume_signal(lease, [Entry("signal", "2", "go")], signal_id=signal_id)

    assert [entry.path for entry in journal_of(lease.run_id)] == ["1"]


def test_a_run_does_not_complete_over_a_message_that_came_while_it_was_driven():
    lease, other = leased(), leased()
    world.append(lease, [Entry("run.started", "@started", read_upto=lease.run.inbox.latest("id").id)])
    world.asking_deliver(other, [Entry("msg.sent", "1")], target_id=lease.run_id, message=message("more"))

    with pytest.raises(world.UnreadMessages):
        world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")])

    assert status_of(lease.run_id) == Status.RUNNING
    assert [row.kind for row in journal_of(lease.run_id)] == ["run.started"]
