"""A cancellation reaches all that is below a run, whatever each does, and leaves no orphan, whatever comes between."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from ravi_django import register
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, CancellationError, IllegalTransitionError, LeaseLostError, Message
from ravi_django.models import TERMINAL, Ask, HumanRequest, Run, Session, Status, uuid7
from tests.support import world
from tests.support.cases import sizes
from tests.support.gates import Gate
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import (
    CodeAgent,
    code,
    drive,
    idle,
    in_background,
    leased,
    make_run,
    message,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.trees import spawn
from tests.support.world import Engine, Entry, cancel

pytestmark = pytest.mark.django_db(transaction=True)

HAND = AgentId("test", "hand")
KINDS = ("hold", "signal", "human", "ask")


def word_of(inbox: list[Message]) -> str:
    payload: Any = inbox[0].payload
    return str(payload.message.text)


async def hand(ctx: Any, inbox: Any) -> Any:
    """Does what it is told: holds a tool call, waits for a signal, a person or a child."""
    match word_of(inbox):
        case "hold":
            return (await ctx.tool("hold")).text
        case "signal":
            return await ctx.sleep_until_signal("never")
        case "human":
            return await ctx.ask_human("Shall I?")
        case "ask":
            return (await ctx.ask(HAND, "signal")).kind
        case _:
            return await lead(ctx)


async def lead(ctx: Any) -> str:
    """Asks a hand of each kind, and waits for all of them."""
    handles = [await ctx.spawn(HAND, kind) for kind in KINDS]
    outcomes = [await ctx.join(handle) for handle in handles]
    return " ".join(outcome.kind for outcome in outcomes)


async def root_story(ctx: Any, inbox: Any) -> str:
    return str((await ctx.ask(HAND, "lead")).kind)


def below(run: Run) -> list[Run]:
    return list(Run.objects.filter(root_id=run.id).order_by("id"))


def is_standing(run: Run) -> bool:
    """Whether the whole tree is there: a root, a lead, its four hands and the child of one."""
    return sorted(row.status for row in below(run)) == ["running", *["suspended"] * 5]


async def with_team(run: Run, what: Callable[[], None], *, drives: bool = False) -> None:
    """Let real workers build the tree, change it by `what` on a thread, and drive it until nothing below is live."""
    gate = Gate()
    register(CodeAgent(hand, key="hand", tools=[gate.tool()]))
    code(root_story)
    engine = Engine()
    try:
        engine.hint(run.id)
        await auntil_sync(lambda: is_standing(run))
        await asyncio.to_thread(lambda: in_background(what).result(BOUND_S))
        if drives:
            await engine.drive(run.id)
        await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(BOUND_S))
        await auntil_sync(lambda: not live(run))
    finally:
        await engine.close(drain_s=0)


async def auntil_sync(condition: Callable[[], bool]) -> None:
    """As `auntil`, for a condition that asks the database."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(lambda: in_background(condition).result(BOUND_S)):
            await asyncio.sleep(0.01)


def live(run: Run) -> list[Run]:
    return list(Run.objects.filter(root_id=run.id).exclude(status__in=TERMINAL))


def ended_as_cancelled(run: Run) -> None:
    """All of the tree below, and its asks; nobody reads that something failed."""
    rows = below(run)
    assert [row.status for row in rows] == [Status.CANCELLED] * len(rows)
    assert {row.error["type"] for row in rows} == {"Cancelled"}
    assert not any(row.lease_owner or row.waiting_on or row.awaits_slot for row in rows)
    outcomes = set(Ask.objects.filter(target__root_id=run.id).values_list("outcome", flat=True))
    assert outcomes == {"target_cancelled"}
    assert not HumanRequest.objects.filter(status="pending").exists()


@on_postgresql
def test_all_that_works_and_waits_below_a_run_is_cancelled_with_it() -> None:
    run = make_run()
    asyncio.run(with_team(run, lambda: cancel(run.id, "enough")))
    run.refresh_from_db()
    assert (run.status, run.error["message"]) == (Status.CANCELLED, "enough")
    ended_as_cancelled(run)
    ends = {f"run {row.id} has ended" for row in [run, *below(run)]}
    assert {row.error["message"] for row in below(run)} <= {"enough", *ends}


@on_postgresql
def test_what_is_pending_or_blocked_or_awaits_a_slot_below_ends_too() -> None:
    run = make_run()

    def set_aside() -> None:
        hands = list(Run.objects.filter(root_id=run.id, status=Status.SUSPENDED, depth=2).order_by("id"))
        tree = Run.objects.filter(root_id=run.id)
        changed = (
            tree.filter(id=hands[0].id).update(status=Status.BLOCKED, error={"type": "T", "message": "m"}),
            tree.filter(id=hands[1].id).update(status=Status.PENDING, awaits_slot=True),
            tree.filter(depth=3).update(status=Status.PENDING, wake_at="2100-01-01T00:00:00Z"),
            tree.filter(status=Status.RUNNING).update(awaits_slot=True),
        )
        assert changed == (1, 1, 1, 1)
        cancel(run.id, "enough")

    asyncio.run(with_team(run, set_aside))
    ended_as_cancelled(run)


@on_postgresql
def test_cancelling_in_the_middle_tells_the_parent_that_it_was_cancelled() -> None:
    run = make_run()
    asyncio.run(with_team(run, lambda: cancel(Run.objects.get(parent_id=run.id).id, "not that way")))
    idle(run)
    assert (run.status, run.output) == (Status.COMPLETED, "target_cancelled")
    ended_as_cancelled(run)


@on_postgresql
def test_the_roots_deadline_ends_the_tree() -> None:
    run = make_run(budget={"deadline_s": 600.0})

    def move_deadline() -> None:
        Run.objects.filter(id=run.id).update(budget={"deadline_s": 0.001}, wake_at="2026-01-01T00:00:00Z")
        assert world.claim(run.id, "nobody") is not None
        Run.objects.filter(id=run.id).update(lease_expires_at="2026-01-01T00:00:00Z")

    asyncio.run(with_team(run, move_deadline, drives=True))
    run.refresh_from_db()
    assert (run.status, run.error["type"]) == (Status.FAILED, "DeadlineExceeded")
    ended_as_cancelled(run)


def test_a_cancelled_run_that_cannot_be_driven_ends_all_the_same(clock: Any) -> None:
    code(root_story)
    run = make_run()
    leased(run)
    world.request_cancel(run.id, "enough")
    Run.objects.filter(id=run.id).update(crashes=conf.MAX_ATTEMPTS)
    clock.advance(conf.LEASE_S + 1)
    run = drive(run)
    assert (run.status, run.error) == (Status.CANCELLED, {"type": "Cancelled", "message": "enough"})


def test_the_loss_of_its_slot_does_not_keep_a_running_run_from_its_cancellation(clock: Any) -> None:
    run = make_run()
    lease = leased(run)
    Run.objects.filter(id=run.id).update(awaits_slot=True)
    world.request_cancel(run.id, "enough")
    world.requeue(lease)
    assert world.claim(run.id, "next") is not None


def child_of(parent: Run, root: Run, **fields: Any) -> Run:
    session = world.create_session(Session(agent="test/hand"))
    values = {"status": Status.SUSPENDED, **fields}
    return Run.objects.create(
        id=uuid7(), agent="test/hand", session=session, parent=parent, root=root, depth=parent.depth + 1, **values
    )


def ended(how: str) -> list[Entry]:
    return [Entry(f"run.{how}", "@end")]


def fail(lease: world.Lease) -> None:
    world.finish(lease, Status.FAILED, ended("failed"), error={}, entangled=True)


def locked_one_by_one(first: Run, second: Run, while_held: Callable[[], Any]) -> Any:
    """Lock two runs in the order of their ids, with time for `while_held`, in the background, to come to wait."""
    assert first.id < second.id
    with transaction.atomic():
        list(Run.objects.select_for_update().filter(id=first.id))
        other = in_background(while_held)
        until(somebody_waits_for_a_lock)
        list(Run.objects.select_for_update().filter(id=second.id))
    return other.result(BOUND_S)


@on_postgresql
@pytest.mark.parametrize("by", ["cancellation", "end"])
def test_a_cancellation_locks_what_is_below_in_the_order_of_the_ids(by: str) -> None:
    root = make_run()
    lease = leased(root) if by == "end" else None
    first = child_of(root, root)
    deep = child_of(first, root)  # between its uncle and its parent
    second = child_of(root, root)
    locked_one_by_one(deep, second, lambda: fail(lease) if lease else cancel(root.id, "enough"))
    assert {run.status for run in below(root)} == {Status.CANCELLED}


@on_postgresql
def test_a_run_that_ends_locks_who_asks_it_in_the_order_of_the_ids() -> None:
    root = make_run()
    asker = child_of(root, root)
    target = child_of(root, root, status=Status.PENDING)
    Ask.objects.create(asker=asker, path="1", target=target)
    lease = leased(target)
    locked_one_by_one(asker, target, lambda: world.finish(lease, Status.COMPLETED, [], output="done"))
    assert Ask.objects.get().outcome == "replied"
    asker.refresh_from_db()
    assert asker.status == Status.PENDING


@on_postgresql
def test_a_child_that_comes_between_is_cancelled_too() -> None:
    """The cancellation has read who is there, and waits: the child that is spawned meanwhile is found."""
    root = make_run()
    middle = child_of(root, root, status=Status.PENDING)
    lease = leased(middle)
    with transaction.atomic():
        list(Run.objects.select_for_update().filter(id__in=[root.id, middle.id]).order_by("id"))
        cancelling = in_background(cancel, root.id, "enough")
        until(somebody_waits_for_a_lock)
        spawn_below(lease)
    cancelling.result(BOUND_S)
    (spawned,) = Run.objects.filter(parent_id=middle.id)
    assert spawned.status == Status.CANCELLED


def spawn_below(lease: world.Lease) -> None:
    spawn(lease, agent="test/hand")


ROUNDS = pytest.mark.parametrize("rounds", sizes(5, 15))


def race(*works: Callable[[], Any]) -> list[BaseException]:
    """All at once, each on a connection of its own; what they raised that a race may not raise."""
    gate = threading.Barrier(len(works))

    def at_once(work: Callable[[], Any]) -> None:
        gate.wait(seconds(20))
        work()

    raised = [future.exception(20) for future in [in_background(at_once, work) for work in works]]
    lawful = (CancellationError, IllegalTransitionError, LeaseLostError)
    return [error for error in raised if error is not None and not isinstance(error, lawful)]


@on_postgresql
@ROUNDS
@pytest.mark.parametrize("at", ["root", "middle"])
def test_a_spawn_that_races_the_cancellation_leaves_no_orphan(at: str, rounds: int) -> None:
    for _ in range(rounds):
        root = make_run()
        root_lease, middle = leased(root), child_of(root, root, status=Status.PENDING)
        lease = leased(middle)
        cancelled = {"root": root, "middle": middle}[at]
        works = [partial(spawn_below, lease), partial(cancel, cancelled.id, "enough"), partial(spawn_below, root_lease)]
        assert race(*works) == []
        for parent in Run.objects.filter(root_id=root.id, cancel_requested_at__isnull=False):
            assert not Run.objects.filter(parent=parent, cancel_requested_at=None).exists()
        world.finish(root_lease, Status.CANCELLED, ended("cancelled"), error={}, entangled=True)
        all_are_told(root)


def all_are_told(root: Run) -> None:
    for row in live(root):
        assert row.status == Status.RUNNING and row.cancel_requested_at is not None


@on_postgresql
@ROUNDS
def test_a_tree_that_ends_in_every_place_at_once_waits_in_no_circle(rounds: int) -> None:
    for _ in range(rounds):
        root, wrong = end_everywhere()
        assert wrong == []
        root.refresh_from_db()
        assert root.status == Status.CANCELLED
        all_are_told(root)


def end_everywhere() -> tuple[Run, list[BaseException]]:
    """A tree whose runs ask each other, children older than their parents' siblings: all of it moves at once."""
    root = make_run()
    leads = [child_of(root, root, status=Status.PENDING) for _ in range(2)]
    hands = [child_of(lead, root, status=Status.PENDING) for lead in (leads[1], leads[0], leads[1], leads[0])]
    leases = [leased(run) for run in (*leads, *hands)]
    for asker, target in ((leads[0], hands[0]), (leads[1], hands[1]), (hands[3], hands[0]), (hands[0], hands[2])):
        Ask.objects.create(asker=asker, path=str(target.id), target=target)
    Ask.objects.create(asker=leads[0], path="lead", target=leads[1], message_id="m")

    def ask(lease: world.Lease, target: Run) -> None:
        cell = Ask(asker=lease.run, path="new", target=target)
        world.open_ask(lease, [Entry("ask", "new", phase="started")], ask=cell, message=None)

    def reply(lease: world.Lease) -> None:
        entry = Entry("ask.replied", "reply", "m", result={"result": 1})
        world.reply(lease, [entry], asker_id=leads[0].id, message_id="m", result=1, late=message())

    return root, race(
        lambda: cancel(root.id, "enough"),
        lambda: world.finish(leases[2], Status.COMPLETED, [], output="done"),
        lambda: fail(leases[0]),
        lambda: ask(leases[5], hands[2]),
        lambda: reply(leases[1]),
        lambda: spawn_below(leases[3]),
    )
