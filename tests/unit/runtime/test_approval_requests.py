"""What a request for an approval may be: of a call that could be made, with what its asker may give it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from ravi_django.kernel import ConflictError, InvalidInputError
from ravi_django.models import AuditRecord, HumanRequest, Status
from ravi_django.signals import request_closed
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import call, decisions, open_requests, payer, paying, results, run_of, user
from tests.support.runs import asked, code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann():
    return user("ann", is_staff=True)


@pytest.fixture
def done():
    return []


# ---------------------------------------------------------------------------------------------------------- caps


def test_nobody_is_asked_about_calls_that_the_runs_cap_refuses_anyway(clock, settings, ann, done):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 3}
    agent = payer(paying(done), [call(n, f"c{n}") for n in range(9)])

    run = drive(run_of())

    assert len(open_requests(run)) == 3
    refused = [kept for kept in decisions(run) if kept["decision"] == "denied"]
    assert len(refused) == 6
    assert refused[0]["reason"] == "the run's limit of 3 tool calls is reached; answer with what you have"
    for request in open_requests(run):
        world.answer(request, "approve", by=ann)
    run = drive(run, dies="end")
    told = results(agent)
    run = take_over(clock, run)
    assert (run.status, sorted(done), results(agent)) == (Status.COMPLETED, [0, 1, 2], told)
    assert HumanRequest.objects.filter(run=run).count() == 3
    assert "the run's limit of 3 tool calls is reached" in told["c8"]


def test_a_worker_that_dies_while_it_asks_does_not_ask_more_than_the_cap(clock, settings, ann, done):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 3}
    payer(paying(done), [call(n, f"c{n}") for n in range(9)])

    run = drive(run_of(), dies=4, written=True)
    run = take_over(clock, run)

    assert len(open_requests(run)) == HumanRequest.objects.filter(run=run).count() == 3


def test_what_is_open_since_an_earlier_lease_counts(clock, settings, ann, done):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1}

    async def later(ctx):
        await ctx.sleep_until(timedelta(seconds=60))
        return await ctx.approve("pay", {"amount": 2}, to="staff")

    async def story(ctx, inbox):
        first, second = await asyncio.gather(ctx.approve("pay", {"amount": 1}, to="staff"), later(ctx))
        return f"{first.decision}, {second.decision}: {second.reason}"

    code(story, tools=[paying(done)])
    run = drive(make_run())
    clock.advance(61)
    run = drive(run)
    world.answer(asked(run), "approve", by=ann)

    words = "the run's limit of 1 tool calls is reached; answer with what you have"
    assert drive(run).output == f"approved, denied: {words}"


def test_what_was_denied_leaves_its_place(settings, ann, done):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 2}
    payer(paying(done), [call(1), call(2, "c2")], [call(3, "c3"), call(4, "c4"), call(5, "c5")])
    run = drive(run_of())
    first, second = open_requests(run)
    world.answer(first, "deny", by=ann)
    world.answer(second, "approve", by=ann)

    run = drive(run)

    assert done == [2]
    assert [request.arguments["amount"] for request in open_requests(run)] == [3]


def test_the_tools_own_cap_counts_too(ann, done):
    payer(paying(done, max_calls=2), [call(n, f"c{n}") for n in range(4)])

    run = drive(run_of())

    assert len(open_requests(run)) == 2
    assert decisions(run)[0]["reason"] == "the run's limit of 2 calls of pay is reached; answer with what you have"


def test_what_is_no_tool_has_no_cap_of_calls(settings, ann):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1}

    async def story(ctx, inbox):
        return [(await ctx.approve("deploy", {"version": n}, to="staff")).decision for n in range(3)]

    code(story)
    run = drive(make_run())
    for _ in range(3):
        world.answer(asked(run), "approve", by=ann)
        run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, '["approved","approved","approved"]')


# ----------------------------------------------------------------------------------------- what its asker gives


@pytest.mark.parametrize(
    ("options", "field"),
    [({"description": 5}, "description"), ({"schema": [1]}, "schema"), ({"schema": {"x": object()}}, "schema")],
)
def test_what_is_no_description_or_schema_is_named(ann, options, field):
    found = []

    async def story(ctx, inbox):
        try:
            await ctx.approve("pay", {}, to="staff", **options)
        except InvalidInputError as error:
            found.append(error.field)

    code(story)

    assert (drive(make_run()).status, found) == (Status.COMPLETED, [field])


def test_no_description_is_an_empty_one(ann):
    async def story(ctx, inbox):
        return (await ctx.approve("pay", {}, to="staff", description=None)).decision

    code(story)

    assert asked(drive(make_run())).details["description"] == ""


@pytest.mark.parametrize("schema", [{"type": 5}, {"$ref": "https://example.com/other.json"}])
def test_a_schema_that_is_none_is_left_out_and_the_person_may_edit(ann, caplog, schema):
    async def story(ctx, inbox):
        return str((await ctx.approve("pay", {"amount": 5}, to="staff", schema=schema)).arguments)

    code(story)
    with caplog.at_level(logging.WARNING, "ravi.approvals"):
        run = drive(make_run())
    request = asked(run)

    assert "schema" not in request.details
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["approval.schema_dropped"]
    world.answer(request, "edit", arguments={"amount": 4}, by=ann)
    assert drive(run).output == "{'amount': 4}"


# --------------------------------------------------------------------------------------- the code goes on without


def test_a_call_that_no_longer_fits_closes_its_request(clock, ann, done):
    closed = []

    def told(sender, request, **more):
        closed.append((request.id, request.status))

    payer(paying(done), [call(5), call(6, "c2", to="ACME")])
    run = drive(run_of())
    first, second = open_requests(run)

    def pay(amount: int) -> str:
        """Pay somebody."""
        done.append(amount)
        return f"paid {amount}"

    from ravi_django import tool

    agent = payer(tool(risk="high", effect="idempotent")(pay), [call(5), call(6, "c2", to="ACME")])
    request_closed.connect(told)
    world.answer(first, "approve", by=ann)
    run = drive(run)

    assert (run.status, done) == (Status.COMPLETED, [5])
    second.refresh_from_db()
    assert (second.status, second.version) == ("cancelled", 2)
    assert closed == [(second.id, "cancelled")]
    audit = AuditRecord.objects.get(run_id=run.id, event="request", name="cancelled")
    assert (audit.detail["request"], "goes on without it" in audit.detail["reason"]) == (str(second.id), True)
    assert [row.result["id"] for row in journal_of(run) if row.kind == "request.closed"] == [str(second.id)]
    assert "to" in results(agent)["c2"]
    with pytest.raises(ConflictError):
        world.answer(second, "approve", by=ann)


@pytest.mark.parametrize("answers", [False, True])
def test_a_worker_that_dies_over_it_closes_it_once(clock, ann, done, answers):
    payer(paying(done), call(5, to="ACME"))
    run = drive(run_of())
    request = asked(run)

    def pay(amount: int) -> str:
        """Pay somebody."""
        raise AssertionError

    from ravi_django import tool

    payer(tool(risk="high", effect="idempotent")(pay), call(5, to="ACME"))
    if answers:
        world.answer(request, "approve", by=ann)
    else:
        from tests.support.world import touching_touch

        touching_touch([run.id])
    run = drive(run, dies=1, written=True)
    run = take_over(clock, run, dies=1)
    run = take_over(clock, run)

    request.refresh_from_db()
    assert (run.status, done) == (Status.COMPLETED, [])
    assert request.status == ("answered" if answers else "cancelled")
    assert AuditRecord.objects.filter(run_id=run.id, name="cancelled").count() == (0 if answers else 1)
    assert len([row for row in journal_of(run) if row.kind == "request.closed"]) == 1
