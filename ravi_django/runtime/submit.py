"""Submitting: Session, Run and message are written in the caller's transaction; the hint goes out on commit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ravi_django.conf import conf
from ravi_django.kernel import (
    Agent,
    AgentId,
    ChatMessage,
    ChatPayload,
    ExecutionBudget,
    IdempotencyMismatchError,
    InputTooLargeError,
    InvalidInputError,
    Message,
    Priority,
    Role,
    SessionNotFoundError,
    TextBlock,
)
from ravi_django.kernel.canonical import digest_of
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.content import FROM_CLIENTS, blocks_adapter
from ravi_django.models import Run, Session, Status, uuid7
from ravi_django.runtime import dispatch, specs
from ravi_django.runtime.addresses import has
from ravi_django.runtime.store import queue

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # JSON's escape of it, not an escaped backslash before it


def submit(
    agent: Agent | AgentId | str,
    input: str | list[Any] | Message,
    *,
    session: Session | UUID | str | None = None,
    user: Any = None,
    tenant: str = "",
    idempotency_key: str | None = None,
    priority: str | Priority = "normal",
    budget: ExecutionBudget | Mapping[str, Any] | None = None,
    deadline: datetime | str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Run:
    """Start a run of `agent` on `input` (text, content blocks, or a Message); returns its row at once.

    The variables of an agent that is a row are given as `metadata={"variables": {…}}`.

    Inside the caller's transaction: rolled back with it, started after its commit. With an `idempotency_key`, scoped
    to (user, agent), a repeat returns the first run. A `session` of one's own continues that conversation; without
    one a new session is made.

    Raises AgentNotFoundError, SessionNotFoundError, InvalidInputError (with `field`), InputTooLargeError and
    IdempotencyMismatchError; nothing is written then.
    """
    run, _ = submit_once(
        agent,
        input,
        session=session,
        user=user,
        tenant=tenant,
        idempotency_key=idempotency_key,
        priority=priority,
        budget=budget,
        deadline=deadline,
        metadata=metadata,
    )
    return run


asubmit = sync_to_async(submit)


def submit_once(
    agent: Agent | AgentId | str,
    input: str | list[Any] | Message,
    *,
    session: Session | UUID | str | None = None,
    user: Any = None,
    tenant: str = "",
    idempotency_key: str | None = None,
    priority: str | Priority = "normal",
    budget: ExecutionBudget | Mapping[str, Any] | None = None,
    deadline: datetime | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    send: Any = None,
    run_id: UUID | None = None,
    said: Mapping[str, Any] | None = None,
    find: Callable[[AgentId], specs.Found] = specs.find,
) -> tuple[Run, bool]:
    """`submit`, also saying whether the run is new. `send` replaces the dispatch on commit; `run_id` makes the call
    safe to repeat; `find` gives the agent, or raises: a surface asks there whether the user may run it. `said` is the
    body of a message to `session`: the idempotency key is then scoped to (user, session), and a repeat has the same
    body."""
    agent_id = _address_of(agent)
    found_agent = find(agent_id) if idempotency_key is None else None  # a repeat gets its first run even so
    message = _message(agent_id, input)
    owner = user if user is not None and user.is_authenticated else None
    found = _session(session, owner)
    run = Run(
        id=run_id or uuid7(),
        agent=str(agent_id),
        owner=owner,
        tenant=_tenant(tenant) or (found.tenant if found else ""),
        priority=_priority(priority).value,
        budget=_budget(budget),
        deadline=_deadline(deadline),
        metadata=_metadata(metadata),
    )
    if idempotency_key is not None:
        place = agent_id if said is None or found is None else f"session:{found.id}"
        run.idempotency_scope = scope_of(owner, place, idempotency_key)
        run.request_digest = _request_digest(run, message, session) if said is None else digest_of(dict(said))
        if (first := first_of(run)) is not None:
            return first, False
    found_agent = found_agent or find(agent_id)
    found_agent.check_variables(run.metadata)
    run.agent_version = found_agent.version
    session_row = found or _new_session(run, message)
    run.session = session_row
    try:
        queue.create_run(run, _boot(run, message), None if found else session_row, unlocked=True)
    except IntegrityError:
        if (first := first_of(run) or Run.objects.filter(id=run.id).first()) is not None:
            return first, False
        raise
    dispatch.on_commit(run.id, send if run.status == "pending" else lambda _: _promote(run, send or dispatch.send))
    return run, True


def _promote(run: Run, send: Any) -> None:
    for promoted in queue.promote_orphan(run):
        if promoted == run.id:
            run.status = Status.PENDING
        send(promoted)


# ----------------------------------------------------------------------------------------------- what was given


def _address_of(agent: Agent | AgentId | str) -> AgentId:
    if isinstance(agent, str):
        agent = AgentId.parse(agent)
    address = agent if isinstance(agent, AgentId) else getattr(agent, "id", None)
    if isinstance(address, AgentId):
        return address
    raise InvalidInputError(f"agent must be an address like type/key, not {agent!r}", field="agent")


def _message(agent_id: AgentId, input: Any) -> Message:
    if isinstance(input, Message):
        _check_size(input.model_dump(mode="json")["payload"])
        return input
    if isinstance(input, str):
        if not input.strip():
            raise InvalidInputError("input must not be empty", field="input")
        _check_size(input)
        blocks: list[Any] = [TextBlock(text=input)]
    elif isinstance(input, list) and input:
        _check_size(input)
        try:
            blocks = blocks_adapter.validate_python(input)
        except ValidationError as error:
            raise InvalidInputError(f"input is no list of content blocks: {_first(error)}", field="input") from None
        for index, block in enumerate(blocks):
            if block.type not in FROM_CLIENTS:
                allowed = ", ".join(FROM_CLIENTS)
                raise InvalidInputError(
                    f"input.{index}.type is {block.type!r:.50}; a message may have: {allowed}", field="input"
                )
    else:
        raise InvalidInputError("input must be a non-empty string or a non-empty list of content blocks", field="input")
    return Message(target=agent_id, payload=ChatPayload(message=ChatMessage(role=Role.USER, content=blocks)))


def _check_size(value: Any) -> None:
    try:
        body = to_json(value)
        size = len(body)
    except ValueError as error:
        raise InvalidInputError(f"input is not JSON: {error}", field="input") from None
    if _NUL.search(body):
        raise InvalidInputError("input holds a NUL character, which the database cannot store", field="input")
    if size > conf.MAX_INPUT_BYTES:
        raise InputTooLargeError(f"input has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="input")


def _session(given: Session | UUID | str | None, owner: Any) -> Session | None:
    if given is None:
        return None
    if isinstance(given, Session):
        if owner is not None and not has(owner, "is_superuser") and given.owner_id != owner.pk:
            raise SessionNotFoundError(given.id)
        return given
    try:
        wanted = given if isinstance(given, UUID) else UUID(str(given))
    except ValueError:
        raise InvalidInputError(f"session must be a UUID, not {given!r}", field="session") from None
    rows = Session.objects.all() if owner is None else Session.objects.for_user(owner)
    found: Session | None = rows.filter(id=wanted).first()
    if found is None:
        raise SessionNotFoundError(given)
    return found


def _new_session(run: Run, message: Message) -> Session:
    text = message.payload.message.text if isinstance(message.payload, ChatPayload) else ""
    return Session(owner=run.owner, tenant=run.tenant, agent=run.agent, title=" ".join(text.split())[:80])


def _boot(run: Run, message: Message) -> dict[str, Any]:
    """The message as the run's inbox holds it."""
    if not message.correlation_id:
        message = message.model_copy(update={"correlation_id": str(run.session_id)})
    return message.model_dump(mode="json")


def _priority(value: str | Priority) -> Priority:
    if isinstance(value, Priority):
        return value
    try:
        return Priority[str(value).upper()]
    except KeyError:
        names = ", ".join(p.name.lower() for p in Priority)
        raise InvalidInputError(f"priority must be one of {names}, not {value!r}", field="priority") from None


def _budget(value: ExecutionBudget | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        budget = ExecutionBudget.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(f"budget: {_first(error)}", field="budget") from None
    return budget.model_dump(exclude_none=True, exclude_defaults=True) or None


def _deadline(value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    try:
        parsed = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, datetime):
        raise InvalidInputError("deadline must be ISO 8601, like 2030-01-31T12:00:00Z", field="deadline")
    return timezone.make_aware(parsed, timezone.get_default_timezone()) if timezone.is_naive(parsed) else parsed


def _metadata(value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInputError("metadata must be an object", field="metadata")
    try:
        body = to_json(dict(value))
    except ValueError as error:
        raise InvalidInputError(f"metadata is not JSON: {error}", field="metadata") from None
    if _NUL.search(body):
        raise InvalidInputError("metadata holds a NUL character, which the database cannot store", field="metadata")
    if len(body) > 16 * 1024:
        raise InvalidInputError(f"metadata has {len(body)} bytes, the limit is 16384", field="metadata")
    return dict(from_json(body))


def _tenant(value: str) -> str:
    return check_text("tenant", value, 100, least=0)


def _first(error: ValidationError) -> str:
    """The first complaint of pydantic, with its place."""
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else problem["msg"]


# ------------------------------------------------------------------------------------------------ idempotency


def scope_of(owner: Any, place: AgentId | str, key: str) -> str:
    check_text("idempotency_key", key, 200)
    return hashlib.sha256(f"{getattr(owner, 'pk', None)}\0{place}\0{key}".encode()).hexdigest()


def _request_digest(run: Run, message: Message, session: Any) -> str:
    body = {
        "payload": message.payload.model_dump(mode="json"),
        "session": str(session.id if isinstance(session, Session) else session or ""),
        "priority": run.priority,
        "budget": run.budget,
        "deadline": run.deadline.isoformat() if run.deadline else None,
        "metadata": run.metadata,
    }
    return digest_of(body)


def first_of(run: Run) -> Run | None:
    """The run that the key belongs to already. Raises IdempotencyMismatchError when it was asked something else."""
    if run.idempotency_scope is None:
        return None
    first = Run.objects.select_related("session").filter(idempotency_scope=run.idempotency_scope).first()
    if first is not None and first.request_digest != run.request_digest:
        raise IdempotencyMismatchError(
            f"this idempotency key belongs to run {first.id}, which was submitted with another body; use a new key"
        )
    return first
