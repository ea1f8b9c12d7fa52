"""What a run may spend on tools, across leases; who reaches a cap is told."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connections

from ravi_django import tool
from ravi_django.checks import check_settings
from ravi_django.kernel import RunContext
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.patience import seconds
from tests.support.runs import asked, auntil, code, drive, in_background, make_run, patch_append, take_over
from tests.support.tool_calls import calling, on_the_loop, output_of
from tests.support.world import Stopwatch, ToolUsage

pytestmark = pytest.mark.django_db(transaction=True)

EFFECTS = ["idempotent", "at_most_once", "transactional"]


def several(name, count, **arguments):
    async def story(ctx, inbox):
        found = [await ctx.tool(name, **arguments) for _ in range(count)]
        return " | ".join(result.text if result.is_error else "ok" for result in found)

    return story


def driven(clock, dies):
    """A run, taken over where its worker died."""
    run = drive(make_run(), dies=dies)
    return run if dies is None else take_over(clock, run)


@pytest.fixture
def timed(monkeypatch):
    """A stopwatch of the test's own: a call takes as long as it says."""
    watch = SimpleNamespace(now=1000.0)
    watch.monotonic = lambda: watch.now
    world.patch(monkeypatch, "tool_caps_time", watch)
    return watch


def told(what):
    return f"the run's limit of {what} is reached; answer with what you have"


@pytest.mark.parametrize(
    ("effect", "dies"), [("idempotent", None), ("idempotent", 2), ("at_most_once", 3), ("transactional", "end")]
)
def test_a_tool_has_a_limit_of_its_own(effect, dies, clock, ran):
    @tool(effect=effect, max_calls=2)
    def work():
        ran.append("work")

    @tool
    def other():
        """Other."""

    code(several("work", 3), tools=[work, other])
    run = driven(clock, dies)
    if run.status == Status.SUSPENDED:  # begun, and its worker died: that is a person's matter
        assert effect == "at_most_once"
        return
    assert run.output == f"ok | ok | {told('2 calls of work')}"
    assert len(ran) == (3 if effect == "idempotent" and dies in (2,) else 2)


@pytest.mark.parametrize("dies", [3, "end"])
def test_the_calls_have_so_much_time_in_all(dies, clock, timed, settings):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_S": 25}

    @tool
    async def work():
        timed.now += 10

    code(several("work", 5), tools=[work])
    over = told("25 s of tool calls")
    assert driven(clock, dies).output == f"ok | ok | ok | {over} | {over}"


def test_waiting_is_no_time_of_the_tool(clock, timed, settings):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_S": 25}

    @tool
    async def inner():
        timed.now += 10

    @tool
    async def outer(ctx: RunContext):
        await ctx.tool("inner")
        timed.now += 1

    code(several("outer", 3), tools=[inner, outer])
    run = drive(make_run())
    # 11 s for each and not 21: the third begins at 22
    assert run.output == "ok | ok | ok"
    rows = JournalEntry.objects.filter(run=run, name="outer")
    assert [row.result["waited_s"] for row in rows] == [10, 10, 10]
    assert ToolUsage.of(rows).seconds == pytest.approx(3, abs=0.1)


def test_waiting_for_a_person_or_a_signal_is_no_time_of_the_tool(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_S": 100}

    @tool
    async def patient(ctx: RunContext):
        return await ctx.sleep_until_signal("go")

    code(several("patient", 2), tools=[patient])
    run = drive(make_run())
    for _ in range(2):
        assert run.status == Status.SUSPENDED
        clock.advance(1000)
        world.signal(run.id, "go", "went")
        run = drive(run)
    assert run.output == "ok | ok"


def test_a_wait_that_is_over_in_the_same_lease_is_no_time_of_the_tool(timed):
    @tool
    async def patient(ctx: RunContext):
        return await ctx.sleep_until_signal("go")

    @tool
    async def busy(ctx: RunContext):
        """Busy: keeps the run here meanwhile."""
        await auntil(lambda: ctx.recorder.waits.waits_for)
        timed.now += 1000
        await asyncio.wrap_future(in_background(world.signal, ctx.run_id, "go", "went"))
        await ctx.recorder.refresh()

    async def story(ctx, inbox):
        found = await asyncio.gather(ctx.tool("patient"), ctx.tool("busy"))
        return found[0].text

    code(story, tools=[patient, busy])
    run = drive(make_run())
    assert run.output == "went"
    assert JournalEntry.objects.get(run=run, name="patient", phase="result").result["waited_s"] == 1000
    watch = Stopwatch()
    timed.now += 1
    with watch.excluded():
        timed.now += 10
        with watch.excluded():
            timed.now += 10
    timed.now += 1
    assert (watch.elapsed, watch.waited) == (22, 20), "waits that overlap are counted once"


@pytest.mark.parametrize("dies", [2, "end"])
def test_results_have_so_many_bytes_in_all(dies, clock, settings, monkeypatch):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_BYTES": 2000}
    world.patch(monkeypatch, "INLINE_BYTES", 500)

    @tool
    def work():
        return "é" * 500

    @tool(max_result_bytes=500)
    def big():
        """Of which 500 bytes are shown."""
        return "x" * 100_000

    code(several("work", 4), tools=[work])
    over = told("2000 bytes of tool results")
    assert driven(clock, dies).output == f"ok | ok | {over} | {over}"
    code(several("big", 4), tools=[big])
    assert drive(make_run()).output == "ok | ok | ok | ok"


def test_a_cap_that_was_raised_since_leaves_the_record_as_it_is(clock, settings, ran):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1}

    @tool
    def work():
        ran.append("work")

    code(several("work", 3), tools=[work])
    run = drive(make_run(), dies="end")
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 100}
    over = told("1 tool calls")
    assert (take_over(clock, run).output, ran) == (f"ok | {over} | {over}", ["work"])


def test_calls_inside_of_calls_count_after_a_takeover_as_before(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 4}

    @tool
    async def inner():
        """Inner."""

    @tool
    async def outer(ctx: RunContext):
        return (await ctx.tool("inner")).text

    code(several("outer", 3), tools=[inner, outer])
    told_at_once = drive(make_run()).output
    run = drive(make_run(), dies=5)
    assert take_over(clock, run).output == told_at_once == f"ok | ok | {told('4 tool calls')}"


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_permission_holds_for_every_promise(effect, is_async, ran, clock):
    def secret():
        """Secret."""
        ran.append("secret")

    function = on_the_loop(secret) if is_async and effect != "transactional" else secret
    code(calling("secret"), tools=[tool(name="secret", effect=effect, permission="auth.add_group")(function)])
    for owner in (User.objects.create_user("ann"), None):
        run = take_over(clock, drive(make_run(owner=owner), dies="end"))
        lacks = "secret needs the permission auth.add_group, which the run's owner does not have"
        assert run.output == f"error: not permitted: {lacks}"
        assert [row.phase for row in journal_of(run) if row.kind == "tool.call"] == ["result"]
    assert ran == []
    may = User.objects.create_user("may")
    may.user_permissions.add(Permission.objects.get(codename="add_group"))
    assert drive(make_run(owner=may)).output == "ok: "


@pytest.mark.parametrize("is_async", [True, False])
def test_a_timeout_tells_of_an_idempotent_tool_and_leaves_an_at_most_once_tool_to_a_person(is_async):
    held = threading.Event()

    def hang():
        """Hang."""
        held.wait(seconds(20))

    async def ahang():
        """Hang."""
        await asyncio.Event().wait()

    function = ahang if is_async else hang
    assert output_of(tool(name="hang", timeout=0.05)(function)) == "error: hang did not finish within 0.05 s"
    code(calling("hang"), tools=[tool(name="hang", timeout=0.05, effect="at_most_once")(function)])
    run = drive(make_run())
    held.set()
    assert "it did not finish within 0.05 s" in asked(run).text


def test_a_timeout_rolls_a_transactional_tool_back_and_tells_the_model(clock, ran, monkeypatch):
    held, over = threading.Event(), threading.Event()
    write = world.fence_append

    def watching(lease, entries, turns):
        ran.extend("late" for entry in entries if entry.name == "hang" and not entry.result.get("is_error"))
        return write(lease, entries, turns)

    patch_append(monkeypatch, watching)

    @tool(timeout=0.05, effect="transactional")
    def hang():
        ran.append("hang")
        held.wait(seconds(20))
        Group.objects.create(name="late")
        connections["default"].close = closing(over, connections["default"].close)
        return "done"

    code(calling("hang"), tools=[hang])
    run = drive(make_run(), dies="end")
    held.set()
    assert over.wait(seconds(20))
    run = take_over(clock, run)
    assert run.output == "error: hang did not finish within 0.05 s; rolled back"
    assert ran == ["hang"]
    assert not Group.objects.exists()
    assert len([row for row in journal_of(run) if row.name == "hang"]) == 1


def closing(over, close):
    """A connection's close, which the tools' threads call behind each call."""

    def told():
        close()
        over.set()

    return told


@pytest.mark.parametrize("goes", ["on", "wrong"])
def test_a_timeout_in_the_append_leaves_a_transactional_tool_to_another_lease(goes, clock, ran, monkeypatch):
    held, over = threading.Event(), threading.Event()
    write = world.fence_append

    @tool(timeout=0.3, effect="transactional")
    def work():
        ran.append("work")
        Group.objects.create(name=f"group {len(ran)}")
        if len(ran) == 1:
            connections["default"].close = closing(over, connections["default"].close)
        return "done"

    def slow(lease, entries, turns):
        if len(ran) == 1 and any(entry.name == "work" for entry in entries):
            held.wait(seconds(20))
            if goes == "wrong":
                raise ValueError
        return write(lease, entries, turns)

    patch_append(monkeypatch, slow)
    code(calling("work"), tools=[work])
    run = drive(make_run())
    assert (run.status, Group.objects.count()) == (Status.RUNNING, 0)
    held.set()
    assert over.wait(seconds(20))
    run = take_over(clock, run)
    assert run.output == "ok: done"
    assert [group.name for group in Group.objects.all()] == ["group 1" if goes == "on" else "group 2"]
    assert len([row for row in journal_of(run) if row.name == "work"]) == 1


def test_a_limit_that_is_no_number_above_0_is_reported(settings):
    def found():
        return [problem.msg for problem in check_settings() if problem.id == "ravi.E009"]

    given = settings.RAVI
    assert found() == []
    for name in ("MAX_TOOL_S", "MAX_TOOL_BYTES", "MAX_RESULT_BYTES", "TOOL_THREADS", "REQUEST_LINK_S"):
        for value in (0, -1, None, "many", True):
            settings.RAVI = {**given, name: value}
            assert found() == [f"RAVI[{name!r}] is {value!r}."]
