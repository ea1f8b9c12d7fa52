"""Runs among themselves: spawn, ask, join, send, reply. A reply belongs to the ask of the message that it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from ravi_django.agents.delegate import INHERITED
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    AskOutcome,
    ChatMessage,
    ChatPayload,
    ControlPayload,
    DataPayload,
    HookEvent,
    InvalidInputError,
    KernelError,
    Message,
    NotFoundError,
    PermanentError,
    RunHandle,
    SpawnDeniedError,
)
from ravi_django.kernel.messages import PayloadBase
from ravi_django.models import Ask, Run, uuid7
from ravi_django.runtime import specs, store
from ravi_django.runtime.effects import Write
from ravi_django.runtime.entries import Entry, Recorded, storable
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.instructions import variables_of
from ravi_django.runtime.waits import check_name, moment

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

Duration = float | timedelta | None


# ------------------------------------------------------------------------------------------------------ spawn


async def spawn(ctx: DurableContext, target: AgentId, boot: Message | str | None) -> RunHandle:
    """Start a child run in a session of its own, on `boot`; without it the child waits for its first message.

    Raises AgentNotFoundError, and SpawnDeniedError, recorded, when the tree is too deep or has no room.
    """
    agent_id = _address(target)
    effects, path = ctx.effects, ctx._path()
    row = await effects.recall(path, "child.spawned", str(agent_id), None, None)
    if row is not None:
        return _spawned(ctx, agent_id, row, boot)
    message = None if boot is None else _body(ctx, agent_id, boot, path)
    child_id, session_id = uuid7(), uuid7()
    entry = Entry("child.spawned", path, str(agent_id))
    entry.request = {"message": None if message is None else message["id"]}
    async with effects.performing():
        found, refusal = await _find(ctx, agent_id)
        refusal = refusal or _misses_variables(ctx, found, boot) or _too_deep(ctx)
        if refusal is None:
            entry.result = {"run": str(child_id), "session": str(session_id)}
            effects.entangled = True  # first: the commit may stand though this task is cancelled over it
            child = store.make_child(effects.lease, str(agent_id), child_id, session_id)
            child.agent_version, child.metadata = found.version, _metadata_of(ctx, found, boot)
            try:
                await effects.record(entry, partial(store.spawn, child=child, message=message))
            except SpawnDeniedError as error:
                refusal = error
        if refusal is not None:
            await _refuse(ctx, entry, refusal)
    if message is not None:
        ctx.booted[str(child_id)] = message["id"]
        effects.wake([child_id])
    await ctx.hook(HookEvent.HANDOFF, target=str(agent_id), run=str(child_id))
    return RunHandle(str(child_id), agent_id)


def _spawned(ctx: DurableContext, agent_id: AgentId, row: Recorded, boot: Message | str | None) -> RunHandle:
    _raise_recorded(row)
    ctx.booted[row.result["run"]] = row.request["message"]
    if isinstance(boot, Message) and row.request["message"]:  # made anew by the replay, with another id
        ctx.message_ids[boot.id] = row.request["message"]
    return RunHandle(row.result["run"], agent_id)


_REFUSALS: dict[str, type[KernelError]] = {
    one.__name__: one for one in (SpawnDeniedError, AgentNotFoundError, NotFoundError, PermanentError)
}


async def _refuse(ctx: DurableContext, entry: Entry, error: KernelError) -> NoReturn:
    """What the code is told now, every replay tells it again, whatever is true by then."""
    entry.result = None
    entry.stored.clear()
    entry.error = {"type": type(error).__name__, "message": str(error)}
    await ctx.effects.record(entry)
    raise error


def _raise_recorded(row: Recorded) -> None:
    if row.error is None:
        return
    kind = _REFUSALS.get(row.error.get("type", ""), PermanentError)
    error = kind.__new__(kind)  # some make their message of other things
    Exception.__init__(error, row.error.get("message", ""))
    raise error


async def _find(ctx: DurableContext, agent_id: AgentId) -> tuple[specs.Found, KernelError | None]:
    """The agent that a run is to be made for, or why there can be none."""
    try:
        return await ctx.effects.database.call(specs.find, agent_id), None
    except AgentNotFoundError as error:
        return specs.Found(agent_id), error


def _metadata_of(ctx: DurableContext, found: specs.Found, message: Message | str | None) -> dict[str, Any]:
    """What a run that this message starts is given of it: values for the variables of a spec."""
    if found.version is None or not isinstance(message, Message):
        return {}
    given, defaults = message.metadata.get("variables"), message.metadata.get(INHERITED)
    if given is None and isinstance(defaults, Mapping):
        known = {**defaults, **variables_of(ctx.effects.lease.run.metadata)}
        given = {name: known[name] for name in found.spec.get("variables") or {} if known.get(name) is not None} or None
    return {} if given is None else {"variables": storable(given)}


def _misses_variables(ctx: DurableContext, found: specs.Found, boot: Message | str | None) -> PermanentError | None:
    try:
        found.check_variables(_metadata_of(ctx, found, boot))
    except InvalidInputError as error:
        return PermanentError(f"{found.address}: {error}; the message that boots it brings them")
    return None


def _too_deep(ctx: DurableContext) -> SpawnDeniedError | None:
    depth = ctx.effects.lease.run.depth + 1
    if depth <= conf.MAX_DEPTH:
        return None
    return SpawnDeniedError(f"a run at depth {depth} would be below the limit of {conf.MAX_DEPTH}")


# -------------------------------------------------------------------------------------------------------- ask


async def ask(
    ctx: DurableContext, target: RunHandle | AgentId, message: Message | str | None, timeout: Duration
) -> AskOutcome:
    """Send a message to a run and wait for its reply, or its end; to an agent's address: to a new child of it.
    Without a message (`join`) wait for the end alone."""
    if isinstance(target, AgentId):
        if message is None:
            raise InvalidInputError("join waits for a run; give it the handle that spawn returned", field="handle")
        boot = message
        target = await spawn(ctx, target, boot)
        message = _same_message(ctx, boot, target)
    effects, path = ctx.effects, ctx._path()
    row = await effects.recall(path, "ask", str(target.agent_id), None, None)
    if row is not None:
        _raise_recorded(row)
        return _outcome(row.result, target)
    begun = effects.journal.started(path)
    if begun is None:
        opened = await _open(ctx, path, target, message, timeout)
    else:
        opened = begun.request
    return await _settled(ctx, path, target, opened)


def _same_message(ctx: DurableContext, boot: Message | str, target: RunHandle) -> Message | str:
    """The message that the new child was booted with: the ask is of that very one."""
    if isinstance(boot, Message):
        return boot
    known = ctx.booted.get(target.run_id)
    return Message(id=known, target=target.agent_id, payload=_payload(boot)) if known else boot


async def _open(
    ctx: DurableContext, path: str, target: RunHandle, message: Message | str | None, timeout: Duration
) -> dict[str, Any]:
    effects = ctx.effects
    body = None if message is None else _body(ctx, target.agent_id, message, path)
    deadline = None if timeout is None else moment(ctx, timeout)
    cell = Ask(
        id=uuid7(),
        asker_id=effects.lease.run_id,
        generation=effects.lease.run.generation,
        path=path,
        target_id=_run_id(target),
        message_id="" if body is None else body["id"],
        deadline=deadline,
    )
    request = {"ask": str(cell.id), "run": target.run_id, "message": cell.message_id, "until": _iso(deadline)}
    entry = Entry("ask", path, str(target.agent_id), phase="started", request=request)
    async with effects.performing():
        if (refusal := await _unreachable(ctx, cell.target_id)) is not None:
            await _refuse(ctx, Entry("ask", path, entry.name), refusal)
        await effects.record(entry, partial(store.open_ask, ask=cell, message=body))
    effects.facts.asks[path] = cell  # what was known at once is its outcome
    if body is not None:
        effects.wake([cell.target_id])
    return request


async def _settled(ctx: DurableContext, path: str, target: RunHandle, opened: dict[str, Any]) -> AskOutcome:
    effects = ctx.effects
    until = datetime.fromisoformat(opened["until"]) if opened["until"] else None
    kind = "message" if opened["message"] else "child"
    while True:
        wait = Wait(kind, opened["run"], partial(_met, ctx, path, until), until)
        cell = await effects.wait(wait, path)
        entry = Entry("ask", path, str(target.agent_id))
        async with effects.performing():
            if isinstance(cell, Ask):
                entry.result = {"kind": str(cell.outcome), "result": cell.result}
                await effects.record(entry)
                return _outcome(entry.result, target)
            entry.result = {"kind": "timed_out", "result": None}
            try:
                await effects.record(entry, partial(store.time_out_ask, ask_id=UUID(opened["ask"])))
                return _outcome(entry.result, target)
            except store.NotDue as error:
                until = error.until or until
        await effects.refresh()  # an outcome has come after all, or people are given more time


def _met(ctx: DurableContext, path: str, until: datetime | None) -> Ask | bool | None:
    cell = ctx.effects.facts.asks.get(path)
    if cell is not None and cell.outcome is not None:
        return cell
    return True if until is not None and ctx.effects.present() >= until else None


def _outcome(result: dict[str, Any], target: RunHandle) -> AskOutcome:
    return AskOutcome(kind=result["kind"], result=result["result"], handle=target)


# ----------------------------------------------------------------------------------------------------- messages


async def send(ctx: DurableContext, target: AgentId | RunHandle, message: Message | str) -> None:
    """Deliver a message and go on. To an address: to the agent's active run in this session, or a new one. A
    ControlPayload acts on the run: `abort` cancels it, `resume` lifts a pause, anything else is a signal to it."""
    effects, path = ctx.effects, ctx._path()
    agent_id = target.agent_id if isinstance(target, RunHandle) else _address(target)
    row = await effects.recall(path, "msg.sent", str(agent_id), None, None)
    if row is not None:
        _raise_recorded(row)
        return
    control = message.payload if isinstance(message, Message) and isinstance(message.payload, ControlPayload) else None
    if control is not None:
        check_name(control.signal)
        if not isinstance(target, RunHandle):
            raise InvalidInputError("a control message goes to a run: give its handle", field="target")
    body = _body(ctx, agent_id, message, path, control=control is not None)
    entry = Entry("msg.sent", path, str(agent_id), request={"message": body["id"]})
    async with effects.performing():
        if isinstance(target, RunHandle):
            target_id = _run_id(target)
            refusal = await _unreachable(ctx, target_id)
            if refusal is None and control is not None:
                refusal = await _no_ancestor(ctx, target_id)
            if refusal is not None:
                await _refuse(ctx, entry, refusal)
            await effects.record(entry, _delivery(target_id, body, control, entry))
        else:
            found, refusal = await _find(ctx, agent_id)
            if refusal is not None:
                await _refuse(ctx, entry, refusal)
            run = _root_in_session(ctx, agent_id)
            run.agent_version, run.metadata = found.version, _metadata_of(ctx, found, message)
            await effects.record(entry, partial(store.deliver_to_agent, run=run, message=body))
            target_id = UUID(entry.result["run"])
    effects.wake([target_id])


def _delivery(target_id: UUID, body: dict[str, Any], control: ControlPayload | None, entry: Entry) -> Write:
    if control is None:
        return partial(store.deliver, target_id=target_id, message=body)
    entry.result = {"run": str(target_id), "control": control.signal}
    return partial(store.control, target_id=target_id, signal=control.signal, data=control.data, key=body["id"])


async def _no_ancestor(ctx: DurableContext, target_id: UUID) -> KernelError | None:
    mine = ctx.effects.lease.run_id
    if await ctx.effects.database.call(store.is_ancestor, mine, target_id):
        return None
    return PermanentError(f"run {mine} may not control run {target_id}: it is no ancestor of it")


def _root_in_session(ctx: DurableContext, agent_id: AgentId) -> Run:
    mine = ctx.effects.lease.run
    return Run(
        id=uuid7(),
        agent=str(agent_id),
        session_id=mine.session_id,
        owner_id=mine.owner_id,
        tenant=mine.tenant,
        priority=mine.priority,
    )


async def reply(ctx: DurableContext, message: Message, result: Any) -> None:
    """Answer the run that asked with this very message."""
    effects, path = ctx.effects, ctx._path()
    if await effects.recall(path, "ask.replied", message.id, None, None) is not None:
        return
    asker = RunHandle(str(message.reply_to), message.sender or ctx.agent_id)
    asker_id = _run_id(asker)
    value = storable(result)
    late = _body(ctx, asker.agent_id, Message(target=asker.agent_id, payload=_payload(result)), path)
    late["causation_id"] = message.id
    write = partial(store.reply, asker_id=asker_id, message_id=message.id, result=value, late=late)
    async with effects.performing():
        await effects.record(Entry("ask.replied", path, message.id, result={"result": value}), write)
    effects.wake([asker_id])


def _body(
    ctx: DurableContext, target: AgentId, message: Message | str, path: str, *, control: bool = False
) -> dict[str, Any]:
    """The message as an inbox holds it. Its id is the same on every replay; a reply to it comes to this run."""
    run = ctx.effects.lease.run
    if isinstance(message, Message) and isinstance(message.payload, ControlPayload) and not control:
        raise InvalidInputError("a control message is sent, not asked or booted with; use ctx.send", field="message")
    if isinstance(message, Message):
        message_id = ctx.message_ids.get(message.id, message.id)
        made = message
    else:
        message_id = hashlib.sha256(f"{run.id}:{run.generation}:{path}:message".encode()).hexdigest()[:32]
        made = Message(target=target, payload=_payload(message))
    filled = {
        "id": message_id,
        "sender": made.sender or ctx.agent_id,
        "correlation_id": made.correlation_id or ctx.session_id,
        "reply_to": made.reply_to or ctx.run_id,
    }
    body: dict[str, Any] = storable(made.model_copy(update=filled).model_dump(mode="json"))
    return body


def body_of(ctx: DurableContext, target: AgentId, value: Any) -> dict[str, Any]:
    """Anything as a message from this run: a Message as it is, a text as chat, other JSON as data."""
    made = value if isinstance(value, Message) else Message(target=target, payload=_payload(value))
    return _body(ctx, target, made, "")


def _payload(value: Any) -> PayloadBase:
    if isinstance(value, str):
        return ChatPayload(message=ChatMessage.of("user", value))
    return DataPayload(data=value if isinstance(value, dict) else {"value": value})


def _address(target: Any) -> AgentId:
    address = getattr(target, "id", target)
    if isinstance(address, AgentId):
        return address
    if isinstance(address, str):
        return AgentId.parse(address)
    raise InvalidInputError(f"the target is an agent's address, not {target!r}", field="target")


def _run_id(handle: RunHandle) -> UUID:
    try:
        return UUID(handle.run_id)
    except ValueError:
        raise InvalidInputError(f"{handle.run_id!r} is no run's id", field="target") from None


async def _unreachable(ctx: DurableContext, run_id: UUID) -> KernelError | None:
    """A run reaches those of its own owner and tenant."""
    if await ctx.effects.database.call(_is_reachable, ctx.effects.lease.run, run_id):
        return None
    return NotFoundError(f"there is no run {run_id} that this run may address")


def _is_reachable(run: Run, wanted: UUID) -> bool:
    return Run.objects.filter(id=wanted, owner_id=run.owner_id, tenant=run.tenant).exists()


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
