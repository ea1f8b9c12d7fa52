"""What a request for an approval may be: of a call that could be made, with what its asker may give it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from ravi_django import tool
from ravi_django.kernel import ConflictError
from ravi_django.models import AuditRecord, HumanRequest, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import call, decisions, open_requests, payer, paying, results, run_of
from tests.support.runs import asked, code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


# ---------------------------------------------------------------------------------------------------------- caps


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


# --------------------------------------------------------------------------------------- the code goes on without


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
    assert (audit.detail["request"], "goes on without it" in audit.detail["reason"]) == (str(second.id), True)
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
