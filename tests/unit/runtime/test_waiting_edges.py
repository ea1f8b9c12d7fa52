"""Waiting at its edges: what a careful reader found could go wrong, and does not."""

import asyncio
from datetime import timedelta

import pytest

from ravi_django import register, signal, tool
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    BudgetExhaustedError,
    ChatMessage,
    ChatPayload,
    IllegalTransitionError,
    Message,
    NotFoundError,
    RunHandle,
)
from ravi_django.models import Agent, Ask, HumanRequest, InboxMessage, Run, Session, Status, uuid7
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, around_append, code, drive, idle, in_background, leased, make_run, message
from tests.support.world import DjangoHistoryProvider, retry

pytestmark = pytest.mark.django_db(transaction=True)

CHILD = AgentId("test", "child")


def child(function):
    register(CodeAgent(function, key="child"))


def refreshed(run):
    run.refresh_from_db()
    return run


def the_child(run):
    return Run.objects.filter(parent_id=run.id).latest("id")


@tool(effect="at_most_once")
async def pay() -> str:
    """Pay."""
    raise ValueError("who knows")


async def stay(ctx, inbox):
    return await ctx.sleep_until_signal("go")


def test_a_run_that_somebody_owns_spawns_children_of_the_same_owner(ann):
    async def answer(ctx, inbox):
        return "ok"

    async def story(ctx, inbox):
        return (await ctx.ask(CHILD, "x")).result

    child(answer)
    code(story)
    run = idle(make_run(session=world.create_session(Session(owner=ann)), owner=ann))

    assert run.output == "ok"
    assert (the_child(run).owner, the_child(run).session.owner) == (ann, ann)
    Agent.objects.update_or_create(address="test/child", defaults={"enabled": False})
    run = drive(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "AgentNotFoundError"), "switched off, it gets no child"
    assert not Run.objects.filter(parent_id=run.id).exists()


def test_a_child_whose_spawn_was_cancelled_over_its_commit_does_not_outlive_the_parent():
    async def story(ctx, inbox):
        task = asyncio.create_task(ctx.spawn(CHILD, "x"))
        await committing.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise ValueError("and on")

    async def watched(engine, entries):
        engine.loop.call_soon(committing.set)

    committing = asyncio.Event()
    child(stay)
    code(story)

    run = drive(make_run(), setup=around_append(before=watched))

    assert run.status == Status.FAILED
    assert the_child(run).status == Status.CANCELLED


def test_a_mismatch_in_a_background_task_blocks_a_run_whose_main_task_waits_for_it(step):
    def story(before):
        async def code_of(ctx, inbox):
            done = asyncio.Event()

            async def background():
                await before(ctx)
                await ctx.tool("step", name="a")
                done.set()

            task = asyncio.create_task(background())
            await done.wait()
            await task
            await ctx.sleep_until_signal("go")

        return code_of

    async def now(ctx):
        ctx.now()

    async def log(ctx):
        await ctx.log("changed")

    code(story(now), tools=[step])
    run = drive(make_run())
    code(story(log), tools=[step])
    signal(run.id, "go")

    run = drive(run)

    assert (run.status, run.error["type"]) == (Status.BLOCKED, "DeterminismError")


def test_a_run_that_waits_already_keeps_to_the_old_branch_before_its_wait(clock):
    async def old(ctx, inbox):
        await ctx.sleep_until(timedelta(seconds=10))
        return "old"

    async def new(ctx, inbox):
        if ctx.patched("ask first"):
            await ctx.ask(CHILD, "may I?")
        await ctx.sleep_until(timedelta(seconds=10))
        return "old"

    child(stay)
    code(old)
    run = drive(make_run())
    code(new)
    clock.advance(11)

    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "old")


def test_a_message_for_a_run_that_ends_at_that_moment_starts_another(monkeypatch):
    session = world.create_session(Session())
    old = make_run("test/child", session=session)
    lock = world.asking_lock

    def late(run_ids):
        if old.id in run_ids and refreshed(old).status == Status.PENDING:
            in_background(world.request_cancel, old.id, "just now").result(BOUND_S)
        lock(run_ids)

    async def story(ctx, inbox):
        await ctx.send(CHILD, "hello")

    child(stay)
    code(story)
    world.patch(monkeypatch, "asking_lock", late)

    drive(make_run(session=session))

    (delivered,) = InboxMessage.objects.filter(body__payload__message__content__0__text="hello")
    assert delivered.run_id != old.id
    assert Run.objects.get(id=delivered.run_id).status == Status.PENDING


def test_an_ask_that_people_hold_up_does_not_spin(clock):
    async def story(ctx, inbox):
        return (await ctx.ask(CHILD, "x", timeout=60)).kind

    child(stay)
    code(story)
    run = drive(make_run())
    request = HumanRequest.objects.create(
        run=the_child(run), path="1", kind="uncertain", created_at=clock.now + timedelta(seconds=59.98)
    )
    clock.advance(60)

    run = drive(run)

    assert (run.status, run.wake_at) == (Status.SUSPENDED, clock.now + timedelta(seconds=conf.SWEEP_S))
    HumanRequest.objects.filter(id=request.id).update(status="cancelled", answered_at=clock.now)
    clock.advance(3600)
    assert drive(run).output == "timed_out"


def test_a_read_of_the_history_is_no_idleness(step):
    async def story(ctx, inbox):
        async def work():
            await DjangoHistoryProvider().get(ctx.agent_id, ctx.session_id)
            return (await ctx.tool("step", name="done")).text

        stop = asyncio.create_task(ctx.sleep_until_signal("stop"))
        done, _ = await asyncio.wait([stop, asyncio.create_task(work())], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return [task.result() for task in done]

    code(story, tools=[step])

    run = drive(make_run(session=world.create_session(Session(agent="test/code", next_position=3))))

    assert run.output == '["done"]'


def test_a_big_reply_that_came_before_the_ask_is_whole():
    async def answer(ctx, inbox):
        await ctx.reply(inbox[0], "A" * 100_000)
        await ctx.sleep_until_signal("go")

    async def story(ctx, inbox):
        boot = Message(target=CHILD, payload=ChatPayload(message=ChatMessage.of("user", "q")))
        handle = await ctx.spawn(CHILD, boot)
        await ctx.sleep_until_signal("go")
        return len((await ctx.ask(handle, boot)).result)

    child(answer)
    code(story)
    run = drive(make_run())
    drive(the_child(run))
    signal(run.id, "go")

    assert drive(run).output == "100000"


def test_a_cycle_is_seen_through_a_run_that_has_just_been_woken():
    async def first(ctx, inbox):
        return (await ctx.ask(RunHandle(str(second.id), CHILD), "q")).kind

    async def back(ctx, inbox):
        await ctx.sleep_until_signal("go")
        found.append((await ctx.ask(RunHandle(str(run.id), AgentId("test", "code")), "r")).result)

    found = []
    code(first)
    child(back)
    second = drive(make_run("test/child"))
    run = drive(make_run())
    signal(run.id, "noise")
    assert refreshed(run).status == Status.PENDING
    signal(second.id, "go")

    drive(second)

    assert found[0]["type"] == "Cycle"


def test_an_undecided_effect_is_decided_before_a_new_generation_begins(clock):
    async def story(ctx, inbox):
        if ctx.recorder.lease.run.generation:
            return "second"
        task = asyncio.create_task(ctx.tool("pay"))
        await ctx.sleep_until_signal("go")
        await ctx.continue_as_new()
        await task

    code(story, tools=[pay])
    run = drive(make_run())
    signal(run.id, "go")
    run_until_idle()
    run = refreshed(run)
    assert (run.generation, run.status) == (0, Status.SUSPENDED)

    world.human_resolve(HumanRequest.objects.get(run=run, status="pending").id, "happened", result="paid")
    run_until_idle()

    assert (refreshed(run).generation, run.output) == (1, "second")


def test_a_reply_to_the_former_generation_is_a_message_to_the_present_one():
    async def answer(ctx, inbox):
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], {"late": True})
        await ctx.sleep_until_signal("never")

    async def story(ctx, inbox):
        if not ctx.recorder.lease.run.generation:
            task = asyncio.create_task(ctx.ask(CHILD, "q"))
            await ctx.sleep_until_signal("go")
            await ctx.continue_as_new()
            await task
        seen.append([getattr(one.payload, "data", None) for one in inbox])
        await ctx.sleep_until_signal("done")

    seen = []
    child(answer)
    code(story)
    run = drive(make_run())
    run_until_idle()
    for run_id, name in ((run.id, "go"), (the_child(run).id, "go"), (run.id, "done"), (run.id, "done")):
        signal(run_id, name)
        run_until_idle()

    assert refreshed(run).status == Status.COMPLETED
    assert seen[-1] == [{"late": True}]
    assert Ask.objects.get().outcome == "replied"


def test_a_budget_that_parallel_calls_have_used_up_fails_no_replay():
    async def story(ctx, inbox):
        said = [ctx.llm([ChatMessage.of("user", text)]) for text in "ab"]
        told = await asyncio.gather(*said, return_exceptions=True)  # whichever of the two was first
        assert [isinstance(one, BudgetExhaustedError) for one in told].count(True) == 1
        await ctx.sleep_until_signal("go")
        return "fine"

    code(story, model=ScriptedModel("yes", loop=True))
    run = drive(make_run(budget={"max_turns": 1}))
    signal(run.id, "go")

    assert drive(run).output == "fine"


def test_what_the_code_was_told_is_told_it_again(clock):
    ghost = uuid7()

    async def story(ctx, inbox):
        try:
            await ctx.send(RunHandle(str(ghost), CHILD), "hello")
            got = "sent"
        except NotFoundError:
            got = "nobody there"
        await ctx.sleep_until_signal("go")
        return got

    child(stay)
    code(story)
    run = drive(make_run())
    session = world.create_session(Session(agent="test/child"))
    world.create_run(Run(id=ghost, agent="test/child", session=session), message("hi", "test/child"))
    signal(run.id, "go")

    assert drive(run).output == "nobody there"
    assert InboxMessage.objects.filter(run_id=ghost).count() == 1


@pytest.mark.parametrize("is_leased", [False, True], ids=["idle", "still being cancelled"])
def test_a_retried_run_spawns_the_children_anew_that_its_failure_took_along(clock, is_leased):
    broken = [True]

    async def story(ctx, inbox):
        handle = await ctx.spawn(CHILD, "job")
        await ctx.sleep_until_signal("on")
        if broken:
            raise ValueError("boom")
        return (await ctx.join(handle)).result

    child(stay)
    code(story)
    run = drive(make_run())
    if is_leased:
        leased(the_child(run), "another")
    signal(run.id, "on")
    run = drive(run)
    lost = the_child(run)
    assert (run.status, lost.status) == (Status.FAILED, Status.RUNNING if is_leased else Status.CANCELLED)
    broken.clear()

    if is_leased:  # it may be about to act, or to complete: another beside it would act twice
        with pytest.raises(IllegalTransitionError, match="still being cancelled; retry in a moment"):
            retry(run.id)
        clock.advance(conf.LEASE_S + 1)
        run_until_idle()
    retry(run.id)
    run_until_idle()
    assert the_child(run).id != lost.id
    signal(the_child(run).id, "go", "at last")
    run_until_idle()

    assert refreshed(run).output == "at last"
