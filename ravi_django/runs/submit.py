"""Submitting: Session, Run and message are written in the caller's transaction; the hint goes out on commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError

from ravi_django.db import connection, transaction
from ravi_django.kernel import (
    Agent,
    AgentId,
    ExecutionBudget,
    IdempotencyMismatchError,
    Message,
    Priority,
    ThreadBusyError,
)
from ravi_django.kernel.json_values import digest_of
from ravi_django.models import Run, Session, Status, uuid7
from ravi_django.runs import checks, hints, results, sessions
from ravi_django.runs.catalog import agent_models, specs
from ravi_django.runs.files import files


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
    start_at: datetime | timedelta | float | None = None,
    metadata: Mapping[str, Any] | None = None,
    result_schema: Any = None,
    client_tools: list[dict[str, Any]] | None = None,
    send: Any = None,
    run_id: UUID | None = None,
    message_body: Mapping[str, Any] | None = None,
    find: Callable[[AgentId], specs.RunnableAgent] = specs.find_or_list,
    on_busy: str = "enqueue",
) -> tuple[Run, bool]:
    """`submit` in `lifecycle`, which says more; also returns whether the run is new.

    `send` replaces the hint on commit. `run_id` makes the call safe to repeat. `find` returns the agent or raises: REST
    and sockets check the user's rights there. `message_body` is for a message to `session`: the idempotency key is then
    scoped to (user, session), and a repeat must have that body. `on_busy` does not interrupt here. `client_tools` are
    as `checked_tools` returns them.
    """
    agent_id = checks.address_of(agent)
    found_agent = find(agent_id) if idempotency_key is None else None  # a repeat gets its first run even so
    message = checks.message_of(agent_id, input)
    owner, tenant = checks.owner_of(user), checks.tenant_of(tenant)
    session = checks.thread_in(session, input)
    conversation = checks.conversation_of(session, owner, tenant)
    wanted = None if result_schema is None else results.typed(result_schema)
    run = Run(
        id=run_id or uuid7(),
        agent=str(agent_id),
        owner=owner,
        tenant=tenant or (conversation.tenant if conversation else ""),
        priority=checks.priority_of(priority).value,
        budget=checks.budget_of(budget),
        deadline=checks.moment_of("deadline", deadline),
        metadata=checks.metadata_of(metadata),
        result_schema=results.schema_of(wanted),
        client_tools=client_tools or None,
    )
    if (wake_at := checks.start_of(start_at)) is not None:
        run.status, run.wake_at, on_busy = Status.QUEUED, wake_at, "enqueue"
    if idempotency_key is not None:
        target = agent_id if message_body is None or conversation is None else f"session:{conversation.id}"
        run.idempotency_scope = checks.scope_of(owner, target, idempotency_key)
        run.request_digest = (
            _request_digest(run, message, session, start_at) if message_body is None else digest_of(dict(message_body))
        )
        if (first := first_of(run, wanted)) is not None:
            return first, False
    message, used = files.resolve(message, owner)
    found_agent = found_agent or find(agent_id)
    found_agent.check_variables(run.metadata)
    run.agent_version = found_agent.version
    if not found_agent.client_tools:
        run.client_tools = None
    agent_models.check_priced(found_agent, run.budget)
    run.session = conversation or Session(owner=run.owner, tenant=run.tenant)
    if is_new := run.session._state.adding:  # also one that the caller has made
        run.session.agent, run.session.title = run.agent, run.session.title or checks.title_of(message)
    if on_busy == "reject" and not is_new and sessions.is_busy(run):
        raise ThreadBusyError(f"{agent_id} is at work in this conversation: wait for its end, or stop it")
    # Inside a transaction of the caller a lock would hold up the run at work: then the message waits.
    may_steer = on_busy == "steer" and not is_new and not connection.in_atomic_block
    if may_steer and (at_work := files.referring(used, sessions.steer, run, _boot(run, message))) is not None:
        hints.on_commit(at_work.id, send)
        return at_work, False
    try:
        files.referring(used, _create, run, message)
    except IntegrityError:
        if (first := first_of(run, wanted) or Run.objects.filter(id=run.id).first()) is not None:
            return first, False
        raise
    specs.remember_type(run.id, wanted)
    hints.on_commit(run.id, send if run.status == "pending" else lambda _: _promote(run, send or hints.send))
    return run, True


def _promote(run: Run, send: Any) -> None:
    for promoted in sessions.promote_orphan(run):
        if promoted == run.id:
            run.status = Status.PENDING
        send(promoted)


def _create(run: Run, message: Message) -> Run:
    """Write the run, and its session if that is new."""
    with transaction.atomic() if run.session._state.adding and run.session.name else nullcontext():
        if run.session._state.adding and run.session.name:  # another submit may make it at the same time
            run.session = sessions.store_named(run.session)
        new = run.session if run.session._state.adding else None
        return sessions.create_run(run, _boot(run, message), new, unlocked=True)


def named(name: str, user: Any, agent: str, tenant: str = "") -> str:
    """The id of the user's conversation of this name, which is made at first use, or of the session with this id."""
    session = checks.named(name, checks.owner_of(user), checks.tenant_of(tenant))
    stored: Any = sessions.stored(session, agent)
    return str(stored.id)


anamed = sync_to_async(named)


def _boot(run: Run, message: Message) -> dict[str, Any]:
    """The message as the run's inbox stores it."""
    if not message.correlation_id:
        message = message.model_copy(update={"correlation_id": str(run.session_id)})
    return message.to_json()


def _request_digest(run: Run, message: Message, session: Any, start_at: Any) -> str:
    body = {
        "payload": message.payload.model_dump(mode="json"),
        "session": str(session.id if isinstance(session, Session) else session or ""),
        "priority": run.priority,
        "budget": run.budget,
        "deadline": run.deadline.isoformat() if run.deadline else None,
        "metadata": run.metadata,
        **({} if start_at is None else {"start_at": str(start_at)}),
        **({"result_schema": run.result_schema} if run.result_schema else {}),
        **({"client_tools": run.client_tools} if run.client_tools else {}),
    }
    return digest_of(body)


def first_of(run: Run, wanted: Any = None) -> Run | None:
    """The run that has this run's key, if any; `wanted` is the type that its request asks for. Raises
    IdempotencyMismatchError when its request was another one."""
    if run.idempotency_scope is None:
        return None
    first = Run.objects.select_related("session").filter(idempotency_scope=run.idempotency_scope).first()
    if first is not None and first.request_digest != run.request_digest:
        raise IdempotencyMismatchError(
            f"this idempotency key belongs to run {first.id}, which was submitted with another body; use a new key"
        )
    if first is not None:
        specs.remember_type(first.id, wanted)
    return first
