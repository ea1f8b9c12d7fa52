"""Check the arguments of a new run: input, session, budget, deadline, metadata and tenant."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from pydantic import ValidationError

from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.kernel import (
    Agent,
    AgentId,
    ChatMessage,
    ChatPayload,
    ExecutionBudget,
    InputTooLargeError,
    InvalidInputError,
    Message,
    NotFoundError,
    Priority,
    Role,
    SessionNotFoundError,
    TextBlock,
    TopicId,
)
from ravi_django.kernel.checks import check_seconds, check_text, did_you_mean
from ravi_django.kernel.content import FROM_CLIENTS, blocks_adapter, media_of
from ravi_django.kernel.json_values import check_json
from ravi_django.models import Run, Session
from ravi_django.runs.catalog import specs
from ravi_django.runs.catalog.registry import near_key
from ravi_django.users import has

METADATA_BYTES = 16 * 1024
MAX_START_S = 366 * 86400.0  # a run starts at most so long after its submit
MESSAGE_MEDIA = 20  # images, recordings, videos and documents of one message: uploaded, by address and inline


def address_of(agent: Agent | AgentId | str) -> AgentId:
    if isinstance(agent, str):
        try:
            agent = AgentId.parse(agent)
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}{near_key(agent, specs.known_agents())}", field="agent") from None
    address = agent if isinstance(agent, AgentId) else getattr(agent, "id", None)
    if isinstance(address, AgentId):
        return address
    raise InvalidInputError(f"agent must be an address like type/key, not {agent!r}", field="agent")


def message_of(target: AgentId | TopicId, input: Any) -> Message:
    if isinstance(input, Message):
        check_size(input.model_dump(mode="json")["payload"])
        if isinstance(input.payload, ChatPayload):
            _check_media(input.payload.message.content)
        return input
    if isinstance(input, str):
        if not input.strip():
            raise InvalidInputError("input must not be empty", field="input")
        check_size(input)
        blocks: list[Any] = [TextBlock(text=input)]
    elif isinstance(input, list) and input:
        check_size(input)
        try:
            blocks = blocks_adapter.validate_python(input)
        except ValidationError as error:
            raise InvalidInputError(
                f"input is no list of content blocks: {first_error(error)}", field="input"
            ) from None
        for index, block in enumerate(blocks):
            if block.type not in FROM_CLIENTS:
                allowed = ", ".join(FROM_CLIENTS)
                raise InvalidInputError(
                    f"input.{index}.type is {block.type!r:.50}; a message may have: {allowed}", field="input"
                )
        _check_media(blocks)
    else:
        raise InvalidInputError("input must be a non-empty string or a non-empty list of content blocks", field="input")
    return Message(target=target, payload=ChatPayload(message=ChatMessage(role=Role.USER, content=blocks)))


def title_of(message: Message) -> str:
    """The title of a conversation that begins with this message."""
    text = message.payload.message.text if isinstance(message.payload, ChatPayload) else ""
    return " ".join(text.split())[:80]


def check_size(value: Any) -> None:
    check_json("input", value, conf.MAX_INPUT_BYTES)


def _check_media(blocks: list[Any]) -> None:
    if (number := sum(1 for _ in media_of(blocks))) > MESSAGE_MEDIA:
        raise InvalidInputError(
            f"input has {number} images, recordings, videos and documents; a message may have {MESSAGE_MEDIA}",
            field="input",
        )


def owner_of(user: Any) -> Any:
    """The user that a run belongs to; None for an anonymous one. Raises InvalidInputError for anything else."""
    if user is not None and not hasattr(user, "is_authenticated"):
        raise InvalidInputError(f"user must be a user object or None, not {user!r}", field="user")
    return user if user is not None and user.is_authenticated else None


def session_of(session: Session | UUID | str | None, owner: Any) -> Session | None:
    if session is None:
        return None
    if isinstance(session, Session):
        is_others = owner is not None and not has(owner, "is_superuser") and session.owner_id != owner.pk
        if is_others or session.parent_session_id is not None:
            raise SessionNotFoundError(session.id)
        return session
    if (wanted := uuid_of(session)) is None:
        raise InvalidInputError(f"session must be a session, its id or a name, not {session!r}", field="session")
    return _by_id(wanted, owner)


def _by_id(wanted: UUID, owner: Any) -> Session:
    rows = Session.objects.all() if owner is None else Session.objects.for_user(owner)
    session: Session | None = rows.filter(id=wanted, parent_session=None).first()  # a child's session is its own
    if session is None:
        raise SessionNotFoundError(wanted)
    return session


class Thread(str):
    """A client's own word for its conversation: the id of a session of the user, else a name."""


def thread_in(session: Session | UUID | str | None, input: Any) -> Session | UUID | str | None:
    """The conversation that a submit means: `session`, or the `correlation_id` of a Message."""
    if session is None and isinstance(input, Message) and input.correlation_id:
        return Thread(input.correlation_id)
    return session


def conversation_of(session: Session | UUID | str | None, owner: Any, tenant: str) -> Session | None:
    """As `session_of`, and by name."""
    return named(session, owner, tenant) if isinstance(session, str) else session_of(session, owner)


def named(text: str, owner: Any, tenant: str) -> Session:
    """The conversation with this name. A text that is a UUID is an id; a Thread only if it is the id of a session of
    the owner. A conversation that does not exist is returned unstored."""
    key = {"tenant": tenant, "owner_key": "" if owner is None else str(owner.pk), "name": str(check_name(text))}
    session: Session | None = None
    if (wanted := uuid_of(text)) is not None and isinstance(text, Thread):
        rows = Session.objects.filter(owner=owner, erasure=None, parent_session=None)  # a superuser's own ones too
        session = (rows.filter(tenant=tenant) if tenant else rows).filter(id=wanted).first()
    elif wanted is not None:
        return _by_id(wanted, owner)
    return session or Session.objects.filter(**key).first() or Session(owner=owner, **key)


def check_name(value: Any, field: str = "session") -> str:
    """The name of a conversation."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or _CONTROL.search(value):
        message = (
            f"the name of a conversation has 1 to 200 characters without control characters; this is {value!r:.100}"
        )
        raise InvalidInputError(message, field=field)
    return value


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def uuid_of(value: Any) -> UUID | None:
    try:
        return UUID(str(value))
    except ValueError:
        return None


def run_id_of(run: Run | UUID | str) -> UUID:
    """The id of a run, from its row, its id or that as a text. Raises NotFoundError."""
    run_id = run.id if isinstance(run, Run) else uuid_of(run)
    if run_id is None:
        raise NotFoundError(f"there is no run {run!r:.100}; the id of a run is a UUID")
    return run_id


def priority_of(value: str | Priority) -> Priority:
    if isinstance(value, Priority):
        return value
    try:
        return Priority[str(value).upper()]
    except KeyError:
        names = ", ".join(p.name.lower() for p in Priority)
        raise InvalidInputError(f"priority must be one of {names}, not {value!r}", field="priority") from None


def budget_of(value: ExecutionBudget | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        budget = ExecutionBudget.model_validate(value)
    except ValidationError as error:
        known, names = ExecutionBudget.model_fields, list(value) if isinstance(value, Mapping) else []
        unknown = next((name for name in names if name not in known), "")
        near = unknown and (did_you_mean(unknown, known, 0.75) or f"; a budget has {', '.join(known)}")
        raise InvalidInputError(f"budget: {first_error(error)}{near}", field="budget") from None
    return budget.model_dump(exclude_none=True, exclude_defaults=True) or None


def moment_of(field: str, value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    try:
        parsed = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, datetime):
        raise InvalidInputError(f"{field} must be ISO 8601, like 2030-01-31T12:00:00Z", field=field)
    return timezone.make_aware(parsed, timezone.get_default_timezone()) if timezone.is_naive(parsed) else parsed


def start_of(value: datetime | timedelta | float | None) -> datetime | None:
    """The time before which a run does not start; None for one that starts at once, as for a time that has passed."""
    if value is None:
        return None
    present = clock.present()
    if not isinstance(value, datetime):
        return present + timedelta(seconds=check_seconds("start_at", value, MAX_START_S))
    if timezone.is_naive(value):
        message = f"start_at has no time zone: {value}; use django.utils.timezone.make_aware, or a timedelta from now"
        raise InvalidInputError(message, field="start_at")
    if value > present + timedelta(seconds=MAX_START_S):
        raise InvalidInputError(
            f"start_at is {value}, more than {MAX_START_S / 86400:g} days from now", field="start_at"
        )
    return value if value > present else None


def metadata_of(value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInputError("metadata must be an object", field="metadata")
    try:
        return dict(check_json("metadata", dict(value), METADATA_BYTES))
    except InputTooLargeError as error:
        raise InvalidInputError(str(error), field="metadata") from None  # the input is not too large


def tenant_of(value: str) -> str:
    return check_text("tenant", value, 100, least=0)


def first_error(error: ValidationError) -> str:
    """Pydantic's first error, with its place."""
    problem = error.errors(include_url=False, include_context=False)[0]
    location = ".".join(str(part) for part in problem["loc"])
    return f"{location}: {problem['msg']}" if location else problem["msg"]


def scope_of(owner: Any, target: AgentId | str, key: str) -> str:
    check_text("idempotency_key", key, 200)
    return hashlib.sha256(f"{getattr(owner, 'pk', None)}\0{target}\0{key}".encode()).hexdigest()
