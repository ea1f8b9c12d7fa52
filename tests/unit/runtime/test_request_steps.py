"""The steps of a request: whoever it is that asks, the first that means somebody is asked first, and in its time."""

import logging
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import tool
from ravi_django.kernel import HumanInput, PauseForInputResult
from ravi_django.models import HumanRequest, JournalEntry, Status
from tests.support import world
from tests.support.approvals import user
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling
from tests.support.world import AskHumanTool, in_utc

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600
CHAIN = [("group:finance", HOUR), ("group:directors", 2 * HOUR), ("group:board", HOUR)]


@pytest.fixture
def dan():
    return user("dan", "directors")


@tool(risk="high", effect="at_most_once", approval="never", timeout=600)
def pay(amount: int) -> str:
    """Pay somebody."""
    return "paid"


@tool
def order(answer: HumanInput | None = None) -> str | PauseForInputResult:
    """Ask how many."""
    return answer.text if answer else PauseForInputResult(request="How many?", to=CHAIN)


def question(clock):
    async def story(ctx, inbox):
        return (await ctx.ask_human("May I?", to=CHAIN))["action"]

    code(story)
    return drive(make_run())


def wanted(clock):
    code(calling("order"), tools=[order])
    return drive(make_run())


def uncertain(clock):
    code(calling("pay", amount=5), tools=[pay])
    run = drive(make_run(), dies=2)
    assert JournalEntry.objects.get(run=run, kind="tool.call").phase == "started"
    return take_over(clock, run)


@pytest.mark.parametrize("make", [question, wanted, uncertain])
def test_a_step_that_means_nobody_is_passed_over_at_once(clock, settings, dan, make):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"uncertain": CHAIN}}

    run = make(clock)

    request = HumanRequest.objects.get(run=run)
    assert (request.to, request.level) == ("group:directors", 1)
    begins = max(request.created_at, request.not_before or request.created_at)
    assert request.escalates_at == pytest.approx(begins + timedelta(hours=2), abs=timedelta(seconds=1))
    if make is not uncertain:
        assert request.expires_at == pytest.approx(begins + timedelta(hours=3), abs=timedelta(seconds=1))
    announced = JournalEntry.objects.get(run=run, kind="request.opened")
    assert announced.result["to"] == "group:directors"
    assert announced.result["expires_at"] == in_utc(request.expires_at)
    clock.advance(HOUR)
    world.answer(request, **({"action": "resolve", "outcome": "fail"} if make is uncertain else {"text": "2"}), by=dan)


@pytest.mark.parametrize("make", [question, wanted, uncertain])
def test_where_nobody_is_meant_the_first_step_stays_and_it_is_logged(clock, settings, caplog, make):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"uncertain": CHAIN}}

    with caplog.at_level(logging.WARNING, "ravi.requests"):
        run = make(clock)

    request = HumanRequest.objects.get(run=run)
    assert (request.to, request.level, run.status) == ("group:finance", 0, Status.SUSPENDED)
    told = [record.action for record in caplog.records if record.name == "ravi.requests"]
    assert told == ["request.nobody"]


def test_a_single_step_is_not_looked_at(clock, monkeypatch):
    looked, users_at = [], world.users_at
    world.patch(monkeypatch, "users_at", lambda *args: (looked.append(args), users_at(*args))[1])

    async def story(ctx, inbox):
        return (await ctx.ask_human("May I?", to="group:finance"))["action"]

    code(story)

    assert (HumanRequest.objects.get(run=drive(make_run())).to, looked) == ("group:finance", [])


def test_a_question_to_several_costs_one_look_in_any_number_of_steps_that_are_somebody(dan):
    request = world.requests_new(
        make_run(), "p", HumanRequest.Kind.QUESTION, present=dan.date_joined, to=None, text="?", expires=False
    )
    request.steps = [{"to": "group:directors", "within": HOUR}, {"to": "staff", "within": None}]
    with CaptureQueriesContext(connection) as captured:
        assert world.place_first(request, dan.date_joined)
    assert len(captured) == 1


def test_the_steps_begin_when_it_may_be_decided_also_when_it_is_asked_again(clock, settings, dan):
    user("fin", "finance")
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"uncertain": [("group:finance", 60), "group:directors"]}}

    request = HumanRequest.objects.get(run=uncertain(clock))

    assert request.not_before > clock.now
    assert (request.to, request.escalates_at) == ("group:finance", request.not_before + timedelta(seconds=60))
    world.begin_anew(request, request.not_before - timedelta(seconds=1))
    assert request.escalates_at == request.not_before + timedelta(seconds=60)
    later = request.not_before + timedelta(seconds=900)
    world.begin_anew(request, later)
    assert request.escalates_at == later + timedelta(seconds=60)


@tool
def plain(answer: HumanInput | None = None) -> str | PauseForInputResult:
    """Ask how many."""
    return answer.text if answer else PauseForInputResult(request="How many?")


@pytest.mark.parametrize(
    ("kind", "by_tool", "to"),
    [
        ("uncertain", {"pay": "group:finance"}, "group:finance"),
        ("uncertain", {"other": "group:finance"}, "staff"),
        ("uncertain", {"*": "group:finance"}, "group:finance"),
        ("input", {"plain": "group:shop"}, "group:shop"),
        ("question", {"ask_human": "group:shop", "*": "staff"}, "group:shop"),
    ],
)
def test_the_site_names_people_by_tool_for_every_kind(clock, settings, kind, by_tool, to):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {kind: by_tool}}
    calls = {"input": calling("plain"), "question": calling("ask_human", question="How many?")}
    if kind in calls:
        code(calls[kind], tools=[plain, AskHumanTool()])
    run = uncertain(clock) if kind == "uncertain" else drive(make_run())

    assert HumanRequest.objects.get(run=run).to == to, run.error
