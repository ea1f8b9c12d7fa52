"""What a tool's effect promises about crashes, and what comes back from it otherwise."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connections

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, DataBlock, RunContext, TextBlock, ToolExecutionResult, ToolRefused
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.runtime import append, store
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import Died, code, drive, in_background, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ran():
    return []


def calling(name, /, **arguments):
    """An agent's code that makes one call and tells its result."""

    async def story(ctx, inbox):
        result = await ctx.tool(name, **arguments)
        return f"{result.status}: {result.text}"

    return story


def output_of(function, /, **arguments):
    """The output of a run whose agent calls this one tool."""
    code(calling(function.name, **arguments), tools=[function])
    return drive(make_run()).output


def phases():
    return list(JournalEntry.objects.filter(kind="tool.call").order_by("seq").values_list("phase", flat=True))


# -------------------------------------------------------------------------------------------------- idempotent


@pytest.mark.sqlite
def test_an_idempotent_tool_runs_again_under_the_same_key(clock, ran):
    @tool(effect="idempotent")
    def pay(amount: int, ctx: RunContext) -> str:
        """Pay."""
        ran.append(ctx.idempotency_key)
        return f"paid {amount}"

    code(calling("pay", amount=3), tools=[pay])
    run = drive(make_run(), dies=1)
    assert phases() == []

    run = take_over(clock, run)

    assert run.output == "ok: paid 3"
    assert len(ran) == 2
    assert len(set(ran)) == 1
    assert phases() == ["result"]


def test_each_call_of_each_run_has_a_key_of_its_own(ran):
    @tool
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        ran.append(ctx.idempotency_key)
        return ""

    async def story(ctx, inbox):
        await ctx.tool("pay")
        await ctx.tool("pay")
        with ctx.scope("place"):
            await ctx.tool("pay")
        await asyncio.gather(ctx.tool("pay"), ctx.tool("pay"))

    code(story, tools=[pay])
    drive(make_run())
    drive(make_run())

    assert len(set(ran)) == len(ran) == 10


# ------------------------------------------------------------------------------------------------ at most once


@pytest.mark.sqlite
def test_an_at_most_once_tool_leaves_a_started_row_first(ran):
    @tool(effect="at_most_once")
    def send(to: str) -> str:
        """Send."""
        ran.append(in_background(phases).result(10))
        return f"sent to {to}"

    assert output_of(send, to="ACME") == "ok: sent to ACME"
    assert ran == [["started"]]
    assert phases() == ["started", "result"]
    started, result = JournalEntry.objects.filter(kind="tool.call").order_by("seq")
    assert started.request == result.request == {"arguments": {"to": "ACME"}}
    assert started.path == result.path


@pytest.mark.sqlite
def test_a_crash_after_the_started_row_blocks_the_run_and_calls_nothing(clock, ran):
    @tool(effect="at_most_once")
    def send(to: str) -> str:
        """Send."""
        ran.append(to)
        return "sent"

    code(calling("send", to="ACME"), tools=[send])
    run = drive(make_run(), dies=2)

    run = take_over(clock, run)

    assert ran == ["ACME"]
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "UncertainEffectError")
    assert "send may or may not have happened" in run.error["message"]
    assert "its worker died" in run.error["message"]


def test_a_crash_before_the_started_row_is_written_calls_the_tool(clock, ran):
    @tool(effect="at_most_once")
    def send() -> str:
        """Send."""
        ran.append(1)
        return "sent"

    code(calling("send"), tools=[send])
    run = drive(make_run(), dies=1)
    assert ran == []

    assert take_over(clock, run).output == "ok: sent"
    assert ran == [1]


def test_a_high_risk_is_at_most_once_by_itself(ran):
    @tool(risk="high")
    def send() -> str:
        """Send."""
        return "sent"

    output_of(send)

    assert phases() == ["started", "result"]


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_a_refusal_before_the_effect_goes_to_the_model(effect):
    @tool(effect=effect)
    def send(amount: int) -> str:
        """Send."""
        raise ToolRefused(f"{amount} is too much")

    assert output_of(send, amount=9).removeprefix("error: ").removeprefix("ToolRefused: ") == "9 is too much"


def test_a_refused_call_is_not_uncertain_in_the_replay(clock):
    @tool(effect="at_most_once")
    def send() -> str:
        """Send."""
        raise ToolRefused("no")

    code(calling("send"), tools=[send])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "error: no"


def raising():
    raise ValueError("connection reset")


async def raising_later():
    raise ValueError("connection reset")


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
        """Send."""
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

    assert (run.status, run.error["type"], swallowed) == (Status.BLOCKED, "UncertainEffectError", [])
    assert why in run.error["message"]
    assert phases() == ["started"]


# ----------------------------------------------------------------------------------------------- transactional


@tool(effect="transactional")
def add_group(name: str) -> str:
    """Add a group."""
    Group.objects.create(name=name)
    return f"added {name}"


@pytest.mark.sqlite
def test_a_transactional_tools_write_commits_with_its_row(monkeypatch, ran):
    write = append.append

    def watching(lease, entries, turns):
        if any(entry.name == "add_group" for entry in entries):
            ran.append(in_background(Group.objects.count).result(10))
        return write(lease, entries, turns)

    monkeypatch.setattr(append, "append", watching)

    assert output_of(add_group, name="staff") == "ok: added staff"
    assert ran == [0]  # nobody sees the group before the row
    assert (Group.objects.count(), phases()) == (1, ["result"])


@pytest.mark.sqlite
def test_a_transactional_tool_whose_row_cannot_be_written_has_written_nothing(clock, monkeypatch):
    write = append.append

    def failing(lease, entries, turns):
        if any(entry.name == "add_group" for entry in entries):
            raise Died
        return write(lease, entries, turns)

    code(calling("add_group", name="staff"), tools=[add_group])
    with monkeypatch.context() as patch:
        patch.setattr(append, "append", failing)
        run = drive(make_run(), dies="end")
    assert (Group.objects.count(), phases()) == (0, [])

    run = take_over(clock, run)

    assert (run.output, Group.objects.count()) == ("ok: added staff", 1)


@pytest.mark.sqlite
def test_a_lost_lease_rolls_a_transactional_tool_back(clock, ran):
    run = make_run()

    def steal():
        Run.objects.filter(id=run.id).update(lease_expires_at="2000-01-01T00:00:00Z")
        return store.claim(run.id, "thief")

    async def story(ctx, inbox):
        if not ran:
            ran.append(1)
            assert await asyncio.to_thread(lambda: in_background(steal).result(10))
        return (await ctx.tool("add_group", name="staff")).text

    code(story, tools=[add_group])

    drive(run)

    assert (run.status, run.lease_owner) == (Status.RUNNING, "thief")
    assert (Group.objects.count(), phases()) == (0, [])
    clock.now = run.lease_expires_at
    assert take_over(clock, run).output == "added staff"
    assert Group.objects.count() == 1


def test_a_transactional_tool_that_fails_has_written_nothing_and_the_model_is_told():
    @tool(effect="transactional")
    def add_two() -> str:
        """Add two groups."""
        Group.objects.create(name="one")
        raise ValueError("no second one")

    assert output_of(add_two) == "error: ValueError: no second one"
    assert (Group.objects.count(), phases()) == (0, ["result"])


def test_a_transactional_tool_that_breaks_a_constraint_is_told_to_the_model():
    Group.objects.create(name="staff")

    assert output_of(add_group, name="staff").startswith("error: IntegrityError: ")
    assert phases() == ["result"]


def test_a_transactional_tool_must_be_sync():
    @tool(effect="transactional")
    async def later() -> str:
        """Later."""
        return ""

    assert output_of(later) == "error: later is transactional and must be a sync tool"


# ------------------------------------------------------------------------------------- what the model is told


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


def test_arguments_that_do_not_fit_are_told_to_the_model_and_not_run():
    answer = output_of(divide, a="many", b=2)

    assert answer.startswith("error: ")
    assert "a" in answer
    assert phases() == ["result"]


def test_a_tool_that_raises_tells_the_model():
    assert output_of(divide, a=1, b=0) == "error: ZeroDivisionError: division by zero"


def test_a_tool_that_hangs_tells_the_model():
    @tool(timeout=0.05)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()

    assert output_of(hang) == "error: hang did not finish within 0.05 s"


def test_an_unknown_tool_is_named_with_those_that_there_are():
    code(calling("multiply", a=1), tools=[divide])

    assert drive(make_run()).output == "error: there is no tool 'multiply'; the tools are: divide"


def test_a_name_that_a_model_made_up_may_be_as_it_likes(clock):
    name = "x" * 300 + "\x00"
    code(calling(name), tools=[divide])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert (run.status, run.output[:27]) == (Status.COMPLETED, "error: there is no tool 'xx")


@pytest.mark.parametrize("may", [True, False, None])
def test_a_permission_is_asked_of_the_runs_owner(may):
    @tool(permission="auth.add_group")
    def secret() -> str:
        """Secret."""
        return "told"

    owner = None if may is None else User.objects.create_user("ann")
    if may:
        owner.user_permissions.add(Permission.objects.get(codename="add_group"))
    code(calling("secret"), tools=[secret])

    run = drive(make_run(owner=owner))

    refusal = "error: not permitted: secret needs the permission auth.add_group, which the run's owner does not have"
    assert run.output == ("ok: told" if may else refusal)


def test_a_run_has_a_limit_of_tool_calls(settings, clock):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 3}

    async def story(ctx, inbox):
        return " ".join([(await ctx.tool("divide", a=number, b=1)).status for number in range(5)])

    code(story, tools=[divide])
    run = drive(make_run(), dies=3)

    run = take_over(clock, run)  # those of the first lease count too

    assert run.output == "ok ok ok error error"
    assert "the run's limit of 3 tool calls is reached" in str(journal_of(run)[-2].result)


def test_a_huge_result_is_cut_with_a_marker(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read() -> str:
        """Read."""
        return "é" * 600

    answer = output_of(read)

    assert answer.startswith("ok: " + "é" * 500 + "\n")
    assert answer.endswith("\n[cut here: 200 of 1200 bytes left out]")


def test_a_result_at_the_limit_is_whole(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read() -> str:
        """Read."""
        return "é" * 500

    assert output_of(read) == "ok: " + "é" * 500


class Odd:
    def __str__(self):
        return "an odd thing"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, ""),
        (0, "0"),
        (False, "false"),
        ([1, "a", None], '[1,"a",null]'),
        ({"b": 1, "a": [2.5]}, '{"b":1,"a":[2.5]}'),
        (Odd(), '"an odd thing"'),
        ({"odd": Odd()}, '{"odd":"an odd thing"}'),
        ({1}, "[1]"),
        (b"bytes", '"bytes"'),
        (TextBlock(text="block"), "block"),
        ([TextBlock(text="two "), TextBlock(text="blocks")], "two \nblocks"),
        (ToolExecutionResult(content=[TextBlock(text="result")]), "result"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_return_value_becomes_content(value, text):
    @tool
    def give():
        """Give."""
        return value

    assert output_of(give).removeprefix("ok: ").replace("\n", "") == text.replace("\n", "")


@pytest.mark.parametrize("text", ["nul \x00 in it", "half a pair \ud800"], ids=["nul", "surrogate"])
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.sqlite
def test_text_that_no_row_can_hold_does_not_poison_the_run(text, block):
    @tool
    def read():
        """Read a binary file."""
        return DataBlock(data={"text": text}) if block else text

    code(calling("read"), tools=[read])

    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.status
    assert phases() == ["result"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_json_do_not_poison_the_run(number):
    @tool
    def measure():
        """Measure."""
        return DataBlock(data={"x": number})

    code(calling("measure"), tools=[measure])

    assert drive(make_run()).status == Status.COMPLETED


def test_a_model_that_says_what_no_row_can_hold_does_not_poison_the_run():
    async def story(ctx, inbox):
        return (await ctx.llm([ChatMessage.of("user", "hi")])).text

    code(story, model=ScriptedModel(["nul \x00 in it"]))

    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.status
    assert run.output.startswith("nul ")


def test_text_that_was_mended_for_its_row_replays_as_it_was(clock):
    seen = []

    @tool
    def echo(text: str) -> str:
        """Echo."""
        return text + "\x00"

    async def story(ctx, inbox):
        said = (await ctx.llm([ChatMessage.of("user", "hi")])).text
        seen.append((said, (await ctx.tool("echo", text=said)).text, (await ctx.tool("echo", text="\x00")).text))
        await ctx.log("note", {"text": "\x00 \ud800", "odd": Odd(), "$blob": 1})

    code(story, model=ScriptedModel(["a \x00 \ud800"]), tools=[echo])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert seen == [("a \ufffd ?", "a \ufffd ?\ufffd", "\ufffd\ufffd")] * 2


def test_a_log_entry_may_look_like_a_reference_to_a_blob(clock):
    async def story(ctx, inbox):
        await ctx.log("note", {"$blob": "nowhere", "size": 1})
        await ctx.tool("divide", a=1, b=1)
        return "done"

    code(story, tools=[divide])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "done"


@pytest.mark.parametrize("error", [ValueError("nul \x00"), ValueError("half \ud800")], ids=["nul", "surrogate"])
def test_an_error_that_no_row_can_hold_does_not_poison_the_run(error):
    async def story(ctx, inbox):
        raise error

    code(story)

    assert drive(make_run()).status == Status.FAILED


def test_an_output_that_no_row_can_hold_does_not_poison_the_run():
    async def story(ctx, inbox):
        return "nul \x00 and \ud800"

    code(story)

    assert drive(make_run()).status == Status.COMPLETED


# ------------------------------------------------------------------------------------------- how they are run


def test_sync_tools_run_at_once_and_off_the_loop(ran):
    together = threading.Barrier(5)

    @tool
    def meet(number: int) -> str:
        """Meet."""
        together.wait(10)
        ran.append(threading.current_thread().name)
        return str(number)

    async def story(ctx, inbox):
        found = await asyncio.gather(*(ctx.tool("meet", number=number) for number in range(5)))
        return "".join(result.text for result in found)

    code(story, tools=[meet])

    assert drive(make_run()).output == "01234"
    assert len(set(ran)) == 5
    assert all(name.startswith("ravi-tool") for name in ran)


def test_a_sync_tool_may_use_the_database_and_leaves_no_connection_open(ran):
    @tool
    def count() -> int:
        """Count."""
        ran.append(connections["default"])
        return Group.objects.count()

    assert output_of(count) == "ok: 0"
    assert ran[0].connection is None


def test_the_context_is_injected_and_hidden_from_the_model():
    @tool
    def who(name: str, ctx: RunContext) -> str:
        """Who."""
        return f"{name} in {ctx.agent_id}"

    assert "ctx" not in who.parameters["properties"]
    assert output_of(who, name="ann") == "ok: ann in test/code"


def test_a_tool_without_arguments_of_its_own_takes_none():
    @tool
    def now(ctx: RunContext) -> str:
        """Now."""
        return "now"

    assert output_of(now, ctx="forged").startswith("error: ")


def test_the_models_id_of_the_call_comes_back_with_the_result(clock):
    async def story(ctx, inbox):
        with ctx.scope("turn1.call0", call_id="call_7"):
            return (await ctx.tool("divide", a=1, b=2)).call_id

    code(story, tools=[divide])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "call_7"
    assert JournalEntry.objects.get(kind="tool.call").request["call_id"] == "call_7"


def test_time_spent_is_on_the_row():
    @tool
    def work() -> str:
        """Work."""
        begun = time.monotonic()
        while time.monotonic() - begun < 0.05:
            pass
        return ""

    output_of(work)

    row = JournalEntry.objects.get(kind="tool.call")
    assert 0.05 <= (row.finished_at - row.started_at).total_seconds() < conf.TOOL_TIMEOUT_S
