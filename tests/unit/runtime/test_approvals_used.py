"""What an approval is good for: one call. In a fork it counts with the call that was made by it, else not at all."""

import pytest

from ravi_django import register, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.approvals import call, open_requests, payer, paying, results, run_of, user
from tests.support.runs import asked, code, drive, idle, make_run, take_over
from tests.support.world import fork

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_a_call_in_between_or_elsewhere_in_the_code_does_not_make_it_the_forks_own(ann, ran):
    async def story(ctx, inbox):
        with ctx.scope("gate"):
            decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        await ctx.tool("lookup")
        with ctx.scope("work"):
            if decision.allows:
                await ctx.tool("pay", amount=5)
        return f"{decision.decision}: {decision.reason}"

    code(story, tools=[paying(ran), lookup])
    run = answered(make_run(), by=ann)
    assert (run.status, ran) == (Status.COMPLETED, [5])

    forked = drive(fork(run.id, after_seq=last_of(run, "lookup")))
    assert (forked.status, ran) == (Status.COMPLETED, [5])
    assert forked.output == "denied: it was approved for the run that this one was forked from"
    behind = drive(fork(run.id, after_seq=last_of(run, "pay")))
    assert (behind.status, behind.output, ran) == (Status.COMPLETED, "approved: ", [5])


@pytest.mark.parametrize(
    ("amounts", "made", "told"),
    [((5, 5), (0, 1), "approved denied"), ((5, 6), (0, 1), "approved denied"), ((5, 6), (1, 0), "denied approved")],
)
def test_each_counts_with_its_own_call(ann, ran, amounts, made, told):
    async def story(ctx, inbox):
        decisions = [await ctx.approve("pay", {"amount": amount}, to="staff") for amount in amounts]
        for place in made:
            if decisions[place].allows:
                await ctx.tool("pay", amount=amounts[place])
        return " ".join(decision.decision for decision in decisions)

    code(story, tools=[paying(ran)])
    run = answered(make_run(), by=ann)
    assert ran == [amounts[place] for place in made]
    first = next(row.seq for row in journal_of(run) if row.kind == "tool.call")

    forked = drive(fork(run.id, after_seq=first))
    assert (forked.status, forked.output, len(ran)) == (Status.COMPLETED, told, 2)


def test_the_forks_own_call_does_not_make_it_count(clock, ann, ran):
    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        await ctx.tool("lookup")
        if not decision.allows:
            decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        if decision.allows:
            await ctx.tool("pay", amount=5)
        return decision.by

    code(story, tools=[paying(ran), lookup])
    run = answered(make_run(), by=ann)
    forked = drive(fork(run.id, after_seq=last_of(run, "lookup")))
    world.answer(asked(forked), "approve", by=user("bob", is_staff=True))

    forked = take_over(clock, drive(forked, dies="end"))
    assert (forked.status, forked.output, ran) == (Status.COMPLETED, "bob", [5, 5])


def test_an_edit_counts_with_the_call_that_it_made(ann, ran):
    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, to="staff", schema=None)
        await ctx.tool("lookup")
        if decision.allows:
            await ctx.tool("pay", **(decision.arguments or {}))
        return decision.decision

    code(story, tools=[paying(ran), lookup])
    run = answered(make_run(), "edit", arguments={"amount": 4}, by=ann)
    assert ran == [4]

    assert drive(fork(run.id, after_seq=last_of(run, "lookup"))).output == "denied"
    assert drive(fork(run.id, after_seq=last_of(run, "pay"))).output == "modified"
    assert ran == [4]


def test_an_edit_to_a_riskier_call_counts_with_the_approval_of_that(ann, ran):
    agent = payer(paying(ran, risk=lambda a: "critical" if a["amount"] > 100 else "high"), call(5))
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 500}, by=ann)
    run = drive(run)
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)
    assert (run.status, ran) == (Status.COMPLETED, [500])
    forked = drive(fork(run.id, after_seq=last_of(run, "pay")))
    assert (forked.status, ran) == (Status.COMPLETED, [500])
    assert results(agent)["c1"].endswith("paid 500 to ACME")


def test_of_parallel_calls_those_that_were_made_are_shared(ann, ran):
    """Wherever the fork begins: it ends, and no call that a person approved for the source is made again."""
    payer(paying(ran), [call(5), call(5, "c2"), call(6, "c3")])
    run = answered(run_of(), by=ann)
    assert sorted(ran) == [5, 5, 6]
    seqs = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True))

    for seq in seqs[:-1]:
        forked = drive(fork(run.id, after_seq=seq))
        while forked.status == Status.SUSPENDED:
            for request in open_requests(forked):
                world.answer(request, "deny", by=ann)
            forked = drive(forked)
        assert (forked.status, sorted(ran)) == (Status.COMPLETED, [5, 5, 6]), seq


def test_a_delegation_counts_with_the_child_that_was_begun(ann):
    child = ReActAgent("writer", model=ScriptedModel(["written"]))
    task = ToolUseBlock(tool_name="handoff_writer", arguments={"task": "write"}, call_id="h1")
    model = ScriptedModel([task, "done", "done", "done"])
    team, asks = [SubAgentConfig(child)], {"approval_required_risk": "safe", "approvers": "staff"}
    boss = register(OrchestratorAgent("boss", model=model, sub_agents=team, **asks))
    register(child)
    run = run_of(boss.id)
    run_until_idle()
    (request,) = open_requests(run)
    world.answer(request, "approve", by=ann)
    run_until_idle()
    begun, approved = last_of(run, "react/writer", "child.spawned"), last_of(run, "handoff_writer", "approval")

    ends = []
    for seq in (approved, begun, last_of(run, "react/writer", "ask"), last_of(run, "scripted", "llm.call")):
        forked = idle(fork(run.id, after_seq=seq))
        ends.append((forked.fork_seq, str(forked.status)))

    assert dict(ends)[approved] == "completed"
    assert {status for _, status in ends} == {"completed"}, ends
    assert len(child.model.calls) == 1


def test_calls_that_are_settled_may_become_riskier(ann, ran):
    payer(paying(ran), call(5), call(6, "c2"), call(7, "c3"))
    run = drive(run_of())
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)
    world.answer(asked(run), "deny", by=ann)
    run = drive(run)
    asked(run)

    def risk(arguments):
        if arguments["amount"] == 6:
            raise OSError("the directory is down")
        return "high" if arguments["amount"] == 7 else "critical"

    payer(paying(ran, risk=risk), call(5), call(6, "c2"), call(7, "c3"))
    world.answer(asked(run), "approve", by=ann)
    run = drive(run)

    assert (run.status, run.error, ran) == (Status.COMPLETED, None, [5, 7])


@pytest.mark.parametrize("answers", [False, True])
def test_one_that_is_open_or_approved_and_not_made_is_still_blocked(ann, ran, answers):
    payer(paying(ran), [call(5), call(6, "c2")])
    run = drive(run_of())
    first, second = open_requests(run)
    world.answer(first, "deny", by=ann)
    if answers:
        world.answer(second, "approve", by=ann)
    payer(paying(ran, risk="critical"), [call(5), call(6, "c2")])
    run = drive(run)
    assert (run.status, run.error["type"], ran) == (Status.BLOCKED, "DeterminismError", [])


def test_one_that_was_edited_and_asked_about_again_is_settled(ann, ran):
    step = {"now": "high"}

    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": 5}, risk=step["now"], to="staff")
        if decision.decision == "modified":
            decision = await ctx.approve("pay", decision.arguments, risk="critical", to="staff")
        return decision.decision

    code(story, tools=[paying(ran)])
    run = drive(make_run())
    world.answer(asked(run), "edit", arguments={"amount": 500}, by=ann)
    run = drive(run)
    world.answer(asked(run), "deny", by=ann)
    step["now"] = "critical"

    run = drive(run)
    assert (run.status, run.output) == (Status.COMPLETED, "denied")
