"""Runs among themselves: ask, join, send, reply. A reply belongs to the ask of the message that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ravi_django.agents.tools.delegate import DROP, LATE, check_memory
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.replay import ARGUMENTS, arguments_digest
from ravi_django.engine.lease.appender import Write
from ravi_django.engine.lease.lease_state import NotExpired, Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.sleeps import moment
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import AgentId, AskOutcome, InvalidInputError, KernelError, Message, NotFoundError, RunHandle
from ravi_django.kernel.json_values import storable
from ravi_django.models import Ask, Run, uuid7
from ravi_django.runs.teams import ask_rows
from ravi_django.runs.teams.messages import (
    address_of,
    content_of,
    filled,
    find,
    metadata_of,
    payload_of,
    raise_recorded,
    refuse,
    run_id_of,
    too_large,
)
from ravi_django.runs.teams.spawn import spawn

Duration = float | timedelta | None


async def ask(
    ctx: RunState,
    target: RunHandle | AgentId,
    message: Message | str | None,
    timeout: Duration,
    memory: str = "none",
) -> AskOutcome:
    """Send a message to a run and wait for its reply, or its end; to an agent's address: to a new child. Without a
    message (`join`) wait for the end alone."""
    check_memory(memory)
    begins: list[NewAsk] = []  # an ask that was written with its child
    if isinstance(target, AgentId):
        if message is None:
            raise InvalidInputError("join waits for a run; give it the handle that spawn returned", field="handle")
        boot = message

        def asked(child: RunHandle, body: dict[str, Any]) -> tuple[Entry, Ask]:
            begins.append(_opening(ctx, ctx.next_path(), child, boot, timeout, body))
            begins[0].entry.digests = {ARGUMENTS: arguments_digest(_arguments(child, boot))}
            return begins[0].entry, begins[0].cell

        target = await spawn(ctx, target, boot, memory=memory, asked=asked)
        message = _same_message(ctx, boot, target)
    recorder, path = ctx.recorder, ctx.path()
    row = await recorder.recall(path, "ask", str(target.agent_id), _arguments(target, message))
    if row is not None:
        raise_recorded(row)
        return _outcome(row.result, target)
    if begins:
        begins[0].announce(recorder, wakes=False)
        return await _settled(ctx, path, target, begins[0].entry.request)
    begun = recorder.journal.started(path)
    if begun is None:
        opened = await _open(ctx, path, target, message, timeout)
    else:
        opened = begun.request
    return await _settled(ctx, path, target, opened)


def _arguments(target: RunHandle | AgentId, message: Message | str | None = None) -> dict[str, Any]:
    """The arguments by which a replay recognizes the call."""
    return {"run": target.run_id if isinstance(target, RunHandle) else None, "message": content_of(message)}


def _same_message(ctx: RunState, boot: Message | str, target: RunHandle) -> Message | str:
    """The message that the child was booted with: the ask is for its reply."""
    if isinstance(boot, Message):
        return boot
    known = ctx.booted.get(target.run_id)
    return Message(id=known, target=target.agent_id, payload=payload_of(boot)) if known else boot


@dataclass(frozen=True, slots=True)
class NewAsk:
    """An ask that is about to begin: its journal row, its Ask row, and the message to deliver, if any."""

    entry: Entry
    cell: Ask
    body: dict[str, Any] | None

    @property
    def write(self) -> Write:
        return partial(ask_rows.open_ask, ask=self.cell, message=self.body)

    def announce(self, recorder: Recorder, *, wakes: bool = True) -> None:
        """After the commit: note an outcome that was known at once, and wake the run that got the question."""
        recorder.state.wake_state.asks.setdefault(self.cell.path, self.cell)  # or read since the commit
        if wakes and self.body is not None:
            recorder.wake([self.cell.target_id])


def opening(ctx: RunState, path: str, target: RunHandle, message: Message | str | None, timeout: Duration) -> NewAsk:
    body = None if message is None else filled(ctx, target.agent_id, message, path)
    begun = _opening(ctx, path, target, message, timeout, body)
    begun.entry.digests = {ARGUMENTS: arguments_digest(_arguments(target))}
    return begun


def _opening(
    ctx: RunState,
    path: str,
    target: RunHandle,
    message: Message | str | None,
    timeout: Duration,
    body: dict[str, Any] | None,
) -> NewAsk:
    recorder = ctx.recorder
    deadline = None if timeout is None else moment(ctx, timeout)
    cell = Ask(
        id=uuid7(),
        asker_id=recorder.lease.run_id,
        generation=recorder.lease.run.generation,
        path=path,
        target_id=run_id_of(target),
        message_id="" if body is None else body["id"],
        deadline=deadline,
    )
    request = {"ask": str(cell.id), "run": target.run_id, "message": cell.message_id, "until": None}
    if deadline is not None:
        request["until"] = deadline.isoformat()
    if isinstance(message, Message) and message.metadata.get(LATE) == DROP:
        request["late"] = DROP
    return NewAsk(Entry("ask", path, str(target.agent_id), phase="started", request=request), cell, body)


async def _open(
    ctx: RunState, path: str, target: RunHandle, message: Message | str | None, timeout: Duration
) -> dict[str, Any]:
    recorder, begun = ctx.recorder, opening(ctx, path, target, message, timeout)
    async with recorder.effect():
        if (refusal := await unreachable(ctx, begun.cell.target_id)) is not None:
            await refuse(ctx, Entry("ask", path, begun.entry.name), refusal)
        await recorder.record(begun.entry, begun.write)
    begun.announce(recorder)
    return dict(begun.entry.request)


async def outcome(ctx: RunState, path: str, target: RunHandle, opened: dict[str, Any]) -> AskOutcome:
    """The outcome of the ask that began at `path`; `opened` is its started row's request."""
    row = await ctx.recorder.recall(path, "ask", str(target.agent_id), _arguments(target))
    return await _settled(ctx, path, target, opened) if row is None else _outcome(row.result, target)


async def _settled(ctx: RunState, path: str, target: RunHandle, opened: dict[str, Any]) -> AskOutcome:
    recorder = ctx.recorder
    until = datetime.fromisoformat(opened["until"]) if opened["until"] else None
    kind = "message" if opened["message"] else "child"
    while True:
        wait = Wait(kind, opened["run"], partial(_met, ctx, path, until), until)
        cell = await recorder.waits.wait(wait, path)
        entry = Entry("ask", path, str(target.agent_id))
        async with recorder.effect():
            if isinstance(cell, Ask):
                entry.result = {"kind": str(cell.outcome), "result": cell.result}
                await recorder.record(entry)
                return _outcome(entry.result, target)
            entry.result = {"kind": "timed_out", "result": None}
            try:
                write = partial(ask_rows.time_out_ask, ask_id=UUID(opened["ask"]), late=opened.get("late"))
                await recorder.record(entry, write)
                return _outcome(entry.result, target)
            except NotExpired as error:
                until = error.until or until
        await recorder.refresh()  # an outcome has come, or people got more time


def _met(ctx: RunState, path: str, until: datetime | None) -> Ask | bool | None:
    cell = ctx.recorder.state.wake_state.asks.get(path)
    if cell is not None and cell.outcome is not None:
        return cell
    return True if until is not None and ctx.recorder.state.present() >= until else None


def _outcome(result: dict[str, Any], target: RunHandle) -> AskOutcome:
    return AskOutcome(kind=result["kind"], result=result["result"], handle=target)


async def send(ctx: RunState, target: AgentId | RunHandle, message: Message | str) -> None:
    """Deliver a message and continue. To an address: to the agent's active run in this session, or a new one. Progress
    for the run above is no message: it is a frame of the tree's stream."""
    recorder, path = ctx.recorder, ctx.path()
    agent_id = target.agent_id if isinstance(target, RunHandle) else address_of(target)
    row = await recorder.recall(path, "msg.sent", str(agent_id), _arguments(target, message))
    if row is not None:
        raise_recorded(row)
        return
    body = filled(ctx, agent_id, message, path)
    entry = Entry("msg.sent", path, str(agent_id), request={"message": body["id"]})
    async with recorder.effect():
        if body["payload"]["kind"] == "progress" and _is_above(ctx, target):
            if (excess := too_large(body)) is not None:
                await refuse(ctx, entry, excess)
            entry.result = {"progress": body["payload"]["progress"]}
            await recorder.record(entry)
            return
        if isinstance(target, RunHandle):
            target_id = run_id_of(target)
            if (refusal := await unreachable(ctx, target_id)) is not None:
                await refuse(ctx, entry, refusal)
            await recorder.record(entry, partial(ask_rows.deliver, target_id=target_id, message=body))
        else:
            runnable, refusal = await find(ctx, agent_id)
            if refusal is not None:
                await refuse(ctx, entry, refusal)
            this_run = recorder.lease.run
            run = Run(
                id=uuid7(),
                agent=str(agent_id),
                agent_version=runnable.version,
                session_id=this_run.session_id,
                owner_id=this_run.owner_id,
                tenant=this_run.tenant,
                priority=this_run.priority,
                metadata=metadata_of(ctx, runnable, message),
            )
            await recorder.record(entry, partial(ask_rows.deliver_to_agent, run=run, message=body))
            target_id = UUID(entry.result["run"])
    recorder.wake([target_id])


def _is_above(ctx: RunState, target: AgentId | RunHandle) -> bool:
    """Whether it is the run's parent, or a run that asked it."""
    parent = ctx.recorder.lease.run.parent
    if not isinstance(target, RunHandle):
        return parent is not None and str(target) == parent.agent
    return target.run_id in {str(parent and parent.id), *(message.reply_to for message in ctx.messages_given)}


async def reply(ctx: RunState, message: Message, result: Any) -> None:
    """Answer the run that asked with this message."""
    recorder, path = ctx.recorder, ctx.path()
    if await recorder.recall(path, "ask.replied", message.id, {"result": storable(result)}) is not None:
        return
    asker = RunHandle(str(message.reply_to), message.sender or ctx.agent_id)
    asker_id = run_id_of(asker)
    value = storable(result)
    links = {"correlation_id": message.correlation_id, "causation_id": message.id}
    late = filled(ctx, asker.agent_id, Message(target=asker.agent_id, payload=payload_of(result), **links), path)
    write = partial(ask_rows.reply, asker_id=asker_id, message_id=message.id, result=value, late=late)
    async with recorder.effect():
        await recorder.record(Entry("ask.replied", path, message.id, result={"result": value}), write)
    recorder.wake([asker_id])


async def unreachable(ctx: RunState, run_id: UUID) -> KernelError | None:
    """The refusal of a run that has another owner or tenant, or does not exist; None for one that this run may
    address."""
    if await ctx.recorder.database.call(is_reachable, ctx.recorder.lease.run, run_id):
        return None
    return NotFoundError(f"there is no run {run_id} that this run may address")


def is_reachable(run: Run, wanted: UUID) -> bool:
    return Run.objects.filter(id=wanted, owner_id=run.owner_id, tenant=run.tenant).exists()
