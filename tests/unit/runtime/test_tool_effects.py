"""What a tool's effect promises about crashes."""

import asyncio

import pytest
from django.contrib.auth.models import Group
from django.db import InternalError, connection

from ravi_django import tool
from ravi_django.kernel import RunContext, ToolRefused
from ravi_django.models import JournalEntry, Run, Status
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    Died,
    asked,
    code,
    drive,
    end_backend,
    in_background,
    make_run,
    on_postgresql,
    patch_append,
    take_over,
)
from tests.support.tool_calls import calling, on_the_loop, output_of, phases

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_call_of_each_run_has_a_key_of_its_own_and_an_idempotent_tool_runs_again_under_it(clock, ran):
    @tool(effect="idempotent")
    async def pay(ctx: RunContext) -> str:
        ran.append(ctx.idempotency_key)
        return ""

    async def story(ctx, inbox):
        await ctx.tool("pay")
        await ctx.tool("pay")
        with ctx.scope("place"):
            await ctx.tool("pay")
        await asyncio.gather(ctx.tool("pay"), ctx.tool("pay"))

    code(story, tools=[pay])
    run = drive(make_run(), dies=1)
    assert (phases(), len(ran)) == ([], 1)
    assert take_over(clock, run).status == Status.COMPLETED
    drive(make_run())
    assert ran[0] == ran[1]
    assert len(set(ran)) == len(ran) - 1 == 10
    assert phases() == ["result"] * 10


@pytest.mark.parametrize("promise", [{"effect": "at_most_once"}, {"risk": "high"}])
def test_an_at_most_once_tool_leaves_a_started_row_first(clock, ran, promise):
    @tool(**promise)
    def send(to: str) -> str:
        ran.append(in_background(phases).result(BOUND_S))
        return f"sent to {to}"

    code(calling("send", to="ACME"), tools=[send])
    run = drive(make_run(), dies=1)
    assert ran == []
    assert take_over(clock, run).output == "ok: sent to ACME"
    assert ran == [["started"]]
    assert phases() == ["started", "result"]
    started, result = JournalEntry.objects.filter(kind="tool.call").order_by("seq")
    assert started.request == result.request == {"arguments": {"to": "ACME"}}
    assert started.path == result.path


def test_a_crash_after_the_started_row_asks_a_person_and_calls_nothing(clock, ran):
    @tool(effect="at_most_once")
    def send(to: str) -> str:
        ran.append(to)
        return "sent"

    code(calling("send", to="ACME"), tools=[send])
    run = take_over(clock, drive(make_run(), dies=2))
    assert ran == ["ACME"]
    request = asked(run)
    assert (request.kind, request.tool, request.arguments) == ("uncertain", "send", {"to": "ACME"})
    assert "send may or may not have happened" in request.text
    assert "its worker died" in request.text


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_a_refusal_before_the_effect_goes_to_the_model_and_to_the_replay(effect, clock):
    @tool(effect=effect)
    def send(amount: int) -> str:
        raise ToolRefused(f"{amount} is too much")

    code(calling("send", amount=9), tools=[send])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.output.removeprefix("error: ").removeprefix("ToolRefused: ") == "9 is too much"


def raising():
    raise ValueError("connection reset")


raising_later = on_the_loop(raising)


async def hanging():
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("do", "why"),
    [(raising, "raised ValueError: connection reset"), (raising_later, "raised ValueError"), (hanging, "within 0.1 s")],
)
def test_anything_but_a_result_or_a_refusal_is_uncertain(ran, do, why):
    swallowed = []

    @tool(effect="at_most_once", timeout=0.1)
    async def send() -> str:
        found = do()
        return await found if asyncio.iscoroutine(found) else found

    async def story(ctx, inbox):
        try:
            await ctx.tool("send")
        except Exception as error:
            swallowed.append(error)
        return "went on"

    code(story, tools=[send])
    run = drive(make_run())
    assert swallowed == []
    assert why in asked(run).text
    assert phases() == ["started"]


@tool(effect="transactional")
def add_group(name: str) -> str:
    """Add a group."""
    Group.objects.create(name=name)
    return f"added {name}"


def test_a_transactional_tools_write_commits_with_its_row(monkeypatch, ran):
    write = world.fence_append

    def watching(lease, entries, turns):
        if any(entry.name == "add_group" for entry in entries):
            ran.append(in_background(Group.objects.count).result(BOUND_S))
        return write(lease, entries, turns)

    patch_append(monkeypatch, watching)
    assert output_of(add_group, name="staff") == "ok: added staff"
    assert ran == [0]  # nobody sees the group before the row
    assert (Group.objects.count(), phases()) == (1, ["result"])


def test_a_transactional_tool_whose_row_cannot_be_written_has_written_nothing(clock, monkeypatch):
    write = world.fence_append

    def failing(lease, entries, turns):
        if any(entry.name == "add_group" for entry in entries):
            raise Died
        return write(lease, entries, turns)

    code(calling("add_group", name="staff"), tools=[add_group])
    with monkeypatch.context() as patch:
        patch_append(patch, failing)
        run = drive(make_run(), dies="end")
    assert (Group.objects.count(), phases()) == (0, [])
    run = take_over(clock, run)
    assert (run.output, Group.objects.count()) == ("ok: added staff", 1)


def test_a_lost_lease_rolls_a_transactional_tool_back(clock, ran):
    run = make_run()

    def steal():
        Run.objects.filter(id=run.id).update(lease_expires_at="2000-01-01T00:00:00Z")
        return world.claim(run.id, "thief")

    async def story(ctx, inbox):
        if not ran:
            ran.append(1)
            assert await asyncio.to_thread(lambda: in_background(steal).result(BOUND_S))
        return (await ctx.tool("add_group", name="staff")).text

    code(story, tools=[add_group])
    drive(run)
    assert (run.status, run.lease_owner) == (Status.RUNNING, "thief")
    assert (Group.objects.count(), phases()) == (0, [])
    clock.now = run.lease_expires_at
    assert take_over(clock, run).output == "added staff"
    assert Group.objects.count() == 1
    ran.clear()

    @tool(effect="transactional")
    def write() -> str:
        ran.append(1)
        if len(ran) == 1:  # its server refuses writes: it is left to the next lease, too
            refused = Exception("cannot execute INSERT in a read-only transaction")
            refused.sqlstate = "25006"
            raise InternalError(str(refused)) from refused
        return "written"

    code(calling("write"), tools=[write])
    run = drive(make_run())
    assert take_over(clock, run).output == "ok: written"


@on_postgresql
@pytest.mark.parametrize("when", ["before the first statement", "between two", "behind the last", "at the commit"])
def test_a_transactional_tool_whose_backend_is_terminated_is_left_to_the_next_lease(clock, monkeypatch, ran, when):
    append = world.fence_append

    @tool(effect="transactional")
    def add_two() -> str:
        """Add two groups."""
        ran.append(1)
        for place in ("before the first statement", "between two"):
            if when == place and len(ran) == 1:
                connection.ensure_connection()
                end_backend()
            Group.objects.create(name=place)
        if when == "behind the last" and len(ran) == 1:
            end_backend()
        return "added two"

    def appending(lease, entries, turns):
        first = append(lease, entries, turns)
        if when == "at the commit" and entries[-1].name == "add_two" and len(ran) == 1:
            end_backend()
        return first

    patch_append(monkeypatch, appending)
    code(calling("add_two"), tools=[add_two])
    run = drive(make_run())
    assert (run.status, Group.objects.count(), phases()) == (Status.RUNNING, 0, [])
    run = take_over(clock, run)
    assert (run.output, Group.objects.count(), phases()) == ("ok: added two", 2, ["result"])


def test_a_transactional_tool_that_fails_has_written_nothing_and_the_model_is_told():
    @tool(effect="transactional")
    def add_two() -> str:
        """Add two groups."""
        Group.objects.create(name="one")
        raise ValueError("no second one")

    assert output_of(add_two) == "error: ValueError: no second one"
    assert (Group.objects.count(), phases()) == (0, ["result"])
    Group.objects.create(name="staff")
    assert output_of(add_group, name="staff").startswith("error: IntegrityError: ")
    assert phases() == ["result"] * 2
