"""The code of an at-most-once tool that goes on after its timeout: nothing is settled while it runs."""

import asyncio
import threading
from datetime import timedelta

import pytest

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import ConflictError
from ravi_django.models import AuditRecord, HumanRequest, JournalEntry, Run, Status, WorkerProcess
from ravi_django.testing import warm
from ravi_django.tools import Happened, NotHappened
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    adrive,
    asked,
    auntil,
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    take_over,
    until,
)
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT_S = 0.05


class Provider:
    """Takes a payment when the test lets it, and keeps its caller until then."""

    def __init__(self):
        self.paid, self.asked, self.answers = [], [], threading.Event()

    def pay(self):
        assert self.answers.wait(BOUND_S)
        return self.book()

    async def pay_whatever_happens(self):
        while not self.answers.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return self.book()

    def book(self):
        self.paid.append("payment")
        return f"payment {len(self.paid)}"

    def find(self, arguments, key):
        self.asked.append(key)
        return Happened("found") if self.paid else NotHappened


@pytest.fixture
def provider():
    provider = Provider()
    yield provider
    provider.answers.set()
    until(lambda: not {"ravi-late", "ravi-heartbeat"} & {thread.name for thread in threading.enumerate()})
    assert not WorkerProcess.objects.exists()


def pay_with(function, check=None, timeout=TIMEOUT_S):
    code(calling("pay"), tools=[tool(name="pay", effect="at_most_once", timeout=timeout, check=check)(function)])
    return make_run()


def becomes(run, status):
    return lambda: Run.objects.filter(id=run.id, status=status).exists()


@pytest.mark.sqlite
@pytest.mark.parametrize("is_async", [False, True])
def test_a_check_waits_for_the_code_and_its_late_result_is_the_calls(clock, monkeypatch, provider, is_async):
    world.patch(monkeypatch, "GRACE_S", 0.01)
    run = pay_with(provider.pay_whatever_happens if is_async else provider.pay, provider.find)

    async def story():
        await adrive(run)
        for _ in range(2):
            clock.advance(conf.LEASE_S + TIMEOUT_S + 1)
            await adrive(run)
        assert (provider.asked, provider.paid) == ([], [])
        provider.answers.set()
        await auntil(lambda: provider.paid)
        await asyncio.wrap_future(in_background(until, becomes(run, Status.PENDING)))
        await adrive(run)

    warm.run(story())
    run.refresh_from_db()
    assert (run.output, provider.paid, provider.asked) == ("ok: payment 1", ["payment"], [])
    assert not HumanRequest.objects.exists()


@on_postgresql
def test_nobody_has_it_run_again_while_its_code_runs_and_the_late_result_is_the_answer(clock, provider):
    run = drive(pay_with(provider.pay))
    request = asked(run)
    assert "its code is still running in worker" in request.text
    clock.advance(conf.LEASE_S + TIMEOUT_S + 1)
    with transaction.atomic():
        Run.objects.select_for_update().get(id=run.id)  # the late result cannot be written
        for name in ("ravi-heartbeat", "ravi-late"):
            until(lambda name=name: name in {thread.name for thread in threading.enumerate()})
            with pytest.raises(ConflictError, match="its code is still running in worker"):
                world.human_resolve(request.id, "run_again")
            provider.answers.set()
    until(becomes(run, Status.PENDING))

    assert (drive(run).output, provider.paid) == ("ok: payment 1", ["payment"])
    request.refresh_from_db()
    assert request.answer["by"].startswith("worker ")


def test_a_persons_answer_that_was_first_stays_and_the_audit_has_the_late_result(clock, provider):
    run = drive(pay_with(provider.pay))
    world.human_resolve(asked(run).id, "happened", result="payment 7")
    assert drive(run).output == "ok: payment 7"

    provider.answers.set()

    until(lambda: AuditRecord.objects.filter(name="late").exists())
    late = AuditRecord.objects.get(name="late").detail["answer"]
    assert late["result"] == [{"type": "text", "text": "payment 1"}]
    assert HumanRequest.objects.get().answer["result"] == "payment 7"


def test_the_audit_has_the_late_result_of_a_run_that_was_cancelled(clock, provider):
    run = drive(pay_with(provider.pay, provider.find))
    world.cancel(run.id, "not needed")
    assert not HumanRequest.objects.exists()

    provider.answers.set()

    until(lambda: AuditRecord.objects.exists())
    late = AuditRecord.objects.get()
    assert (late.event, late.name, late.detail["outcome"], late.run_id) == ("tool", "pay", "late", run.id)
    assert late.detail["answer"]["result"] == [{"type": "text", "text": "payment 1"}]


@on_postgresql
def test_a_result_that_is_written_while_the_question_is_opened_is_its_answer(monkeypatch, provider):
    make, late = world.requests_new, JournalEntry.objects.filter(kind="effect.checked")
    end, ended = world.END_LATE, threading.Event()

    def twice(*args):  # as after a commit whose confirmation was lost
        end(*args)
        end(*args)
        ended.set()

    def new(*args, **options):
        provider.answers.set()
        assert ended.wait(BOUND_S)
        return make(*args, **options)

    world.patch(monkeypatch, "requests_new", new)
    world.patch(monkeypatch, "END_LATE", twice)
    run = drive(pay_with(lambda: iter([provider.pay(), object()])))
    assert run.output == "ok: done; the result of type list_iterator is not JSON"
    assert HumanRequest.objects.get().answer["by"].startswith("worker ")
    assert late.count() == 1


def test_code_that_ignores_its_end_for_too_long_is_a_persons(clock, provider):
    run = drive(pay_with(provider.pay, provider.find))
    clock.advance(world.LOST_S + TIMEOUT_S)

    run = drive(run)

    assert "its code is still running in worker" in asked(run).text
    assert provider.asked == []


def test_the_code_of_a_dead_worker_has_ended_once_its_heartbeat_is_old_enough(clock, provider):
    """Of another process only its row is known; it may be one that sleeps."""
    provider.answers.set()
    run = drive(pay_with(lambda: "", provider.find, timeout=60), dies=2)
    key = world.code_key(run.id, 0, "1", 1)
    clock.advance(200)
    row = WorkerProcess(name="of-another-host", started_at=clock.now, code={key: [clock.now.isoformat(), 300]})
    row.seen_at = clock.now + timedelta(seconds=conf.LEASE_S)
    row.save()
    run = take_over(clock, run)
    assert (run.status, provider.asked) == (Status.SUSPENDED, [])

    world.forget_dead_workers(10)
    clock.now = run.wake_at
    run = drive(run)

    assert run.wake_at is None and len(provider.asked) == 1
    assert clock.now == row.seen_at + timedelta(seconds=conf.LEASE_S + 300)
    clock.advance(86_400)
    world.forget_dead_workers(10)
