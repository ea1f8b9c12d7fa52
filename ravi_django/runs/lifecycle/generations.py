"""The next generation of a run: the same run with an empty journal, continued as new or handed over to another
agent, which answers its callers.

Refusals of a handoff that are known in advance are recorded before the agent's last turn is stored. "The session has an
active run of the target" is known only at the commit: it is recorded instead of the handoff, and the replay raises it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, Subquery
from django.db.models.functions import Coalesce

from ravi_django.agents.messages import HANDED, SHARED, TASK, message_to_chat
from ravi_django.agents.tools.delegate import INHERITED
from ravi_django.calls.tools import uncertain
from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.engine.journal.append import append_rows, store_big_values
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.inbox import as_depth
from ravi_django.engine.lease.lease_state import HANDOFF, Handoff, Stop, Wait
from ravi_django.engine.lease.state import ALONE, RunState
from ravi_django.kernel.errors import InvalidInputError, KernelError, PermanentError
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.messages import ControlPayload, Message
from ravi_django.kernel.middleware import HookEvent
from ravi_django.models import Agent, Ask, AskKind, InboxMessage, JournalEntry, Run, Session, Turn, uuid7
from ravi_django.people.rows import close_requests, note_closed
from ravi_django.runs.catalog import specs
from ravi_django.runs.catalog.prompts import variables_of
from ravi_django.runs.lifecycle.endings import cancel_children
from ravi_django.runs.sessions import active_root, lock_session, promote
from ravi_django.runs.teams import messages, slots
from ravi_django.runs.wake import RELEASED, append_locked, locking, ready

Closing = Callable[[], Awaitable[None]]


async def hand_over(
    ctx: RunState,
    target: AgentId | str,
    task: Message | str | None,
    answers: Message | None,
    closing: Closing | None,
    context: bool = True,
) -> None:
    """End this agent's part of the run, see `RunContext.handoff`. Never returns."""
    agent_id, recorder = messages.address_of(target), ctx.recorder
    _check(task)
    if _inside_a_tool():
        raise InvalidInputError(
            f"a tool cannot hand over to {agent_id} itself: its call would have no result. Return "
            "FinishAgentResult(target, task) from it",
            field="target",
        )
    answered, left = _split(ctx, answers)
    path = ctx.path()
    row = await recorder.recall(path, HANDOFF, str(agent_id), messages.content_of(task))
    if row is not None:
        messages.raise_recorded(row)
    if recorder.journal.replaying:  # the next journal begins empty: let the code replay all recorded calls first
        await recorder.waits.wait(Wait("handoff", str(agent_id), lambda: True))
    async with recorder.effect():
        agent, refusal = await messages.find(ctx, agent_id)
        metadata = _metadata(ctx, agent, task)
        metadata.pop(ALONE, None)
        metadata |= {} if context else {ALONE: True}
        body = _body(ctx, agent_id, task, answered, path)
        missing = messages.misses_variables(agent, metadata, "the task that it is handed")
        refusal = refusal or (messages.too_large(body) if task else None) or missing or await _too_often(ctx)
        if refusal is not None:
            await messages.refuse(ctx, Entry(HANDOFF, path, str(agent_id)), refusal)
    if recorder.state.left_open():  # decide uncertain effects before the journal ends
        await uncertain.decide_left(ctx)
    if closing is not None:
        await closing()
    await ctx.hook(HookEvent.HANDOFF, target=str(agent_id), run=ctx.run_id)
    messages_left = [body, *(storable(_as_handed(ctx, m).to_json()) for m in left)]
    depth = as_depth(ctx.publication_depth, len(messages_left))
    handed = Handoff(path, str(agent_id), agent.version, tuple(messages_left), metadata, depth)
    await recorder.waits.end(Stop(Stop.Kind.HANDOFF, handoff=handed))


def _check(task: Any) -> None:
    if isinstance(task, Message) and isinstance(task.payload, ControlPayload):
        raise InvalidInputError("a control message is no task; use ctx.send", field="task")
    if not (task is None or isinstance(task, Message) or (isinstance(task, str) and task.strip())):
        raise InvalidInputError(f"task is a text or a Message, or None for the present one, not {task!r}", field="task")


def _inside_a_tool() -> bool:
    scope = paths.current()
    return scope is not None and "/" in scope.prefix


def _split(ctx: RunState, answers: Message | None) -> tuple[Message, list[Message]]:
    """The message whose answer is handed over, and the later messages of the inbox without a reply."""
    messages_read = ctx.messages_given
    if answers is None:
        index = next((index for index, message in enumerate(messages_read) if message.id not in ctx.answered), 0)
    else:
        index = next((index for index, message in enumerate(messages_read) if message.id == answers.id), -1)
    if not messages_read or index < 0:
        raise InvalidInputError(
            "answers must be a message of the run's inbox; this run has no message to answer", field="answers"
        )
    return messages_read[index], [message for message in messages_read[index + 1 :] if message.id not in ctx.answered]


def _body(ctx: RunState, target: AgentId, task: Message | str | None, answered: Message, path: str) -> dict[str, Any]:
    """The task as the inbox holds it. It takes the id of the message that it answers, so that a reply finds the ask."""
    if task is None:
        handed = _as_handed(ctx, answered).model_copy(update={"target": target})
        return dict(storable(handed.to_json()))
    if isinstance(task, Message):
        made, message_id = task, task.id
    else:
        made = Message(target=target, payload=messages.payload_of(task))
        message_id = messages.id_at(ctx.recorder.lease.run, path)
    filled = {
        "id": answered.id if answered.reply_to else message_id,
        "target": target,
        "sender": answered.sender,
        "reply_to": answered.reply_to,
        "correlation_id": made.correlation_id or answered.correlation_id or ctx.conversation,
        "causation_id": answered.causation_id if answered.reply_to else answered.id,
        "metadata": {**answered.metadata, **made.metadata, HANDED: TASK},
    }
    return dict(storable(made.model_copy(update=filled).to_json()))


def _as_handed(ctx: RunState, message: Message) -> Message:
    """Marked if the session has it as a shared turn."""
    if message_to_chat(message).digest not in ctx.shared_by:
        return message
    return message.model_copy(update={"metadata": {**message.metadata, HANDED: SHARED}})


def _metadata(ctx: RunState, agent: specs.RunnableAgent, task: Message | str | None) -> dict[str, Any]:
    """The run's metadata, with values for the variables that the target's spec declares: those of the run so far, kept
    for later agents too, and those of the task."""
    metadata: dict[str, Any] = dict(ctx.recorder.lease.run.metadata or {})
    inherited = metadata.get(INHERITED)
    known = {**(inherited if isinstance(inherited, Mapping) else {}), **variables_of(metadata)}
    if isinstance(task, Message):
        known |= variables_of(task.metadata)
    if agent.version is None or not known:
        return metadata
    declared = agent.spec.get("variables") or {}
    metadata["variables"] = {name: known[name] for name in declared if known.get(name) is not None}
    return {**metadata, INHERITED: storable(known)}


async def _too_often(ctx: RunState) -> KernelError | None:
    run = ctx.recorder.lease.run
    times = await ctx.recorder.database.call(handoffs, run.id) if run.generation else 0
    if times < conf.MAX_DEPTH:
        return None
    return PermanentError(f"the run was handed over {times} times already, the limit is {conf.MAX_DEPTH}; answer it")


CONTINUED = "run.continued"  # the kind of its row


def continue_as_new(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    state: Any,
    read_upto: int,
) -> int:
    """Close the generation and give the run back with an empty journal and `state`. Unread messages and signals, open
    children and asks stay; open requests to people are closed; sums, limits and `seq` continue. An agent that is a row
    continues with the newest version of its spec."""
    inbox_from = max(lease.run.inbox_from, read_upto)
    for entry in entries[-1:]:
        note_closed(lease.run_id, entry)

    def begin(held: set[UUID]) -> None:
        begin_anew(lease, inbox_from, held, state=state, **_newest_version(lease.run))

    return append_locked(lease, entries, turns, (), begin)


def begin_anew(lease: Lease, inbox_from: int, held: set[UUID], **changes: Any) -> None:
    """Begin the next generation of a run that the caller's transaction has fenced, with the inbox above `inbox_from`
    and `changes` of the run. Raises NotLocked."""
    Run.objects.filter(id=lease.run_id).update(
        generation=F("generation") + 1,
        inbox_from=inbox_from,
        read_upto=inbox_from,
        turn_from=F("next_turn"),
        **ready(),
        **RELEASED,
        **changes,
    )
    close_requests(lease.run, held)


def _newest_version(run: Run) -> dict[str, Any]:
    """An empty journal cannot contradict an edited spec. Without the agent's row the run keeps its version."""
    if run.agent_version is None:
        return {}
    newest = Agent.objects.filter(address=run.agent, source=Agent.Source.ADMIN).values("version")
    return {"agent_version": Coalesce(Subquery(newest), F("agent_version"))}


class SessionBusy(Exception):
    """The session has another active run of the agent to hand over to: nothing was written."""


def write_handoff(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    handoff: Handoff,
) -> tuple[int, list[UUID]]:
    """Close the generation and give the run back as the other agent's. Unread messages (after the handed-over ones) and
    signals stay, but not the first agent's state; sums, limits and `seq` continue. The first agent's children are
    cancelled, its asks and requests closed. The session's next queued run of it is promoted.

    Returns the seq of the first row, and the runs to hint. Raises SessionBusy.
    """
    run = lease.run
    note_closed(run.id, entries[-1])
    store_big_values(entries)

    def give(held: set[UUID]) -> tuple[int, list[UUID]]:
        first = append_rows(lease, entries, turns)
        reason = f"run {run.id} was handed over to {handoff.agent}"
        hints = cancel_children(run, reason, held)
        _close_asks(run, reason)
        if run.parent_id is None:  # lock runs before sessions; now no run of either agent begins in this session
            lock_session(run)
            if _is_occupied(run, handoff.agent):
                raise SessionBusy
        unread, upto = _unread(run)
        Turn.objects.filter(session_id=run.session_id, run_id=run.id, agent=None).update(agent=run.agent)
        begin_anew(
            lease,
            upto,
            held,
            state=None,
            agent=handoff.agent,
            agent_version=handoff.version,
            metadata=handoff.metadata,
            crashes=0,
            attempts=0,
        )
        InboxMessage.objects.bulk_create(
            # The body keeps its id, which finds the ask of a reply. The row of a second delivery needs another id.
            InboxMessage(run=run, message_id=uuid7().hex, name=name, body=body)
            for name, body in [*(("", body) for body in handoff.messages), *unread]
        )
        Session.objects.filter(id=run.session_id).update(agent=handoff.agent, updated_at=clock.now())
        return first, [*hints, *promote(run), *slots.promote(run.tree_id, held)]

    return locking({run.id, run.tree_id}, give)


def handoffs(run_id: UUID) -> int:
    """The number of handoffs of the run."""
    return JournalEntry.objects.filter(run_id=run_id, kind=HANDOFF, error__isnull=True).count()


def begun_by(run: Run) -> JournalEntry | None:
    """The row that the run's present generation begins after: a handoff, or one that continued as new."""
    rows = JournalEntry.objects.filter(run_id=run.id, kind__in=(HANDOFF, CONTINUED), error__isnull=True)
    return rows.order_by("-seq").first()


def _close_asks(run: Run, reason: str) -> None:
    """No code waits for their outcomes any more: a late reply is not a message to the next agent."""
    Ask.objects.filter(asker_id=run.id, outcome=None).update(
        outcome=AskKind.TARGET_CANCELLED, result={"type": "HandedOver", "message": reason}, settled_at=clock.now()
    )


def _is_occupied(run: Run, agent: str) -> bool:
    return active_root(Run(session_id=run.session_id, agent=agent)).exclude(id=run.id).exists()


def _unread(run: Run) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """The messages that no code has read (name, body), and the id of the run's last message. A new delivery waits
    for the run's lock."""
    upto = Run.objects.values_list("read_upto", flat=True).get(id=run.id)
    rows = list(InboxMessage.objects.filter(run_id=run.id, id__gt=upto).order_by("id"))
    return [(row.name, {"id": row.message_id, **row.body}) for row in rows], rows[-1].id if rows else upto
