"""What a user, and all of a tenant, may use in a day: by a setting, and by rows that go before it."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.checks import check_settings
from ravi_django.kernel import BudgetExhaustedError
from ravi_django.models import BudgetAccount, DailyBudget, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.budgets import USER, model, reserved, spent
from tests.support.cases import case
from tests.support.runs import code, drive, in_background, leased, make_run, take_over
from tests.support.world import prune

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock():
    with FakeClock(datetime(2026, 11, 22, 12, tzinfo=UTC)) as clock:
        yield clock


@pytest.fixture
def user(django_user_model):
    return django_user_model.objects.create_user("ann")


@pytest.fixture
def daily(settings):
    def limit(**budgets):
        settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": budgets}

    return limit


@pytest.fixture
def talker():
    """Calls the model three times; says how often it could, and what it was told."""

    async def story(ctx, inbox):
        for made in range(3):
            try:
                await ctx.llm([USER])
            except BudgetExhaustedError as error:
                return f"{made}: {error}"
        return "3"

    made = model(10, 0.5)
    code(story, model=made)
    return made


def test_two_trees_of_a_user_share_the_users_day(clock, user, daily, talker):
    daily(user={"max_tokens": 45})
    first, second = drive(make_run(owner=user)), drive(make_run(owner=user))
    words = f"user {user.pk} has used 50 of its max_tokens of 45 for 2026-11-22"
    fix = "continue from 2026-11-23 00:00 UTC, or raise the daily budget of the user"
    assert (first.output, second.output) == ("3", f"2: {words}; {fix}")
    assert spent(f"user:{user.pk}:2026-11-22") == (50, Decimal("2.5"), 5)
    assert reserved(f"user:{user.pk}:2026-11-22") == (0, Decimal(0), 0)


def test_a_call_is_paid_by_the_day_on_which_it_was_reserved(clock, user, daily, talker):
    daily(user={"max_turns": 9})
    run = drive(make_run(owner=user), dies=1)
    clock.advance(12 * 3600)
    run = take_over(clock, run)
    assert run.output == "3"
    assert spent(f"user:{user.pk}:2026-11-22")[2] == 1
    assert spent(f"user:{user.pk}:2026-11-23")[2] == 3


def test_all_of_a_tenant_share_its_day(clock, user, daily, talker, django_user_model):
    other = django_user_model.objects.create_user("bob")
    daily(tenant={"max_cost_usd": 2.0})
    whose = (user, "acme"), (other, "acme"), (user, "else")
    outputs = [drive(make_run(owner=owner, tenant=tenant)).output[:16] for owner, tenant in whose]
    assert outputs == ["3", "1: tenant 'acme'", "3"]
    assert spent("tenant:acme:2026-11-22") == (40, Decimal("2.0"), 4)
    assert spent("tenant:else:2026-11-22") == (30, Decimal("1.5"), 3)


def test_a_row_goes_before_the_setting(clock, user, daily, talker, django_user_model):
    bob, eve = (django_user_model.objects.create_user(name) for name in ("bob", "eve"))
    daily(user={"max_turns": 1})
    DailyBudget.objects.create(owner=user, max_turns=2)
    DailyBudget.objects.create(owner=eve)
    DailyBudget.objects.create(tenant="acme", max_turns=2)
    assert [drive(make_run(owner=owner)).output[0] for owner in (user, bob, eve)] == ["2", "1", "3"]
    assert drive(make_run(owner=eve, tenant="acme")).output.startswith("2: tenant 'acme'")
    keys = set(BudgetAccount.objects.values_list("key", flat=True))
    assert drive(make_run()).output == "3"
    assert set(BudgetAccount.objects.values_list("key", flat=True)) == keys


def test_an_edit_counts_from_the_next_heartbeat_on(clock, user, talker):
    row = DailyBudget.objects.create(owner=user, max_turns=1)
    assert drive(make_run(owner=user)).output.startswith("1: ")
    row.max_turns = 3
    row.save()
    run = drive(make_run(owner=user), setup=lambda engine: in_background(engine.heartbeat.beat).result())
    assert run.output.startswith("2: ")
    assert BudgetAccount.objects.get().max_turns == 3


def test_a_process_reads_the_rows_once_before_its_first_call_and_never_for_a_call(clock, user):
    """Whatever its heartbeat has come to by then."""
    DailyBudget.objects.create(owner=user, max_turns=1)
    lease = leased(make_run(owner=user))
    world.load_with_wake_state(lease)
    with CaptureQueriesContext(connection) as captured:
        for _ in range(3):
            assert [account.key for account in world.accounts_of(lease.run)] == [f"user:{user.pk}:2026-11-22"]
            world.load_with_wake_state(lease)
    assert not [query for query in captured if "dailybudget" in query["sql"]]


def test_what_a_run_had_reserved_is_freed_though_the_budget_is_gone(clock, user, talker):
    row = DailyBudget.objects.create(owner=user, max_turns=5)
    run = drive(make_run(owner=user), dies=2)
    row.delete()
    world.accounts_forget()
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "3")
    assert reserved(f"user:{user.pk}:2026-11-22") == (0, Decimal(0), 0)


def test_a_setting_that_cannot_be_is_said(daily, settings):
    daily(user={"max_tokens": 5, "max_turns": None}, tenant={"max_cost_usd": 0.5})
    assert [error.id for error in check_settings() if error.id == "ravi.E011"] == []
    for setting, fault in (
        ([], " is [], not a dict"),
        ({"users": {}}, " has an unknown key 'users'"),
        ({"user": 5}, "['user'] is 5, not a dict of limits"),
        ({"user": {"max_cost": 5}}, "['user'] has an unknown key 'max_cost'"),
        ({"tenant": {"max_tokens": 0}}, "['tenant']['max_tokens'] is 0, not a whole number above 0"),
        ({"tenant": {"max_tokens": "5"}}, "['tenant']['max_tokens'] is '5'"),
        ({"tenant": {"max_cost_usd": float("nan")}}, "['tenant']['max_cost_usd'] is nan, not a number of dollars"),
        ({"tenant": {"max_cost_usd": float("inf")}}, "['tenant']['max_cost_usd'] is inf, not a number of dollars"),
    ):
        settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": setting}
        with case(setting):
            (found,) = [error for error in check_settings() if error.id == "ravi.E011"]
            assert fault in found.msg


def test_accounts_of_days_long_past_and_of_deleted_trees_go_with_the_prune(clock, user, daily, talker):
    daily(user={"max_turns": 9})
    kept, gone = (drive(make_run(owner=user, budget={"max_turns": 5})) for _ in range(2))
    BudgetAccount.objects.create(key="tenant:acme:2026-10-21")
    BudgetAccount.objects.create(key="tenant:acme:2026-10-22")
    gone.delete()
    assert prune({}, dry_run=True)["accounts"] == 2
    assert prune({})["accounts"] == 2
    left = {f"tree:{kept.id}", f"user:{user.pk}:2026-11-22", "tenant:acme:2026-10-22"}
    assert set(BudgetAccount.objects.values_list("key", flat=True)) == left
