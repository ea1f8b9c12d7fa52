"""Messages from a run to others: addresses, contents, and refusals that every replay raises again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import UUID

from pydantic_core import to_json

from ravi_django.agents.tools.delegate import INHERITED, LATE
from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.errors import (
    AgentNotFoundError,
    ConflictError,
    ForbiddenError,
    IdempotencyMismatchError,
    InvalidInputError,
    KernelError,
    NotFoundError,
    PermanentError,
    SpawnDeniedError,
)
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.messages import ChatPayload, ControlPayload, DataPayload, Message, PayloadBase
from ravi_django.models import Run
from ravi_django.runs.catalog import specs
from ravi_django.runs.catalog.prompts import variables_of

_REFUSALS: dict[str, type[KernelError]] = {
    one.__name__: one
    for one in (
        SpawnDeniedError,
        AgentNotFoundError,
        NotFoundError,
        PermanentError,
        ForbiddenError,
        ConflictError,
        IdempotencyMismatchError,
    )
}


async def refuse(ctx: RunState, entry: Entry, error: KernelError) -> NoReturn:
    """Record the refusal, and raise it. Every replay raises it again, whatever is true by then."""
    entry.result = None
    entry.stored.clear()
    entry.error = {"type": type(error).__name__, "message": str(error)}
    await ctx.recorder.record(entry)
    raise error


def raise_recorded(row: Recorded | Entry) -> None:
    if row.error is None:
        return
    kind = _REFUSALS.get(row.error.get("type", ""), PermanentError)
    error = kind.__new__(kind)  # some have another constructor
    Exception.__init__(error, row.error.get("message", ""))
    raise error


async def find(ctx: RunState, agent_id: AgentId) -> tuple[specs.RunnableAgent, KernelError | None]:
    """The agent to make a run for, or why there is none."""
    try:
        return await ctx.recorder.database.call(specs.find, agent_id), None
    except AgentNotFoundError as error:
        return specs.RunnableAgent(agent_id), error


def metadata_of(ctx: RunState, runnable: specs.RunnableAgent, message: Message | str | None) -> dict[str, Any]:
    """The metadata of a run that this message starts: values for the variables of its spec."""
    if runnable.version is None or not isinstance(message, Message):
        return {}
    variables, defaults = message.metadata.get("variables"), message.metadata.get(INHERITED)
    if variables is None and isinstance(defaults, Mapping):
        known = {**defaults, **variables_of(ctx.recorder.lease.run.metadata)}
        variables = {
            name: known[name] for name in runnable.spec.get("variables") or {} if known.get(name) is not None
        } or None
    return {} if variables is None else {"variables": storable(variables)}


def misses_variables(runnable: specs.RunnableAgent, metadata: Mapping[str, Any], message: str) -> PermanentError | None:
    """The refusal of a run whose metadata lacks a variable of the agent's spec; `message` is what brings them."""
    try:
        runnable.check_variables(metadata)
    except InvalidInputError as error:
        return PermanentError(f"{runnable.address}: {error}; {message} brings them")
    return None


def too_large(body: Mapping[str, Any] | None) -> PermanentError | None:
    """The refusal of a message that is larger than an input may be; None if it is not."""
    if body is None:
        return None
    content = _content(body["payload"])
    size = len(to_json(content))
    if size <= conf.MAX_INPUT_BYTES:
        return None
    return PermanentError(f"the task has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}")


def _content(payload: Mapping[str, Any]) -> Any:
    """The part of a payload that is an input: the text or blocks of a chat message, the values of another."""
    if payload["kind"] != "chat":
        return payload.get("data", payload)
    content = payload["message"]["content"]
    return content[0]["text"] if len(content) == 1 and "text" in content[0] else content


def address_of(target: Any) -> AgentId:
    address = getattr(target, "id", target)
    if isinstance(address, AgentId):
        return address
    if isinstance(address, str):
        return AgentId.parse(address)
    raise InvalidInputError(f"the target is an agent's address, not {target!r}", field="target")


def run_id_of(handle: RunHandle) -> UUID:
    try:
        return UUID(handle.run_id)
    except ValueError:
        raise InvalidInputError(f"{handle.run_id!r} is no run's id", field="target") from None


def filled(
    ctx: RunState, target: AgentId, message: Message | str, path: str, *, control: bool = False
) -> dict[str, Any]:
    """The message as an inbox holds it. Its id is the same on every replay; a reply to it goes to this run. Without a
    correlation or causation of its own it gets the conversation of the tree, and the message that the code is at."""
    run = ctx.recorder.lease.run
    if isinstance(message, Message) and isinstance(message.payload, ControlPayload) and not control:
        raise InvalidInputError("a control message is sent, not asked or booted with; use ctx.send", field="message")
    if isinstance(message, Message):
        message_id = ctx.message_ids.get(message.id, message.id)
        made = message
    else:
        message_id = id_at(run, path)
        made = Message(target=target, payload=payload_of(message))
    more = {
        "id": message_id,
        "sender": made.sender or ctx.agent_id,
        "correlation_id": made.correlation_id or ctx.conversation,
        "causation_id": made.causation_id or (None if ctx.cause == message_id else ctx.cause),
        "reply_to": made.reply_to or ctx.run_id,
        "metadata": {name: value for name, value in made.metadata.items() if name != LATE},  # for the asker alone
    }
    body: dict[str, Any] = storable(made.model_copy(update=more).to_json())
    return body


def id_at(run: Run, path: str) -> str:
    """The id of the message that the call at `path` makes."""
    return hashlib.sha256(f"{run.id}:{run.generation}:{path}:message".encode()).hexdigest()[:32]


def content_of(message: Message | str | None) -> Any:
    """The content of a message by which a replay recognizes the call that sends it."""
    if message is None:
        return None
    payload = message.payload if isinstance(message, Message) else payload_of(message)
    return payload.model_dump(mode="json")


def payload_of(value: Any) -> PayloadBase:
    if isinstance(value, str):
        return ChatPayload(message=ChatMessage.of("user", value))
    return DataPayload(data=value if isinstance(value, dict) else {"value": value})
