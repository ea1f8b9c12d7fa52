"""What a request for an approval may be: of a call that could be made, with what its asker may give it. What an answer
is held to beside its form: the site's rule on a person's own arguments; and what it costs."""

import asyncio
import logging
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import tool
from ravi_django.kernel import ConflictError, ForbiddenError
from ravi_django.models import AuditRecord, HumanRequest, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import call, decisions, open_requests, payer, paying, results, run_of, user
from tests.support.budgets import USER, account, model
from tests.support.runs import asked, code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


def test_nobody_is_asked_about_calls_that_the_runs_cap_refuses_anyway(clock, settings, ann, ran):
    """Also by the next worker, when the first dies while it asks, or at the end."""
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 3}
    agent = payer(paying(ran), [call(n, f"c{n}") for n in range(9)])
    words = "the run's limit of 3 tool calls is reached; answer with what you have"

    run = take_over(clock, drive(run_of(), dies=4, written=True))
    assert len(open_requests(run)) == 3
    refused = [kept for kept in decisions(run) if kept["decision"] == "denied"]
    assert (len(refused), refused[0]["reason"]) == (6, words)
    for request in open_requests(run):
        world.answer(request, "approve", by=ann)
    run = drive(run, dies="end")
    told = results(agent)
    run = take_over(clock, run)
    assert (run.status, sorted(ran), results(agent)) == (Status.COMPLETED, [0, 1, 2], told)
    assert HumanRequest.objects.filter(run=run).count() == 3
    assert words in told["c8"]


def test_what_is_open_since_an_earlier_lease_counts(clock, settings, ann, ran):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1}

    async def later(ctx):
        await ctx.sleep_until(timedelta(seconds=60))
        return await ctx.approve("pay", {"amount": 2}, to="staff")

    async def story(ctx, inbox):
        first, second = await asyncio.gather(ctx.approve("pay", {"amount": 1}, to="staff"), later(ctx))
        return f"{first.decision}, {second.decision}: {second.reason}"

    code(story, tools=[paying(ran)])
    run = drive(make_run())
    clock.advance(61)
    run = drive(run)
    world.answer(asked(run), "approve", by=ann)

    words = "the run's limit of 1 tool calls is reached; answer with what you have"
    assert drive(run).output == f"approved, denied: {words}"


def test_what_was_denied_leaves_its_place(settings, ann, ran):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 2}
    payer(paying(ran), [call(1), call(2, "c2")], [call(3, "c3"), call(4, "c4"), call(5, "c5")])
    run = drive(run_of())
    first, second = open_requests(run)
    world.answer(first, "deny", by=ann)
    world.answer(second, "approve", by=ann)
    run = drive(run)
    assert ran == [2]
    assert [request.arguments["amount"] for request in open_requests(run)] == [3]


def test_the_tools_own_cap_counts_too(ann, ran):
    payer(paying(ran, max_calls=2), [call(n, f"c{n}") for n in range(4)])
    run = drive(run_of())
    assert len(open_requests(run)) == 2
    assert decisions(run)[0]["reason"] == "the run's limit of 2 calls of pay is reached; answer with what you have"


def test_what_is_no_tool_has_no_cap_of_calls_and_may_lack_a_description_and_a_schema(settings, ann, caplog):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1}
    schemas = [None, {"type": 5}, {"$ref": "https://example.com/other.json"}]

    async def story(ctx, inbox):
        given = {"to": "staff", "description": None}
        return [(await ctx.approve("deploy", {"n": 5}, schema=one, **given)).arguments for one in schemas]

    code(story)
    with caplog.at_level(logging.WARNING, "ravi.approvals"):
        run = drive(make_run())
        for _ in schemas:
            request = asked(run)
            assert (request.details["description"], "schema" in request.details) == ("", False)
            world.answer(request, "edit", arguments={"n": 4}, by=ann)
            run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, '[{"n":4},{"n":4},{"n":4}]')
    dropped = [record.action for record in caplog.records if hasattr(record, "action")]
    assert set(dropped) == {"approval.schema_dropped"} and len(dropped) >= 2


def without_to(ran):
    """The tool `pay` of the next release."""

    @tool(risk="high", effect="idempotent")
    def pay(amount: int) -> str:
        """Pay somebody."""
        ran.append(amount)
        return f"paid {amount}"

    return pay


def test_a_call_that_no_longer_fits_closes_its_request(clock, ann, ran):
    payer(paying(ran), [call(5), call(6, "c2", to="ACME")])
    run = drive(run_of())
    first, second = open_requests(run)
    agent = payer(without_to(ran), [call(5), call(6, "c2", to="ACME")])
    world.answer(first, "approve", by=ann)
    run = drive(run)

    assert (run.status, ran) == (Status.COMPLETED, [5])
    second.refresh_from_db()
    assert (second.status, second.version) == ("cancelled", 2)
    audit = AuditRecord.objects.get(run_id=run.id, event="request", name="cancelled")
    assert (audit.detail["request"], "continued without an answer" in audit.detail["reason"]) == (str(second.id), True)
    assert [row.result["id"] for row in journal_of(run) if row.kind == "request.closed"] == [str(second.id)]
    assert "to" in results(agent)["c2"]
    with pytest.raises(ConflictError):
        world.answer(second, "approve", by=ann)


@pytest.mark.parametrize("answers", [False, True])
def test_a_worker_that_dies_over_it_closes_it_once(clock, ann, ran, answers):
    def story(drive_to_death):
        payer(paying(ran), call(5, to="ACME"))
        run = drive(run_of())
        payer(without_to(ran), call(5, to="ACME"))
        if answers:
            world.answer(asked(run), "approve", by=ann)
        else:
            world.touch([run.id])
        return drive_to_death(run)

    for run, _ in every_death(clock, story):
        assert (run.status, ran) == (Status.COMPLETED, [])
        assert HumanRequest.objects.get(run=run).status == ("answered" if answers else "cancelled")
        assert AuditRecord.objects.filter(run_id=run.id, name="cancelled").count() == (0 if answers else 1)
        assert len([row for row in journal_of(run) if row.kind == "request.closed"]) == 1


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
    with pytest.raises(ForbiddenError, match="with these arguments"):
        world.answer(request, "edit", arguments={"amount": 1_000_000}, by=ann)
    assert HumanRequest.objects.get().status == "pending"
    world.answer(request, "edit", arguments={"amount": 600}, by=boss)
    assert HumanRequest.objects.get().arguments == {"amount": 5}
    drive(request.run)
    assert ran == [600]


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


def test_a_budgets_limits_are_arguments_too(ann, limited, top_up):
    with pytest.raises(ForbiddenError):
        world.answer(top_up, "edit", arguments={"max_turns": 501}, by=ann)
    assert account(top_up.run).max_turns == 2
    world.answer(top_up, "edit", arguments={"max_turns": 500}, by=ann)
    drive(top_up.run)
    assert account(top_up.run).max_turns == 500


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
