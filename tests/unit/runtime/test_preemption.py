"""A run that gives its slot away: it yields, it is driven by nobody, and it goes on where it was."""

import asyncio

import pytest

from ravi_django import register, signal, tool
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ControlPayload, Message
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run, Status
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.gates import Gate
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, auntil, code, drive, in_background, leased, make_run
from tests.support.trees import TAKER, ended, is_paused, paused, root, spawn, suspended
from tests.support.world import Engine, Entry, cancel

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = AgentId("test", "child")
LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL


def child(function, tools=()):
    register(CodeAgent(function, key="child", tools=tools))


def kinds_of(run):
    return [entry.kind for entry in journal_of(run)]


def tools_of(run):
    return [entry.request["arguments"]["name"] for entry in journal_of(run) if entry.kind == "tool.call"]


async def stay(ctx, inbox):
    return await ctx.sleep_until_signal("go")


async def aside(function, *args):
    return await asyncio.to_thread(lambda: in_background(function, *args).result(BOUND_S))


def paused_while_driven(story, tools=(), between=None):
    """Drive a LOW child of `story`; take its slot while its call of `hold` is open, tell its worker, and let the call
    go. Returns (the root's lease, the child, who took the slot)."""
    lease = root(limit=2)
    low = spawn(lease, LOW)

    async def main():
        gate = Gate()
        child(story, [gate.tool(), *tools])
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(low.id))
            await asyncio.wait_for(gate.began.wait(), BOUND_S)
            taker = await aside(spawn, lease, HIGH, TAKER)
            await aside(engine.heartbeat.beat)
            await auntil(lambda: engine.active[low.id].effects.stop is not None)
            if between is not None:
                await aside(between, low)
            gate.open.set()
            await asyncio.wait_for(driving, BOUND_S)
            await auntil(lambda: not engine._leases)
        finally:
            await engine.close(drain_s=0)
        return taker

    taker = asyncio.run(main())
    low.refresh_from_db()
    return lease, low, taker


async def three_steps(ctx, inbox):
    first = await ctx.tool("step", name="first")
    held = await ctx.tool("hold", name="held")
    last = await ctx.tool("step", name="last")
    return first.text + held.text + last.text


# ------------------------------------------------------------------------------------------------- yielding


@pytest.mark.sqlite
def test_a_paused_run_yields_at_its_next_check_and_goes_on_without_repeating_anything(clock, ran, step):
    lease, low, taker = paused_while_driven(three_steps, [step])

    assert (low.status, low.crashes, low.attempts, low.lease_owner) == (Status.PENDING, 0, 0, "")
    assert low.paused_at is not None
    assert (ran, tools_of(low)) == (["first"], ["first", "held"])
    assert world.claim(low.id, "w") is None
    ended(leased(taker))
    assert not is_paused(low)
    drive(low)
    assert (low.status, low.output, low.crashes) == (Status.COMPLETED, "firstheldlast", 0)
    assert (ran, tools_of(low)) == (["first", "last"], ["first", "held", "last"])
    assert [kind for kind in kinds_of(low) if "paused" in kind] == ["run.paused", "run.unpaused"]
    assert [entry.seq for entry in journal_of(low)] == list(range(1, len(journal_of(low)) + 1))
    frames, _ = world.events_page(lease.run_id)
    steps = [(one["step"], one["content"]) for one in frames if one["type"] == "progress" and one["run"] == str(low.id)]
    assert ("started", {"status": "unpaused"}) in steps
    assert [step for step, _ in steps].count("done") == 1


def test_it_gives_way_at_once_when_its_own_process_took_the_slot(clock, ran, step):
    """No heartbeat in between: the next is ten seconds away."""

    async def story(ctx, inbox):
        await ctx.spawn(ADDRESS, "low", priority=LOW)
        await ctx.tool("until_held")
        high = await ctx.spawn(AgentId("test", "high"), "high", priority=HIGH)
        await ctx.tool("open_gate")
        return (await ctx.join(high)).kind

    async def main():
        gate = Gate()

        @tool
        async def until_held() -> str:
            """Wait for the child."""
            await gate.began.wait()
            return ""

        @tool
        async def open_gate() -> str:
            """Let it go."""
            gate.open.set()
            return ""

        child(three_steps, [gate.tool(), step])
        register(CodeAgent(stay, key="high"))
        code(story, tools=[until_held, open_gate])
        engine = Engine()
        try:
            driving = engine.hint(run.id)
            await asyncio.wait_for(driving, BOUND_S)
            await auntil(lambda: not engine._leases)
        finally:
            await engine.close(drain_s=0.5)

    run = make_run(budget={"max_agents": 2})

    asyncio.run(main())

    low = Run.objects.get(agent="test/child")
    assert (low.status, ran) == (Status.PENDING, ["first"])
    assert is_paused(low)


def test_who_is_resumed_before_it_has_yielded_is_claimed_again_at_once(clock, ran, step):
    """The hint of the resumer came to nothing: it was still leased."""
    _, low, _ = paused_while_driven(three_steps, [step], between=lambda low: world.resume(low.id))

    assert (low.status, low.output) == (Status.COMPLETED, "firstheldlast")
    assert (ran, low.lease_epoch) == (["first", "last"], 2)


def test_a_check_tears_down_no_effect_that_is_open_elsewhere_in_the_run(clock, ran):
    @tool(effect="at_most_once")
    async def pay(name: str) -> str:
        """Pay."""
        for _ in range(50):
            await asyncio.sleep(0)
        ran.append(name)
        return name

    async def looking(ctx):
        while True:
            ctx.check()
            await asyncio.sleep(0)

    async def both(ctx):
        await ctx.tool("hold", name="held")
        await ctx.tool("pay", name="never")

    async def story(ctx, inbox):
        await asyncio.gather(looking(ctx), ctx.tool("hold", name="beside"), both(ctx))

    _, low, _ = paused_while_driven(story, [pay])

    assert (low.status, low.error, ran) == (Status.PENDING, None, [])
    assert sorted(tools_of(low)) == ["beside", "held"]


def test_a_paused_run_that_comes_to_its_end_before_it_looks_has_ended(clock):
    async def story(ctx, inbox):
        return (await ctx.tool("hold", name="held")).text

    _, low, _ = paused_while_driven(story)

    assert (low.status, low.output, low.paused_at) == (Status.COMPLETED, "held", None)


def test_a_cancellation_goes_before_the_pause(clock, ran, step):
    _, low, _ = paused_while_driven(three_steps, [step], between=lambda low: cancel(low.id, "enough"))
    if low.status == Status.PENDING:  # it had yielded by then, and any worker may take it to its end
        drive(low)

    assert (low.status, low.paused_at, ran) == (Status.CANCELLED, None, ["first"])


# ------------------------------------------------------------------------------------ waiting, dying, ending


def test_a_paused_run_that_waits_is_woken_but_not_driven(clock):
    child(stay)
    lease = root(limit=2)
    low = spawn(lease, LOW)
    drive(low)
    epoch = low.lease_epoch
    taker = spawn(lease, HIGH, TAKER)

    signal(low.id, "go", "now")
    run_until_idle()

    low.refresh_from_db()
    assert (low.status, low.lease_epoch) == (Status.PENDING, epoch + 1)  # of the pause, which nobody's lease covers
    assert is_paused(low)
    ended(leased(taker))
    run_until_idle()
    low.refresh_from_db()
    assert (low.status, low.output) == (Status.COMPLETED, "now")


def test_a_paused_timer_does_not_fire_until_the_run_is_resumed(clock):
    async def sleep(ctx, inbox):
        await ctx.sleep_until(clock.now.__class__.fromisoformat("2100-01-01T00:00:00+00:00"))
        return "awake"

    child(sleep)
    lease = root(limit=2)
    low = drive(spawn(lease, LOW))
    taker = spawn(lease, HIGH)
    Run.objects.filter(id=low.id).update(wake_at=clock.now)

    assert world.claim(low.id, "w") is None
    assert world.sweeper_sweep(lambda run_ids: [run_id for run_id in run_ids if run_id == low.id]).hinted == 1
    world.finish(leased(taker), Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="")
    world.resume_paused(lease.run_id)

    assert world.claim(low.id, "w") is not None


def test_a_takeover_does_not_drive_a_paused_run_on(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        return (await ctx.tool("step", name="last")).text

    child(story, [step])
    lease = root(limit=2)
    low = spawn(lease, LOW)
    drive(low, dies=1, written=True)
    taker = spawn(lease, HIGH)
    clock.advance(conf.LEASE_S + 1)

    drive(low)

    assert (low.status, low.lease_owner, ran) == (Status.PENDING, "", ["first"])
    assert is_paused(low)
    assert world.claim(low.id, "w") is None
    ended(leased(taker))
    drive(low)
    assert (low.status, low.output, ran) == (Status.COMPLETED, "last", ["first", "last"])


def pausing_another(abort=False):
    """A run that has spawned a LOW child, and a HIGH one that took its slot; those two."""

    async def story(ctx, inbox):
        await ctx.spawn(ADDRESS, "low", priority=LOW)
        high = await ctx.spawn(ADDRESS, "high", priority=HIGH)
        if abort:
            await ctx.send(high, Message(target=ADDRESS, payload=ControlPayload(signal="abort")))
        await ctx.sleep_until_signal("go")

    child(stay)
    code(story)
    run = drive(make_run(budget={"max_agents": 2}))
    return run, *Run.objects.filter(parent=run).order_by("id")


def test_watchers_see_at_once_who_took_the_slot():
    run, low, high = pausing_another()
    seen = [one for one in world.events_page(run.id)[0] if one.get("step") == "paused" and one["run"] == str(low.id)]
    taken_by = {"run": str(high.id), "agent": "test/child", "priority": "high"}
    assert [one["content"] for one in seen] == [{"status": "paused", "taken_by": taken_by}]


@pytest.mark.parametrize("status", ["pending", "suspended", "running"])
def test_the_journal_says_who_took_the_slot(status):
    lease = root(limit=2)
    low = spawn(lease, LOW)
    if status != "pending":
        its = leased(low)
    if status == "suspended":
        suspended(its)
    before = Run.objects.get(id=low.id)

    taker = spawn(lease, CRITICAL)

    low.refresh_from_db()
    row = journal_of(low)[-1]
    assert (row.kind, row.seq, row.epoch) == ("run.paused", before.next_seq, low.lease_epoch)
    taken_by = {"run": str(taker.id), "agent": "test/child", "priority": "critical"}
    assert row.result == {"taken_by": taken_by}
    assert low.lease_epoch == before.lease_epoch + (status != "running")  # who leases it writes on until it is told
    assert low.status == status
    if status == "running":
        assert world.append(its, [Entry("tool.call", "1", "step", result={})]) == row.seq + 1
        assert world.heartbeat("worker", [(low.id, its.epoch)]) == {low.id: "paused"}


# ------------------------------------------------------------------------------------------------ going on


def test_paused_runs_go_on_by_priority_and_then_by_age():
    lease = root(limit=5)
    runs = [spawn(lease, priority) for priority in (LOW, NORMAL, LOW, NORMAL)]
    takers = [leased(spawn(lease, CRITICAL)) for _ in runs]
    assert len(paused(lease)) == 4

    order = [ended(taker) for taker in takers]

    assert order == [[runs[1].id], [runs[3].id], [runs[0].id], [runs[2].id]]
    assert paused(lease) == []


def test_a_free_slot_is_for_one_that_can_use_it():
    lease = root(limit=3)
    blocked, waiting = spawn(lease, LOW), spawn(lease, LOW)
    error = {"type": "Odd", "message": "odd"}
    world.journal_block(leased(blocked), [Entry("run.blocked", "@blocked.1", error=error)], error=error)
    takers = [leased(spawn(lease, HIGH, TAKER)) for _ in range(2)]
    assert [run.id for run in paused(lease)] == [blocked.id, waiting.id]

    assert ended(takers[0]) == [waiting.id]
    assert ended(takers[1]) == []
    world.store_retry(blocked.id)

    assert world.resume_paused(lease.run_id) == [blocked.id]


def test_a_handoff_gives_the_slots_of_the_children_that_end_with_it_back(clock):
    async def handing(ctx, inbox):
        await ctx.spawn(AgentId("test", "other"), "x", priority=HIGH)
        await ctx.handoff(AgentId("test", "other"), "go on")

    register(CodeAgent(stay, key="other"))
    register(CodeAgent(handing, key="handing"))
    lease = root(limit=3)
    low, front = spawn(lease, LOW), spawn(lease, NORMAL, "test/handing")

    drive(front)

    assert (front.agent, Run.objects.get(parent=front).status) == ("test/other", Status.CANCELLED)
    assert kinds_of(low) == ["run.paused", "run.unpaused"]
    assert not is_paused(low)


def test_the_engine_resumes_at_the_end_of_a_child_and_hints_at_once(clock):
    async def done(ctx, inbox):
        return "done"

    register(CodeAgent(done, key="child"))
    lease = root(limit=2)
    low = spawn(lease, LOW)
    taker = spawn(lease, HIGH)
    hinted = []

    async def main():
        engine = Engine(on_promoted=hinted.append)
        try:
            await asyncio.wait_for(engine.drive(taker.id), BOUND_S)
        finally:
            await engine.close(drain_s=0)

    asyncio.run(main())

    assert hinted == [low.id]
    assert not is_paused(low)


def test_a_cancellation_from_outside_or_by_the_parent_resumes():
    for how in ("pending", "suspended"):
        lease = root(limit=2)
        low, taker = spawn(lease, LOW), spawn(lease, HIGH)
        if how == "suspended":
            suspended(leased(taker))
        cancel(taker.id, "enough")
        assert not is_paused(low)
    _, low, high = pausing_another(abort=True)
    assert (is_paused(low), high.status) == (False, Status.CANCELLED)


def test_the_sweep_resumes_what_a_crash_after_an_ending_has_left():
    lease = root(limit=2)
    low, taker = spawn(lease, LOW), leased(spawn(lease, HIGH))
    world.finish(taker, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="")
    full = root(limit=2)
    spawn(full, LOW), spawn(full, HIGH)
    hinted = []

    world.sweeper_sweep(hinted.extend)

    assert low.id in hinted
    assert (len(paused(lease)), len(paused(full))) == (0, 1)


@pytest.mark.parametrize("room", [True, False])
def test_an_ancestor_resumes_a_run_where_there_is_room_and_an_operator_in_any_case(room):
    lease = root(limit=2)
    low, taker = spawn(lease, LOW), leased(spawn(lease, HIGH))
    if room:
        world.finish(taker, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="")
    entry = Entry("msg.sent", "1", "test/child")

    world.asking_control(lease, [entry], target_id=low.id, signal="resume", data={}, key="k")

    assert is_paused(low) is not room
    assert world.resume(low.id) is not room
    assert not is_paused(low)
    assert world.resume(low.id) is False
    assert kinds_of(low) == ["run.paused", "run.unpaused"]


def test_a_paused_run_ends_with_its_parent():
    lease = root(limit=2)
    low = spawn(lease, LOW)
    spawn(lease, HIGH)
    driven = root(limit=2)
    running = leased(spawn(driven, LOW))
    spawn(driven, HIGH)

    cancel(lease.run_id, "enough")
    cancel(driven.run_id, "enough")

    low.refresh_from_db()
    assert (low.status, low.paused_at) == (Status.CANCELLED, None)
    world.requeue(running)  # it was told of the pause before the cancellation came
    assert world.claim(running.run_id, "another").run.cancel_requested_at is not None
