"""What an approval is good for: one call. In a fork it counts with the call that was made by it, else not at all."""

from __future__ import annotations

import pytest

from ravi_django import register, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.approvals import call, open_requests, payer, paying, results, run_of, user
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.world import fork

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann():
    return user("ann", is_staff=True)


@pytest.fixture
def done():
    return []


@tool
def lookup() -> str:
    """Look something up."""
    return "found"


def answered(run, action="approve", **more):
    """All that is asked, until the run has ended."""
    for _ in range(9):
        run = drive(run)
        for request in open_requests(run):
            world.answer(request, action, **more)
        if run.status != Status.SUSPENDED:
            return run
    raise AssertionError(run.status)


def last_of(run, name, kind="tool.call"):
    return [row.seq for row in journal_of(run) if (row.kind, row.name, row.phase) == (kind, name, "result")][-1]


# --------------------------------------------------------------------------------------------------------- forks


def test_a_call_in_between_does_not_make_it_the_forks_own(ann, done):
    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        await ctx.tool("lookup")
        if decision.allows:
            await ctx.tool("pay", amount=5)
        return f"{decision.decision}: {decision.reason}"

    code(story, tools=[paying(done), lookup])
    run = answered(make_run(), by=ann)
    assert (run.status, done) == (Status.COMPLETED, [5])

    forked = drive(fork(run.id, after_seq=last_of(run, "lookup")))

    assert (forked.status, done) == (Status.COMPLETED, [5])
    assert forked.output == "denied: it was approved for the run that this one was forked from"
    behind = drive(fork(run.id, after_seq=last_of(run, "pay")))
    assert (behind.status, behind.output, done) == (Status.COMPLETED, "approved: ", [5])


@pytest.mark.parametrize("amounts", [(5, 5), (5, 6)])
def test_each_counts_with_its_own_call(ann, done, amounts):
    async def story(ctx, inbox):
        told = [await ctx.approve("pay", {"amount": amount}, to="staff") for amount in amounts]
        for decision, amount in zip(told, amounts, strict=True):
            if decision.allows:
                await ctx.tool("pay", amount=amount)
        return " ".join(decision.decision for decision in told)

    code(story, tools=[paying(done)])
    run = answered(make_run(), by=ann)
    assert done == [*amounts]
    first = next(row.seq for row in journal_of(run) if row.kind == "tool.call")

    forked = drive(fork(run.id, after_seq=first))

    assert (forked.status, forked.output, done) == (Status.COMPLETED, "approved denied", [*amounts])


def test_the_call_that_was_made_first_counts_with_its_own_approval(ann, done):
    async def story(ctx, inbox):
        told = {amount: await ctx.approve("pay", {"amount": amount}, to="staff") for amount in (5, 6)}
        for amount in (6, 5):
            if told[amount].allows:
                await ctx.tool("pay", amount=amount)
        return " ".join(decision.decision for decision in told.values())

    code(story, tools=[paying(done)])
    run = answered(make_run(), by=ann)
    assert done == [6, 5]
    first = next(row.seq for row in journal_of(run) if row.kind == "tool.call")

    forked = drive(fork(run.id, after_seq=first))

    assert (forked.status, forked.output, done) == (Status.COMPLETED, "denied approved", [6, 5])


def test_the_forks_own_call_does_not_make_it_count(clock, ann, done):
    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        await ctx.tool("lookup")
        if not decision.allows:
            decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        if decision.allows:
            await ctx.tool("pay", amount=5)
        return decision.by

    code(story, tools=[paying(done), lookup])
    run = answered(make_run(), by=ann)
    forked = drive(fork(run.id, after_seq=last_of(run, "lookup")))
    world.answer(asked(forked), "approve", by=user("bob", is_staff=True))

    forked = take_over(clock, drive(forked, dies="end"))

    assert (forked.status, forked.output, done) == (Status.COMPLETED, "bob", [5, 5])


def test_a_call_elsewhere_in_the_code_counts_too(ann, done):
    async def story(ctx, inbox):
        with ctx.scope("gate"):
            decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        with ctx.scope("work"):
            if decision.allows:
                await ctx.tool("pay", amount=5)
        await ctx.tool("lookup")
        return decision.decision

    code(story, tools=[paying(done), lookup])
    run = answered(make_run(), by=ann)

    forked = drive(fork(run.id, after_seq=last_of(run, "lookup")))

    assert (forked.status, forked.output, done) == (Status.COMPLETED, "approved", [5])


def test_an_edit_counts_with_the_call_that_it_made(ann, done):
    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, to="staff", schema=None)
        await ctx.tool("lookup")
        if decision.allows:
            await ctx.tool("pay", **(decision.arguments or {}))
        return decision.decision

    code(story, tools=[paying(done), lookup])
    run = answered(make_run(), "edit", arguments={"amount": 4}, by=ann)
    assert done == [4]

    assert drive(fork(run.id, after_seq=last_of(run, "lookup"))).output == "denied"
    assert drive(fork(run.id, after_seq=last_of(run, "pay"))).output == "modified"
    assert done == [4]


def test_an_edit_to_a_riskier_call_counts_with_the_approval_of_that(ann, done):
    agent = payer(paying(done, risk=lambda a: "critical" if a["amount"] > 100 else "high"), call(5))
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 500}, by=ann)
    run = drive(run)
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)
    assert (run.status, done) == (Status.COMPLETED, [500])

    forked = drive(fork(run.id, after_seq=last_of(run, "pay")))

    assert (forked.status, done) == (Status.COMPLETED, [500])
    assert results(agent)["c1"].endswith("paid 500 to ACME")


def test_of_parallel_calls_those_that_were_made_are_shared(ann, done):
    """Wherever the fork begins: it ends, and no call that a person approved for the source is made again."""
    payer(paying(done), [call(5), call(5, "c2"), call(6, "c3")])
    run = answered(run_of(), by=ann)
    assert sorted(done) == [5, 5, 6]
    seqs = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True))

    for seq in seqs[:-1]:
        forked = drive(fork(run.id, after_seq=seq))
        if forked.status == Status.SUSPENDED:
            forked = answered_open(forked, ann)
        assert (forked.status, sorted(done)) == (Status.COMPLETED, [5, 5, 6]), seq


def answered_open(run, ann):
    for request in open_requests(run):
        world.answer(request, "deny", by=ann)
    return drive(run)


def test_a_delegation_counts_with_the_child_that_was_begun(ann):
    child = ReActAgent("writer", model=ScriptedModel(["written"]))
    task = ToolUseBlock(tool_name="handoff_writer", arguments={"task": "write"}, call_id="h1")
    model = ScriptedModel([task, "done", "done", "done"])
    boss = OrchestratorAgent(
        "boss", model=model, sub_agents=[SubAgentConfig(child)], approval_required_risk="safe", approvers="staff"
    )
    register(boss)
    register(child)
    run = run_of(boss.id)
    run_until_idle()
    (request,) = open_requests(run)
    world.answer(request, "approve", by=ann)
    run_until_idle()
    begun, approved = last_of(run, "react/writer", "child.spawned"), last_of(run, "handoff_writer", "approval")

    ends = []
    for seq in (approved, begun, last_of(run, "react/writer", "ask"), last_of(run, "scripted", "llm.call")):
        forked = fork(run.id, after_seq=seq)
        run_until_idle()
        forked.refresh_from_db()
        ends.append((forked.fork_seq, str(forked.status)))

    assert dict(ends)[approved] == "completed"
    assert {status for _, status in ends} == {"completed"}, ends
    assert len(child.model.calls) == 1


# ---------------------------------------------------------------------------------------------------------- risk


def test_calls_that_are_settled_may_become_riskier(ann, done):
    payer(paying(done), call(5), call(6, "c2"), call(7, "c3"))
    run = drive(run_of())
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)
    world.answer(asked(run), "deny", by=ann)
    run = drive(run)
    asked(run)

    riskier = paying(done, risk=lambda arguments: "high" if arguments["amount"] == 7 else "critical")
    payer(riskier, call(5), call(6, "c2"), call(7, "c3"))
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)

    assert (run.status, run.error, done) == (Status.COMPLETED, None, [5, 7])


def test_a_rule_that_fails_for_a_while_does_not_end_a_run_over_a_denial(ann, done):
    fails = []

    def risk(arguments):
        if fails:
            raise OSError("the directory is down")
        return "high"

    payer(paying(done, risk=risk), call(5))
    run = drive(run_of())
    world.answer(asked(run), "deny", by=ann)
    fails.append(1)

    run = drive(run)

    assert (run.status, done) == (Status.COMPLETED, [])


@pytest.mark.parametrize("answers", [False, True])
def test_one_that_is_open_or_approved_and_not_made_is_still_blocked(ann, done, answers):
    payer(paying(done), [call(5), call(6, "c2")])
    run = drive(run_of())
    first, second = open_requests(run)
    world.answer(first, "deny", by=ann)
    if answers:
        world.answer(second, "approve", by=ann)

    payer(paying(done, risk="critical"), [call(5), call(6, "c2")])
    run = drive(run)

    assert (run.status, run.error["type"], done) == (Status.BLOCKED, "DeterminismError", [])


def test_one_that_was_edited_and_asked_about_again_is_settled(ann, done):
    step = {"now": "high"}

    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, risk=step["now"], to="staff")
        if decision.decision == "modified":
            decision = await ctx.approve("pay", decision.arguments, risk="critical", to="staff")
        return decision.decision

    code(story, tools=[paying(done)])
    run = drive(make_run())
    world.answer(asked(run), "edit", arguments={"amount": 500}, by=ann)
    run = drive(run)
    world.answer(asked(run), "deny", by=ann)
    step["now"] = "critical"

    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "denied")
