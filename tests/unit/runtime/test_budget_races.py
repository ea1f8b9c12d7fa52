"""Many at once: real connections, real locks. Nobody overspends by more than a call, and nobody waits for ever."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pytest
from django.db import transaction

from ravi_django.kernel import LeaseLostError, Usage
from ravi_django.models import BudgetAccount, HumanRequest, Reservation, Run, Session, uuid7
from tests.support import world
from tests.support.budgets import balances, recorded, reserved, spent
from tests.support.cases import sizes
from tests.support.patience import BOUND_S
from tests.support.runs import at_once, in_background, leased, make_run, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

CALLERS = 24
TODAY = date(2026, 11, 22)
USED = 10  # tokens of a call


@pytest.fixture
def day(settings):
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"user": {"max_turns": 10**6}, "tenant": {"max_turns": 10**6}}}
    return datetime.now(UTC).date()


def child_of(root: Run, **fields) -> Run:
    session = world.create_session(Session(agent="test/code"))
    return Run.objects.create(id=uuid7(), agent="test/code", session=session, root=root, parent=root, **fields)


def pay(lease, path: str, tokens: int = USED) -> None:
    """The call's row, and what it has used."""
    entry = Entry("llm.call", path, "m", usage=Usage(output_tokens=tokens), cost=0.5)
    world.budgets_settled(lease, [entry], lambda: world.append(lease, [entry]))


def spend(lease, path: str, estimate: int, day: date, actual: int = USED) -> bool:
    """One call as a worker makes it: waits for room, and pays. Says whether it was made."""
    for _ in range(10_000):
        verdict = world.reserve(lease, path, world.Amount(estimate, Decimal("0.5")), day)
        if verdict is True:
            pay(lease, path, actual)
            return True
        if isinstance(verdict, world.Exhausted):
            return False
    raise AssertionError("there was never room")


@pytest.mark.parametrize("estimate", [USED, 60, pytest.param(4_096, marks=pytest.mark.crash)])
def test_callers_near_the_limit_overspend_by_at_most_one_call(day, estimate, django_user_model):
    """What a call uses is no more than it reserves, or nothing else fits beside it."""
    user = django_user_model.objects.create_user("ann")
    root = make_run(budget={"max_tokens": 95}, owner=user, tenant="acme")
    leases = [leased(root), *(leased(child_of(root, owner=user, tenant="acme")) for _ in range(CALLERS - 1))]
    made = at_once(*(partial(spend, lease, "1", estimate, day) for lease in leases))
    assert sum(made) == 10
    assert spent(root) == (100, Decimal("5.0"), 10) == recorded(root)
    assert balances(root)
    for key in (f"user:{user.pk}:{day}", f"tenant:acme:{day}"):
        assert (spent(key), reserved(key)[2]) == ((100, Decimal("5.0"), 10), 0)


@pytest.mark.parametrize("calls", sizes(4, 15))
def test_many_calls_of_many_trees_end_without_a_deadlock(calls, day, django_user_model):
    """Accounts are shared across: each tree's own, two users', one tenant's."""
    users = [django_user_model.objects.create_user(name) for name in ("ann", "bob")]
    roots = [make_run(budget={"max_tokens": 10**6}, owner=users[n % 2], tenant="acme") for n in range(6)]
    runs = [*roots, *(child_of(root, owner=root.owner, tenant="acme") for root in roots for _ in range(3))]
    leases = [leased(run) for run in runs]

    def many(lease):
        dice = random.Random(str(lease.run_id))
        for number in range(calls):
            assert spend(lease, str(number), dice.choice([1, 100, 5000]), day, actual=dice.randrange(50))
            if dice.random() < 0.2:
                world.reserve(lease, f"left {number}", world.Amount(1, Decimal(0)), day)
        world.budgets_settled(lease, [], lambda: world.requeue(lease), ends=True)

    at_once(*(partial(many, lease) for lease in leases))
    assert all(balances(root) for root in roots)
    total = sum(recorded(root)[0] for root in roots)
    assert spent(f"tenant:acme:{day}")[0] == total == sum(spent(f"user:{user.pk}:{day}")[0] for user in users)
    assert not Reservation.objects.exists()


def test_a_call_is_reserved_once_however_often_its_answer_is_lost():
    lease = leased(make_run(budget={"max_turns": 5}))
    for _ in range(2):  # as a database thread repeats it
        assert world.reserve(lease, "1", world.Amount(7, Decimal(0)), TODAY) is True
    assert reserved(lease.run) == (7, Decimal(0), 1)


def test_a_reservation_waits_for_who_takes_the_run_over():
    """It would be nobody's to free."""
    lease = leased(make_run(budget={"max_turns": 5}))
    with transaction.atomic():
        Run.objects.filter(id=lease.run_id).update(lease_epoch=lease.epoch + 1)
        late = in_background(world.reserve, lease, "1", world.Amount(1, Decimal(0)), TODAY)
        until(lambda: late.done() or somebody_waits_for_a_lock())
    with pytest.raises(LeaseLostError):
        late.result(BOUND_S)
    assert not Reservation.objects.exists()


def test_what_is_not_written_is_not_paid():
    lease = leased(make_run(budget={"max_turns": 5}))
    world.reserve(lease, "1", world.Amount(7, Decimal(0)), TODAY)
    entry = Entry("llm.call", "1", "m", usage=Usage(output_tokens=3))

    def refused():
        world.append(lease, [entry])
        raise ValueError

    with pytest.raises(ValueError):
        world.budgets_settled(lease, [entry], refused)
    assert (spent(lease.run), reserved(lease.run)) == ((0, Decimal(0), 0), (7, Decimal(0), 1))
    pay(lease, "1", 3)
    assert balances(lease.run)


def top_up(lease):
    request = HumanRequest(
        id=uuid7(), run_id=lease.run_id, path="2", kind="approval", tool=world.TOP_UP, arguments={"max_turns": 2}
    )
    world.open_top_up(lease, [Entry("request.opened", "@request.2.1", "budget")], request=request)


def test_of_many_that_ask_for_more_one_does():
    root = make_run(budget={"max_turns": 1, "when_exhausted": "ask"})
    leases = [leased(root), *(leased(child_of(root)) for _ in range(CALLERS - 1))]
    spend(leases[0], "1", 1, TODAY)

    def ask(lease):
        try:
            top_up(lease)
        except world.TooManyRequests:
            return False
        return True

    asked = at_once(*(partial(ask, lease) for lease in leases))
    assert sum(asked) == 1 == HumanRequest.objects.count()


def test_an_answer_while_others_spend_ends_without_a_deadlock():
    """The answer and each run that raises the limits lock the runs before the account, as everybody does."""
    root = make_run(budget={"max_turns": 8, "when_exhausted": "ask"})
    leases = [leased(root), *(leased(child_of(root)) for _ in range(7))]
    request = HumanRequest.objects.create(
        id=uuid7(), run=root, path="2", kind="approval", tool=world.TOP_UP, arguments={"max_turns": 1000}
    )
    BudgetAccount.objects.create(key=f"tree:{root.id}", max_turns=8)
    topups_made = []

    def answer():
        topups_made.append(world.answer_top_up(request, {"action": "approve"}, by=None))

    def work(lease):
        for number in range(20):
            while not spend(lease, str(number), 1, TODAY):
                world.pending_top_up(lease)

    at_once(answer, *(partial(work, lease) for lease in leases))
    assert len(topups_made) == 1
    assert balances(root)
    assert spent(root)[2] == 160


def test_a_limit_that_is_raised_is_not_asked_for():
    """Between a refusal and the request there may be an answer."""
    lease = leased(make_run(budget={"max_turns": 1, "when_exhausted": "ask"}))
    spend(lease, "1", 1, TODAY)
    BudgetAccount.objects.update(max_turns=2)
    with pytest.raises(world.TooManyRequests):
        top_up(lease)
    assert not HumanRequest.objects.exists()
