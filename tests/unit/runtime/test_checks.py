"""An at-most-once tool's check finds out what became of an effect, before a person is asked."""

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ravi_django import signal, tool
from ravi_django.conf import conf
from ravi_django.kernel import RunContext
from ravi_django.models import HumanRequest, JournalEntry, Run, Status
from ravi_django.tools import Happened, NotHappened
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT_S = 5


@pytest.fixture
def provider():
    """What a payment provider has on its books, by idempotency key, and who has asked for it."""

    class Provider:
        booked: dict[str, str] = {}
        asked: list[tuple[dict, str]] = []

    Provider.booked, Provider.asked = {}, []
    return Provider


@pytest.fixture
def uncertain(clock, provider):
    """Makes a run whose worker died after it had paid, and whose tool has this check. The next worker has the run."""

    def make(check, *, is_async=False, renewed_for=0):
        def find(arguments, key):
            provider.asked.append((arguments, key))
            return check(key)

        async def find_on_the_loop(arguments, key):
            return find(arguments, key)

        @tool(effect="at_most_once", timeout=TIMEOUT_S, check=find_on_the_loop if is_async else find)
        def pay(ctx: RunContext, to: str) -> str:
            provider.booked.setdefault(ctx.idempotency_key, f"payment {len(provider.booked) + 1}")
            return provider.booked[ctx.idempotency_key]

        code(calling("pay", to="ACME"), tools=[pay])
        run = drive(make_run(), dies=2)
        if renewed_for:
            Run.objects.filter(id=run.id).update(lease_expires_at=clock.now + timedelta(seconds=renewed_for))
            clock.advance(renewed_for - conf.LEASE_S)
        return take_over(clock, run)

    return make


def after_the_zombie(clock, run):
    """When the worker that began the effect cannot perform it any more."""
    clock.advance(conf.LEASE_S + TIMEOUT_S)
    return drive(run)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_it_has_found_is_the_result(clock, provider, uncertain, is_async):
    run = uncertain(lambda key: Happened(provider.booked[key]), is_async=is_async)
    assert (run.status, provider.asked) == (Status.SUSPENDED, [])  # not yet: the dead worker may be a sleeping one
    run = after_the_zombie(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "ok: payment 1")
    assert provider.asked == [({"to": "ACME"}, next(iter(provider.booked)))]
    assert JournalEntry.objects.get(kind="effect.checked").result["by"] == "check of pay"
    assert not HumanRequest.objects.exists()


def test_what_has_not_happened_is_done_as_the_next_attempt(clock, provider, uncertain):
    run = uncertain(lambda key: NotHappened)
    run = after_the_zombie(clock, run)
    assert run.output == "ok: payment 1"
    calls = JournalEntry.objects.filter(kind="tool.call").order_by("seq")
    assert list(calls.values_list("phase", "attempt")) == [("started", 1), ("started", 2), ("result", 2)]


def test_a_run_that_is_woken_early_still_waits_for_the_end_of_the_dead_workers_lease(clock, provider, uncertain):
    """That worker may have renewed its lease long after the effect began."""
    run = uncertain(lambda key: NotHappened, renewed_for=300)
    assert run.status == Status.SUSPENDED
    clock.advance(1)
    signal(run.id, "news", 1)
    Run.objects.filter(id=run.id).update(wake_at=clock.now)
    run = drive(run)
    assert (run.status, provider.asked) == (Status.SUSPENDED, [])


def broken(key):
    raise ValueError("no answer")


@pytest.mark.parametrize("check", [lambda key: None, broken])
def test_a_person_decides_where_it_does_not_know(clock, provider, uncertain, check):
    run = after_the_zombie(clock, uncertain(check))
    world.human_resolve(asked(run).id, "happened", result="payment 1")
    assert drive(run).output == "ok: payment 1"
    assert len(provider.asked) == 1


def test_the_docs_payment_is_found_by_its_key(clock, monkeypatch):
    class Provider:
        booked: ClassVar[dict[str, str]] = {}

        @staticmethod
        def payments(idempotency_key):
            return [name for key, name in Provider.booked.items() if key == idempotency_key]

        @staticmethod
        def pay(customer, amount, idempotency_key):
            Provider.booked[idempotency_key] = f"{customer}-{amount}"
            return Provider.booked[idempotency_key]

    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(provider=Provider))
    space = Page("payments").run("shop/payments.py")
    code(calling("pay", customer="ada", amount=5), tools=[space["pay"]])
    run = take_over(clock, drive(make_run(), dies=2))
    clock.advance(conf.LEASE_S + space["pay"].timeout)
    assert drive(run).output == "ok: paid as ada-5"


def test_only_an_at_most_once_tool_has_one():
    with pytest.raises(ValueError, match="check= must be a function, and needs effect"):
        tool(name="pay", effect="idempotent", check=broken)(broken)
