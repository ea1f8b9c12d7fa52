"""An effect that may have happened: kept as a request, decided once by a person, never tried again by itself."""

import asyncio
import threading
from datetime import timedelta

import pytest
from django.db import transaction

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, RunContext
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.gates import steal
from tests.support.patience import BOUND_S
from tests.support.runs import (
    around_append,
    asked,
    auntil,
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    take_over,
    until,
)
from tests.support.tool_calls import calling, on_the_loop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def undecided(clock, sent):
    """A run whose worker died after it had sent an invoice; it may still be at it."""
    code(calling("send", to="ACME"), tools=[sending(sent)])
    run = take_over(clock, drive(make_run(), dies=2))
    assert sent == ["ACME"]
    return run


@pytest.fixture
def uncertain(clock, undecided):
    """A person may decide on it by now."""
    clock.advance(conf.LEASE_S + 10)
    return undecided


def sending(sent):
    @tool(effect="at_most_once", timeout=5)
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    return send


def test_it_happened_and_the_persons_result_is_the_tools(sent, uncertain):
    world.human_resolve(asked(uncertain).id, "happened", result="invoice 7")

    run = drive(uncertain)

    assert (run.status, run.output, sent) == (Status.COMPLETED, "ok: invoice 7", ["ACME"])
    assert [entry.seq for entry in journal_of(run)] == list(range(1, run.next_seq))
    kinds = [entry.kind for entry in journal_of(run)]
    assert kinds.count("request.opened") == kinds.count("request.closed") == 1


@pytest.mark.sqlite
def test_it_did_not_happen_and_each_attempt_that_is_lost_too_is_decided_on_by_itself(clock, sent, uncertain):
    world.human_resolve(asked(uncertain).id, "run_again")
    drive(uncertain, dies=2)

    run = take_over(clock, uncertain)

    assert sent == ["ACME", "ACME"]
    assert asked(run).attempt == 2
    clock.advance(conf.LEASE_S + 10)
    world.human_resolve(asked(run).id, "run_again")
    run = drive(run)
    assert (run.status, run.output, sent) == (Status.COMPLETED, "ok: sent", ["ACME"] * 3)
    rows = [(row.phase, row.attempt) for row in journal_of(run) if row.kind == "tool.call"]
    assert rows == [("started", 1), ("started", 2), ("started", 3), ("result", 3)]


@pytest.mark.parametrize("outcome", ["happened", "run_again"])
def test_what_it_had_recorded_inside_is_not_missed_while_a_person_decides(clock, sent, outcome):
    """And it is not done twice where the call is made again."""
    looked = []

    @tool
    def look(at: str) -> str:
        """Look."""
        looked.append(at)
        return "fine"

    @tool(effect="at_most_once", timeout=5)
    async def send(ctx: RunContext, to: str) -> str:
        """Look, and send."""
        found = await ctx.tool("look", at=to)
        sent.append(found.text)
        return "sent"

    code(calling("send", to="ACME"), tools=[look, send])
    run = drive(make_run(), dies=3)
    run = take_over(clock, run)
    clock.advance(conf.LEASE_S + 10)
    world.human_resolve(asked(run).id, outcome, **({"result": "sent"} if outcome == "happened" else {}))

    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "ok: sent"), run.error
    assert looked == ["ACME"]
    assert sent == ["fine"] * (2 if outcome == "run_again" else 1)


def test_nobody_decides_on_what_is_recorded_though_the_call_was_cancelled_over_it(sent):
    calls = []

    async def story(ctx, inbox):
        calls.append(asyncio.create_task(ctx.tool("send", to="ACME")))
        await asyncio.wait(calls)
        return f"{calls[0].cancelled()}"

    async def cancel(engine, entries):
        if entries[-1].kind == "tool.call" and entries[-1].phase == "result":
            calls[0].cancel()

    code(story, tools=[sending(sent)])
    run = drive(make_run(), setup=around_append(before=cancel))

    assert (run.status, run.output, sent) == (Status.COMPLETED, "True", ["ACME"])
    assert not HumanRequest.objects.exists()


def test_a_person_may_fail_the_run(uncertain):
    world.human_resolve(asked(uncertain).id, "fail", reason="nobody knows")

    run = drive(uncertain)

    assert (run.status, run.error["type"]) == (Status.FAILED, "UncertainEffectError")


def test_nobody_may_decide_while_the_worker_that_began_it_may_still_be_at_it(undecided):
    with pytest.raises(ConflictError, match="can be answered from"):
        world.human_resolve(asked(undecided).id, "run_again")

    assert asked(undecided).answer is None


@pytest.mark.sqlite
def test_a_person_may_decide_when_the_lease_of_the_dead_worker_and_the_tools_time_are_over(clock, sent):
    """However long ago the effect has begun: the dead worker may have renewed its lease since."""
    code(calling("send", to="ACME"), tools=[sending(sent)])
    run = drive(make_run(), dies=2)
    ends = clock.now + timedelta(seconds=100)
    Run.objects.filter(id=run.id).update(lease_expires_at=ends)
    clock.advance(200)

    assert asked(drive(run)).not_before == ends + timedelta(seconds=5)


@on_postgresql
def test_the_number_of_the_next_version_does_not_overwrite_an_answer(uncertain):
    request = asked(uncertain)
    with transaction.atomic():
        Run.objects.select_for_update().get(id=uncertain.id)
        guessing = in_background(lambda: world.human_resolve(request.id, "fail", version=2))
        until(somebody_waits_for_a_lock)
        world.human_resolve(request.id, "run_again")  # the request has version 2 now

    with pytest.raises(ConflictError, match="already answered"):
        guessing.result(BOUND_S)


def test_an_answer_within_a_transaction_counts_with_it(uncertain):
    request = asked(uncertain)
    with transaction.atomic():
        world.human_resolve(request.id, "happened", result="x")
        transaction.set_rollback(True)
    uncertain.refresh_from_db()
    assert asked(uncertain).answer is None

    with transaction.atomic():
        world.human_resolve(request.id, "happened", result="x")
        assert Run.objects.get(id=uncertain.id).status == Status.SUSPENDED
    assert Run.objects.get(id=uncertain.id).status == Status.PENDING


def test_an_at_most_once_tool_that_waits_is_uncertain_with_words_that_say_why(sent):
    @tool(effect="at_most_once")
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        await ctx.sleep_until_signal("go")
        return "paid"

    code(calling("pay"), tools=[pay])

    assert "is at-most-once and cannot wait" in asked(drive(make_run())).text


def holding_a_thread():
    """A tool that keeps its thread, and events: it has one, it may end."""
    busy, free = threading.Event(), threading.Event()

    @tool
    def hold() -> str:
        """Hold."""
        busy.set()
        assert free.wait(BOUND_S)
        return "free"

    return hold, busy, free


@pytest.mark.parametrize("stolen", [False, True])
@pytest.mark.parametrize("queued", [False, True])
def test_an_effect_is_not_performed_on_a_lease_that_may_be_over(settings, sent, queued, stolen):
    """Neither by a worker that slept over its started row, nor by a thread that is free too late."""
    settings.RAVI = {**settings.RAVI, "TOOL_THREADS": 1}
    hold, busy, free = holding_a_thread()

    def paying():
        sent.append(1)
        return "paid"

    pay = tool(effect="at_most_once", name="pay")(paying if queued else on_the_loop(paying))

    async def story(ctx, inbox):
        record = ctx.recorder.record

        async def sleepy(entry, *args, **kwargs):
            seq = await record(entry, *args, **kwargs)
            if entry.phase == "started":
                if stolen:
                    await asyncio.to_thread(lambda: in_background(steal, run).result(BOUND_S))
                asyncio.get_running_loop().call_later(0.01, end_lease) if queued else end_lease()
            return seq

        def end_lease():
            ctx.recorder.state.renewed_at -= conf.LEASE_S
            free.set()

        ctx.recorder.record = sleepy
        holding = asyncio.create_task(ctx.tool("hold")) if queued else None
        await auntil(lambda: busy.is_set() or not queued)
        result = await ctx.tool("pay")
        if holding is not None:
            await holding
        return f"{result.status}: {result.text}"

    code(story, tools=[hold, pay])
    run = make_run()

    drive(run)

    assert sent == []
    if stolen:
        assert (run.lease_owner, [row.phase for row in journal_of(run) if row.name == "pay"]) == ("thief", ["started"])
    else:
        words = "error: pay was not run: this worker could not renew its lease in time"
        assert (run.status, run.output) == (Status.COMPLETED, words)
