"""Hand a run over: another agent continues as the same run, and answers its callers.

Refusals that are known in advance are recorded before the agent's last turn is stored. "The session has an active run
of the target" is known only at the commit: it is recorded instead of the handoff, and the replay raises it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ravi_django.agents.tools.delegate import INHERITED
from ravi_django.conf import conf
from ravi_django.kernel.errors import InvalidInputError, KernelError, PermanentError
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.messages import ControlPayload, Message
from ravi_django.kernel.middleware import HookEvent
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.catalog.prompts import variables_of
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.lease import paths
from ravi_django.runtime.lease.gate import HANDOFF, Handoff, Stop, Wait
from ravi_django.runtime.lease.inbox import trail_of
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.lifecycle import generations
from ravi_django.runtime.teams import messages
from ravi_django.runtime.tools import uncertain

Closing = Callable[[], Awaitable[None]]


async def hand_over(
    ctx: RunState, target: AgentId | str, task: Message | str | None, answers: Message | None, closing: Closing | None
) -> None:
    """End this agent's part of the run, see `RunContext.handoff`. Never returns."""
    agent_id, effects = messages.address_of(target), ctx.effects
    _check(task)
    if _inside_a_tool():
        raise InvalidInputError(
            f"a tool cannot hand over to {agent_id} itself: its call would have no result. Return "
            "FinishAgentResult(target, task) from it",
            field="target",
        )
    answered, left = _split(ctx, answers)
    path = ctx.path()
    row = await effects.recall(path, HANDOFF, str(agent_id), None, None)
    if row is not None:
        messages.raise_recorded(row)
    if effects.journal.replaying:  # the next journal begins empty: let the code replay all recorded calls first
        await effects.wait(Wait("handoff", str(agent_id), lambda: True))
    async with effects.performing():
        found, refusal = await messages.find(ctx, agent_id)
        metadata = _metadata(ctx, found, task)
        body = _body(ctx, agent_id, task, answered, path)
        missing = messages.misses_variables(found, metadata, "the task that it is handed")
        refusal = refusal or (messages.too_large(body) if task else None) or missing or await _too_often(ctx)
        if refusal is not None:
            await messages.refuse(ctx, Entry(HANDOFF, path, str(agent_id)), refusal)
    if effects.left_open():  # decide uncertain effects before the journal ends
        await uncertain.decide_left(ctx)
    if closing is not None:
        await closing()
    await ctx.hook(HookEvent.HANDOFF, target=str(agent_id), run=ctx.run_id)
    given = [body, *(storable(m.model_dump(mode="json")) for m in left)]
    trail = trail_of(ctx.hops, len(given))
    handed = Handoff(path, str(agent_id), found.version, tuple(given), metadata, trail)
    await effects.end(Stop(Stop.Kind.HANDOFF, handoff=handed))


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
    given = ctx.given
    if answers is None:
        place = next((place for place, message in enumerate(given) if message.id not in ctx.answered), 0)
    else:
        place = next((place for place, message in enumerate(given) if message.id == answers.id), -1)
    if not given or place < 0:
        raise InvalidInputError(
            "answers is a message of the run's inbox; a run that was given none has nobody to answer", field="answers"
        )
    return given[place], [message for message in given[place + 1 :] if message.id not in ctx.answered]


def _body(ctx: RunState, target: AgentId, task: Message | str | None, answered: Message, path: str) -> dict[str, Any]:
    """The task as the inbox holds it. It takes the id of the message that it answers, so that a reply finds the ask."""
    if task is None:
        return dict(storable(answered.model_copy(update={"target": target}).model_dump(mode="json")))
    if isinstance(task, Message):
        made, message_id = task, task.id
    else:
        made = Message(target=target, payload=messages.payload_of(task))
        message_id = messages.id_at(ctx.effects.lease.run, path)
    filled = {
        "id": answered.id if answered.reply_to else message_id,
        "target": target,
        "sender": answered.sender,
        "reply_to": answered.reply_to,
        "correlation_id": answered.correlation_id or ctx.session_id,
        "causation_id": answered.causation_id if answered.reply_to else answered.id,
        "metadata": {**answered.metadata, **made.metadata},
    }
    return dict(storable(made.model_copy(update=filled).model_dump(mode="json")))


def _metadata(ctx: RunState, found: specs.Found, task: Message | str | None) -> dict[str, Any]:
    """The run's metadata, with values for the variables that the target's spec declares: those of the run so far, kept
    for later agents too, and those of the task."""
    metadata: dict[str, Any] = dict(ctx.effects.lease.run.metadata or {})
    inherited = metadata.get(INHERITED)
    known = {**(inherited if isinstance(inherited, Mapping) else {}), **variables_of(metadata)}
    if isinstance(task, Message):
        known |= variables_of(task.metadata)
    if found.version is None or not known:
        return metadata
    declared = found.spec.get("variables") or {}
    metadata["variables"] = {name: known[name] for name in declared if known.get(name) is not None}
    return {**metadata, INHERITED: storable(known)}


async def _too_often(ctx: RunState) -> KernelError | None:
    run = ctx.effects.lease.run
    times = await ctx.effects.database.call(generations.handoffs, run.id) if run.generation else 0
    if times < conf.MAX_DEPTH:
        return None
    return PermanentError(f"the run was handed over {times} times already, the limit is {conf.MAX_DEPTH}; answer it")
