"""docs/howto/live-code.md: what a new release may change under a run that waits. One test a row of its table."""

import json
import re
from datetime import timedelta

import pytest
from django.core.management import call_command
from pydantic import BaseModel

from ravi_django import answer, register, signal, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider, ToolResultCompaction
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import HumanRequest, JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.approvals import call, paying
from tests.support.docs import Page
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)


class Receipt(BaseModel):
    amount: int


@tool
def find(name: str) -> str:
    """Find."""
    return "ACME"


@tool
def other() -> str:
    """Another tool."""
    return ""


def cents(done):
    """`pay` with another argument."""

    @tool(name="pay", risk="high", effect="idempotent")
    def pay(cents: int) -> str:
        """Pay."""
        done.append(cents)
        return "paid"

    return pay


def deploy(tools, *, name="gpt-4o-mini", end="done", **options):
    """The release of an agent that finds, pays after an approval, and says `end`."""
    first = ToolUseBlock(tool_name="find", arguments={"name": "acme"}, call_id="c0")
    model = ScriptedModel([first, call(5), end], name=name)
    options.setdefault("approvers", "staff")
    return register(ReActAgent("payer", model=model, tools=tools, **options))


def waiting(ran):
    """A run with a recorded call of `find`, and an approval that it waits for."""
    deploy([find, paying(ran)])
    run = submit("react/payer", "pay")
    run_until_idle()
    assert HumanRequest.objects.filter(run=run, status="pending").exists()
    return run


def approved(run, ann):
    answer(HumanRequest.objects.get(run=run).id, "approve", by=ann)
    run_until_idle()
    run.refresh_from_db()
    return run


RECEIPT = json.dumps({"amount": 5}, separators=(",", ":"))
CHANGES = {
    "a new model name": lambda ran: ([find, paying(ran)], {"name": "gpt-4o"}),
    "new instructions": lambda ran: ([find, paying(ran)], {"system_instructions": "Be brief."}),
    "a new tool": lambda ran: ([find, paying(ran), other], {}),
    "a new optional argument": lambda ran: ([find, with_note(ran)], {}),
    "a removed tool whose calls have ended": lambda ran: ([paying(ran)], {}),
    "another effect": lambda ran: ([find, paying(ran, effect="at_most_once")], {}),
    "other approvers": lambda ran: ([find, paying(ran)], {"approvers": "group:finance"}),
    "another result type": lambda ran: ([find, paying(ran)], {"end": RECEIPT, "result_model": Receipt}),
    "another strategy of the context": lambda ran: (
        [find, paying(ran)],
        {"context": ContextConfig(DjangoHistoryProvider(), pipeline=ToolResultCompaction(2))},
    ),
}


def with_note(done):
    """`pay` with one more optional argument."""

    @tool(name="pay", risk="high", effect="idempotent")
    def pay(amount: int, to: str = "ACME", note: str = "") -> str:
        """Pay somebody."""
        done.append(amount)
        return "paid"

    return pay


@pytest.mark.parametrize("change", CHANGES)
def test_a_waiting_run_continues_with(change, clock, ann, ran):
    run = waiting(ran)
    tools, options = CHANGES[change](ran)
    deploy(tools, **options)

    run = approved(run, ann)
    assert (run.status, ran) == (Status.COMPLETED, [5]), run.error
    assert run.output == (options.get("end", "done"))
    last = JournalEntry.objects.filter(run=run, kind="llm.call").latest("seq")
    assert last.name == options.get("name", "gpt-4o-mini")


def test_a_new_model_name_is_noted_and_blocks_where_replay_is_strict(clock, ann, ran, settings):
    run = waiting(ran)
    deploy([find, paying(ran)], name="gpt-4o")
    settings.RAVI = {**settings.RAVI, "REPLAY": "strict"}
    run = approved(run, ann)
    assert (run.status, ran) == (Status.BLOCKED, [])
    assert "model changed since entry" in run.error["message"]

    del settings.RAVI["REPLAY"]
    run.retry()
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, ran) == (Status.COMPLETED, [5])
    drifts = JournalEntry.objects.filter(run=run, kind="replay.drift").values_list("result", flat=True)
    assert [drift["changed"] for drift in drifts] == [["model"], ["model"]]


BLOCKING = {
    "a removed tool whose call waits": lambda ran: [find],
    "a renamed tool whose call waits": lambda ran: [find, paying(ran, name="transfer")],
    "a higher risk": lambda ran: [find, paying(ran, risk="critical")],
    "a lower risk": lambda ran: [find, paying(ran, risk="safe")],
}


@pytest.mark.parametrize("change", BLOCKING)
def test_a_waiting_run_is_blocked_by_and_continues_after_a_rollback(change, clock, ann, ran):
    run = waiting(ran)
    deploy(BLOCKING[change](ran))
    run = approved(run, ann)
    assert (run.status, ran) == (Status.BLOCKED, [])
    assert "Three ways out: deploy the earlier code" in run.error["message"]

    deploy([find, paying(ran)])
    run.retry()
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, run.output, ran) == (Status.COMPLETED, "done", [5])


def test_a_call_whose_arguments_no_longer_fit_is_refused_and_the_run_continues(clock, ann, ran):
    run = waiting(ran)
    deploy([find, cents(ran)], end="not paid")
    run = approved(run, ann)
    assert (run.status, run.output, ran) == (Status.COMPLETED, "not paid", [])


def test_the_runs_of_a_removed_agent_stay_pending_until_it_is_back(clock, ann, ran):
    run = waiting(ran)
    world.unregister("react/payer")
    assert approved(run, ann).status == Status.PENDING

    deploy([find, paying(ran)])
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, ran) == (Status.COMPLETED, [5])


async def before(ctx, inbox):
    await ctx.tool("find", name="a")
    await ctx.sleep_until_signal("go")
    return "old"


async def inserted(ctx, inbox):
    await ctx.tool("other")
    return await before(ctx, inbox)


async def patched(ctx, inbox):
    return await (inserted if ctx.patched("other first") else before)(ctx, inbox)


async def appended(ctx, inbox):
    await before(ctx, inbox)
    return (await ctx.tool("find", name="b")).text


@pytest.mark.parametrize(
    ("release", "status", "output"),
    [
        (inserted, Status.BLOCKED, None),
        (patched, Status.COMPLETED, "old"),
        (appended, Status.COMPLETED, "ACME"),
    ],
    ids=["a call before a recorded one", "the same behind ctx.patched", "a call after the last recorded one"],
)
def test_code_of_your_own_changes(clock, release, status, output):
    code(before, tools=[find, other])
    run = submit("test/code", "hi")
    run_until_idle()
    code(release, tools=[find, other])
    signal(run.id, "go")
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, run.output) == (status, output)


def test_a_blocked_run_is_retried_with_patched_code_or_forked_and_cancelled(clock):
    code(before, tools=[find, other])
    run = submit("test/code", "hi")
    run_until_idle()
    code(inserted, tools=[find, other])
    signal(run.id, "go")
    run_until_idle()
    run.refresh_from_db()
    forked = world.fork(run.id, after_seq=run.error["diff"]["seq"] - 1)
    run_until_idle()
    forked.refresh_from_db()
    assert forked.status == Status.SUSPENDED  # it made the new calls, and waits for its own signal

    code(patched, tools=[find, other])
    run.retry()
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, "old")
    forked.cancel()
    assert Run.objects.get(id=forked.id).status == Status.CANCELLED


def test_the_pages_patched_code_runs_with_old_and_new_runs_and_without_the_old_branch(clock, capsys):
    page = Page("live-code")
    patched = page.code("shop/labels.py")
    asked = '"send_code" if ctx.patched("codes") else "send_label"'
    assert patched.count(asked) == 1

    def ran(run):
        signal(run.id, "parcel", {"number": 1})
        run_until_idle()
        run.refresh_from_db()
        return run.output or run.error["type"]

    def release(name):
        exec(compile(patched.replace(asked, name), "labels", "exec"), {"__name__": "labels"})

    release('"send_label"')
    old = submit("shop/labels", "7")
    run_until_idle()
    release('"send_code"')
    with pytest.raises(SystemExit):
        call_command("ravi_replay_check")
    printed = capsys.readouterr().out.strip().splitlines()
    assert [line.replace(str(old.id), "ID") for line in printed] == [
        re.sub("[0-9a-f-]{36}", "ID", line.removeprefix("    "))
        for line in page.text.splitlines()
        if line.startswith("    ") and line.strip().startswith(("shop/labels", "recorded:", "asked:", "ravi_replay"))
    ]
    release(asked)
    call_command("ravi_replay_check")
    new, last = submit("shop/labels", "8"), submit("shop/labels", "9")
    run_until_idle()
    assert (ran(old), ran(new)) == ("label for order 7: back", "code for order 8: back")
    release('"send_code"')
    assert ran(last) == "code for order 9: back"


def test_a_shorter_lease_is_no_change_for_a_waiting_run(clock, ann, ran, settings):
    run = waiting(ran)
    settings.RAVI = {**settings.RAVI, "LEASE_S": 5.0, "HEARTBEAT_S": 1.0}
    clock.advance(timedelta(days=30))
    assert approved(run, ann).status == Status.COMPLETED
