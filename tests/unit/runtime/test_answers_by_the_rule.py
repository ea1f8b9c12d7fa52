"""What a person's answer is held to beside its form: the site's rule on their own arguments; and what it costs."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.kernel import ForbiddenError, InvalidInputError
from ravi_django.models import Delegation, HumanRequest
from tests.support import world
from tests.support.approvals import payer, paying, run_of, user
from tests.support.budgets import USER, account, model
from tests.support.runs import asked, code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def limited(settings):
    """Up to 500 anybody, more than that nobody but the boss."""
    seen = []

    def may_answer(one, request):
        seen.append((one.username, request.arguments))
        most = max(value for value in (request.arguments or {}).values() if isinstance(value, int))
        return most <= 500 or one.username == "boss"

    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": may_answer}
    return seen


def test_the_sites_rule_is_asked_about_the_persons_own_arguments(ann, ran, limited):
    boss = user("boss", is_staff=True)
    payer(paying(ran))
    request = asked(drive(run_of()))

    with pytest.raises(ForbiddenError, match="not yours to answer with these arguments"):
        world.answer(request, "edit", arguments={"amount": 1_000_000}, by=ann)

    assert HumanRequest.objects.get().status == "pending"
    world.answer(request, "edit", arguments={"amount": 600}, by=boss)
    assert HumanRequest.objects.get().arguments == {"amount": 5}
    drive(request.run)
    assert ran == [600]


def test_and_about_the_one_in_whose_place_they_answer(ann, ran, limited):
    boss = user("boss")
    Delegation.objects.create(user=ann, delegate=boss)
    payer(paying(ran), approvers="user:ann")
    request = asked(drive(run_of()))

    with pytest.raises(ForbiddenError):
        world.answer(request, "edit", arguments={"amount": 501}, by=boss)
    world.answer(request, "edit", arguments={"amount": 500}, by=boss)

    assert {one for one, arguments in limited if arguments == {"amount": 500}} == {"ann", "boss"}


def test_the_rule_changes_nothing_of_what_is_kept(ann, ran, settings):
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda one, request: bool(request.arguments.clear()) or True}
    payer(paying(ran))
    request = asked(drive(run_of()))

    world.answer(request, "edit", arguments={"amount": 9}, by=ann)

    assert HumanRequest.objects.get().answer["arguments"] == {"amount": 9}


async def thrice(ctx, inbox):
    for _ in range(3):
        await ctx.llm([USER])


@pytest.fixture
def top_up():
    code(thrice, model=model(10, 0.5))
    return asked(drive(make_run(budget={"max_turns": 2, "when_exhausted": "ask"})))


@pytest.mark.parametrize("action", ["edit", "approve"])
def test_a_budgets_limits_are_arguments_too(ann, limited, top_up, action):
    with pytest.raises(ForbiddenError):
        world.answer(top_up, action, arguments={"max_turns": 501}, by=ann)

    assert account(top_up.run).max_turns == 2
    world.answer(top_up, action, arguments={"max_turns": 500}, by=ann)
    assert account(top_up.run).max_turns == 500


def test_more_budget_does_not_stand_for_a_session(ann, top_up):
    for action in ("approve", "deny"):
        with pytest.raises(InvalidInputError, match="each time") as found:
            world.answer(top_up, action, sticky=True, by=ann)
        assert found.value.field == "sticky"

    assert HumanRequest.objects.get().status == "pending"


# ----------------------------------------------------------------------------------------- the run's wake-up


@pytest.fixture
def followed(monkeypatch):
    """The wake-ups that follow a commit."""
    made = []
    wake_silent = world.wake_silent

    def counted(run_id):
        made.append(run_id)
        return wake_silent(run_id)

    world.patch(monkeypatch, "wake_silent", counted)
    return made


def test_an_answer_that_has_woken_its_run_wakes_it_no_second_time(ann, ran, followed):
    payer(paying(ran))
    request = asked(drive(run_of()))

    with CaptureQueriesContext(connection) as queries:
        world.answer(request, "approve", by=ann)

    request.run.refresh_from_db()
    assert (request.run.status, followed) == ("pending", [])
    assert not [query for query in queries if "ravi_signal" in query["sql"]]


def test_inside_a_callers_transaction_the_wake_up_follows_it(ann, ran, followed):
    payer(paying(ran))
    request = asked(drive(run_of()))

    with transaction.atomic():
        world.answer(request, "approve", by=ann)
        request.run.refresh_from_db()
        assert (request.run.status, followed) == ("suspended", [])

    request.run.refresh_from_db()
    assert (request.run.status, followed) == ("pending", [request.run_id])
