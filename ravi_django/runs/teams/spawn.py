"""Child runs: `ctx.spawn` and their rows. `slots.py` decides which of them begin at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ravi_django.agents.tools.delegate import CONVERSATION, check_memory
from ravi_django.conf import conf
from ravi_django.engine.db import claim_order, clock
from ravi_django.engine.journal.entries import Entry, NewTurn, Recorded
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.errors import AgentNotFoundError, CancellationError, InvalidInputError, SpawnDeniedError
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import Message
from ravi_django.kernel.middleware import HookEvent
from ravi_django.kernel.supervision import HistoryRetention, Priority, SpawnBudget
from ravi_django.models import Ask, InboxMessage, Run, Session, Status, uuid7
from ravi_django.runs.catalog import specs
from ravi_django.runs.teams import slots
from ravi_django.runs.teams.messages import (
    address_of,
    content_of,
    filled,
    find,
    metadata_of,
    misses_variables,
    raise_recorded,
    refuse,
    too_large,
)
from ravi_django.runs.wake import append_locked, require


async def spawn(
    ctx: RunState,
    target: AgentId,
    boot: Message | str | None,
    priority: Priority | None = None,
    memory: str = "none",
    *,
    asked: Callable[[RunHandle, dict[str, Any]], tuple[Entry, Ask]] | None = None,
) -> RunHandle:
    """Start a child run in a session of its own, on `boot`; without it the child waits for its first message. `asked`
    makes the rows of the ask that begins with it, from the child and the message. Spawns that begin at the same time
    share a transaction.

    Raises AgentNotFoundError. Raises, recorded, SpawnDeniedError when the tree is too deep or has too many live runs,
    and PermanentError when `boot` is larger than an input may be, or lacks a variable.
    """
    agent_id, checked_priority, remembers = address_of(target), _checked(priority), check_memory(memory) == CONVERSATION
    recorder, here, path = ctx.recorder, ctx.here(), ctx.path()
    row = await recorder.recall(path, "child.spawned", str(agent_id), content_of(boot))
    if row is not None:
        return _spawned(ctx, agent_id, row, boot)
    message = None if boot is None else filled(ctx, agent_id, boot, path)
    child_id, session_id = uuid7(), uuid7()
    supervision = ctx.meta.supervision
    retains = supervision is None or supervision.retention is HistoryRetention.PERMANENT
    entry = Entry("child.spawned", path, str(agent_id))
    entry.request = {"message": None if message is None else message["id"]}
    async with recorder.effect():
        runnable, refusal = specs.in_code(agent_id), None
        if runnable is None:
            runnable, refusal = await find(ctx, agent_id)
        metadata = metadata_of(ctx, runnable, boot)
        missing = misses_variables(runnable, metadata, "the message that boots it")
        refusal = refusal or too_large(message) or missing or _too_deep(ctx)
        if refusal is None:
            entry.result = {"run": str(child_id), "session": str(session_id)}
            if call_id := here.call_id or here.around:
                entry.result |= {"call_id": call_id, "is_call": bool(here.call_id)}
            recorder.state.has_dependents()
            child = make_child(
                recorder.lease,
                str(agent_id),
                child_id,
                session_id,
                priority=checked_priority,
                deadline=ctx.meta.deadline,
                allowed=ctx.spawn_budget,
                remembers=remembers and retains,
            )
            child.agent_version, child.metadata = runnable.version, metadata
            # Any process may have the child from the commit on.
            await recorder.stream.publisher.begun(recorder.stream.source.tree)
            write = Spawning(child, message, ctx.spawn_budget)
            try:
                if asked is None or message is None:
                    await recorder.record(entry, write)
                else:
                    begun, write.ask = asked(RunHandle(str(child_id), agent_id), message)
                    await recorder.record(begun, write, before=[entry])
            except (SpawnDeniedError, AgentNotFoundError) as error:
                refusal = error
        if refusal is not None:
            await refuse(ctx, entry, refusal)
    if message is not None:
        ctx.booted[str(child_id)] = message["id"]
        if not child.awaits_slot:
            recorder.wake([child_id])
    await ctx.hook(HookEvent.HANDOFF, target=str(agent_id), run=str(child_id))
    return RunHandle(str(child_id), agent_id)


def _spawned(ctx: RunState, agent_id: AgentId, row: Recorded, boot: Message | str | None) -> RunHandle:
    raise_recorded(row)
    ctx.booted[row.result["run"]] = row.request["message"]
    if isinstance(boot, Message) and row.request["message"]:  # the replay has made it again, with another id
        ctx.message_ids[boot.id] = row.request["message"]
    return RunHandle(row.result["run"], agent_id)


def _checked(priority: Any) -> Priority | None:
    try:
        return None if priority is None else Priority(priority)
    except ValueError:
        raise InvalidInputError(f"priority must be a Priority, not {priority!r}", field="priority") from None


def _too_deep(ctx: RunState) -> SpawnDeniedError | None:
    depth = ctx.recorder.lease.run.depth + 1
    if depth <= conf.MAX_DEPTH:
        return None
    return SpawnDeniedError(f"a run at depth {depth} would be below the limit of {conf.MAX_DEPTH}")


def make_child(
    lease: Lease,
    agent: str,
    child_id: UUID,
    session_id: UUID,
    *,
    priority: Priority | None,
    deadline: datetime | None,
    allowed: SpawnBudget | None,
    remembers: bool = False,
) -> Run:
    """The child's row, in a session of its own. Owner and tenant are its parent's, as are priority and deadline by
    default. Below the root, `allowed` applies to all runs below the child too. A child that `remembers` does so in the
    conversation of the root run; below one that does not, none does."""
    parent = lease.run
    conversation = parent.session_id if parent.parent_id is None else parent.session.memory_of
    session = Session(
        id=session_id,
        owner_id=parent.owner_id,
        tenant=parent.tenant,
        agent=agent,
        parent_session_id=parent.session_id,
        memory_of=conversation if remembers else None,
    )
    return Run(
        id=child_id,
        agent=agent,
        session=session,
        root_id=parent.tree_id,
        parent_id=parent.id,
        depth=parent.depth + 1,
        owner_id=parent.owner_id,
        tenant=parent.tenant,
        priority=parent.priority if priority is None else priority.value,
        deadline=deadline or parent.deadline,
        budget=None if parent.parent_id is None else slots.joined(slots.recorded(parent.budget), allowed),
    )


@dataclass(slots=True)
class Spawning:
    """A child that is about to be written: the `write` of its commit. See `write_spawn`."""

    child: Run
    message: dict[str, Any] | None
    allowed: SpawnBudget | None
    ask: Ask | None = None  # the parent's, for the reply to the message

    def __call__(self, lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
        return write_spawn(lease, entries, turns, spawning=[self])

    def joined(self, others: Sequence[Spawning]) -> Callable[..., int]:
        return partial(write_spawn, spawning=[self, *others])


class WriteSeparately(Exception):
    """These children cannot be written in one transaction: one of them is refused."""


def write_spawn(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, spawning: Sequence[Spawning]
) -> int:
    """Write a child run, its session, its message, the parent's rows and the ask that begins with it; or several of
    the parent's children. Without a message a child waits for one.

    `allowed` is the limit that the spawning agent sets: at the root for the whole tree, and kept on its row; below it
    for its own and lower spawns. A child without a free slot awaits one. The worker of a run whose slot a HIGH or
    CRITICAL child takes releases it after its next heartbeat.

    Raises SpawnDeniedError when the tree has too many live runs, AgentNotFoundError when the agent is disabled, and
    CancellationError when the parent is being cancelled: the cascade would miss this child. Raises WriteSeparately when
    one of several children is refused.
    """
    allowed, is_one = spawning[0].allowed, len(spawning) == 1
    limit = _to_remember(lease.run, allowed)

    def write(held: set[UUID]) -> None:
        if Run.objects.filter(id=lease.run_id, cancel_requested_at__isnull=False).exists():
            raise CancellationError("cancelled")
        for agent in {one.child.agent for one in spawning if one.child.agent_version is None}:
            if specs.is_disabled(agent):
                raise AgentNotFoundError(agent) if is_one else WriteSeparately
        _take_slots(lease.run, spawning, held)
        if limit is not None:
            Run.objects.filter(id=lease.run_id).update(budget=limit)
        _insert(spawning)

    for one in spawning:
        if one.message is None:
            one.child.status = Status.SUSPENDED
            one.child.waiting_on = [{"kind": "message", "name": "", "until": None}]
    # The root is locked too: two concurrent spawns must not both take the last slot.
    first = append_locked(lease, entries, turns, [lease.run.tree_id], write)
    if limit is not None:
        lease.run.budget = limit
    return first


def _take_slots(spawner: Run, spawning: Sequence[Spawning], held: set[UUID]) -> None:
    """Decide which of the children begin at once. Raises SpawnDeniedError, WriteSeparately and NotLocked."""
    tree = slots.Tree.of(spawner.tree_id, spawning[0].allowed if spawner.parent_id is None else None)
    live = len(tree.runs) + 1
    if live + len(spawning) > tree.most_live:
        if len(spawning) > 1:
            raise WriteSeparately
        why = f"the tree has {live} live runs, the limit is {tree.most_live}"
        raise SpawnDeniedError(f"{why}; wait for one to end, or raise MAX_TREE")
    displaced = [run_id for one in spawning if (run_id := tree.add(one.child)) is not None]
    require(displaced, held)
    Run.objects.filter(id__in=displaced).update(awaits_slot=True)
    for one in spawning:
        one.child.awaits_slot = tree.runs[one.child.id].awaits_slot


def _insert(spawning: Sequence[Spawning]) -> None:
    Session.objects.bulk_create([clock.stamp(one.child.session) for one in spawning])
    Run.objects.bulk_create([claim_order.stamp(one.child, ahead) for ahead, one in enumerate(spawning)])
    messages = [(one.child, one.message) for one in spawning if one.message is not None]
    InboxMessage.objects.bulk_create([clock.stamp(InboxMessage.of(run, body)) for run, body in messages])
    Ask.objects.bulk_create([clock.stamp(one.ask) for one in spawning if one.ask is not None])


def _to_remember(run: Run, allowed: SpawnBudget | None) -> dict[str, Any] | None:
    """The budget to store on the root's row, for promotions without the agent's code; None when it has it already."""
    if allowed is None or run.parent_id is not None:
        return None
    known = slots.recorded(run.budget)
    limit = slots.narrowed(known or allowed, allowed)
    return None if limit == known else {**(run.budget or {}), **limit.model_dump(mode="json")}
