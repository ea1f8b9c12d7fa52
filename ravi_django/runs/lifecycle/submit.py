"""Submit a message: to a new conversation, or to one whose agent may be at work."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from ravi_django import wing
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import (
    Agent,
    AgentId,
    ExecutionBudget,
    IllegalTransitionError,
    InvalidInputError,
    Message,
    Priority,
    TopicId,
)
from ravi_django.models import Run, Session, Status
from ravi_django.runs import checks, sessions
from ravi_django.runs.lifecycle.endings import cancel
from ravi_django.runs.submit import submit_once

REPLACE = "replace"  # "interrupt" a run whose tree is at work, "enqueue" behind one that waits; for clients of AG-UI
ON_BUSY = ("enqueue", "steer", "interrupt", "reject")


def submit(
    agent: Agent | AgentId | TopicId | str,
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
    on_busy: str | None = None,
) -> Run:
    """Start a run of `agent` on `input` (text, content blocks, or a Message); returns its row at once.

    An agent that is stored in the database takes its variables from `metadata={"variables": {…}}`.

    Inside the caller's transaction: rolled back with it, started after its commit. With an `idempotency_key`, scoped
    to (user, agent), a repeat returns the first run. A `session` continues that conversation of the user: its
    row, its id, or a name of 1 to 200 characters, whose conversation is made at first use. A text that is a UUID is an
    id. Without a session, a Message with a `correlation_id` means the conversation of that name, or the user's session
    with that id; any other input begins a new conversation.

    With `start_at` (a time, a timedelta from now or seconds) the run is queued until then, and other messages of the
    conversation do not wait for it. A sweep starts it, after the run that is at work by then. `on_busy` has no effect.

    `result_schema` asks for a typed result in this request alone, in place of the agent's own `result_model`: a
    pydantic model, any type that pydantic reads, or a JSON schema. `run.result()` returns an instance of it.

    `on_busy` chooses what happens to a message while the agent is at work in the session; None is RAVI["ON_BUSY"].
    "enqueue": its run waits for the end of the one at work. "steer": the run at work gets the message and is returned;
    options of a new run do not count. A run that is blocked or being cancelled is not steered, and nothing is steered
    inside a transaction of the caller: the message waits then. "interrupt": it waits, and the run at work is cancelled.
    "reject": ThreadBusyError.

    To a TopicId it publishes the message like `emit`, and returns the Publication. `user`, `tenant` and
    `idempotency_key` are its only options.

    Raises AgentNotFoundError, SessionNotFoundError, InvalidInputError (with `field`), InputTooLargeError,
    IdempotencyMismatchError and ThreadBusyError; nothing is written then.
    """
    options: dict[str, Any] = {
        "session": session,
        "priority": priority,
        "budget": budget,
        "deadline": deadline,
        "start_at": start_at,
        "metadata": metadata,
        "result_schema": result_schema,
        "on_busy": on_busy,
    }
    if isinstance(agent, TopicId):
        of_runs = [name for name, value in options.items() if value not in (None, "normal")]
        if of_runs:
            raise InvalidInputError(
                f"{of_runs[0]} is an option of a run; a message to the topic {agent} starts none", field=of_runs[0]
            )
        message = checks.message_of(agent, input)
        published: Any = wing.call("emit")(agent, message, user=user, tenant=tenant, id=idempotency_key)
        return published  # type: ignore[no-any-return]
    run, _ = say(agent, input, user=user, tenant=tenant, idempotency_key=idempotency_key, **options)
    return run


asubmit = sync_to_async(submit)


def say(
    agent: Agent | AgentId | str,
    input: str | list[Any] | Message,
    *,
    session: Session | UUID | str | None = None,
    on_busy: str | None = None,
    **options: Any,
) -> tuple[Run, bool]:
    """`submit`; also returns whether the run is new. More options: those of `submit_once`."""
    how = on_busy or conf.ON_BUSY
    if how not in (*ON_BUSY, REPLACE):
        raise InvalidInputError(f"on_busy is one of {', '.join(ON_BUSY)}, not {how!r}", field="on_busy")
    at_work: list[UUID] = []
    if how in ("interrupt", REPLACE):  # read it first: a run that is promoted meanwhile is not meant
        owner, tenant = checks.owner_of(options.get("user")), checks.tenant_of(options.get("tenant", ""))
        conversation = checks.conversation_of(checks.thread_in(session, input), owner, tenant)
        busy = sessions.active_root(Run(session=conversation, agent=str(checks.address_of(agent))))
        if how == REPLACE:
            busy = sessions.at_work(busy)
        at_work = list(busy.values_list("id", flat=True)) if conversation else []
    run, is_new = submit_once(agent, input, session=session, on_busy=how, **options)
    if is_new and run.status == Status.QUEUED and run.start_at is None:
        transaction.on_commit(partial(_interrupt, at_work), robust=True)
    return run, is_new


def _interrupt(runs: list[UUID]) -> None:
    for run_id in runs:
        with suppress(IllegalTransitionError):  # it has ended meanwhile
            cancel(run_id, "interrupted by a later message")
