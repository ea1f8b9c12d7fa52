"""The conversation of a client that sends its whole view of it, and a new id with each call: AG-UI.

The client's view is compared by the ids of messages, which are ours. Nothing that it says about the past is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db.models import Q

from ravi_django import access, limits
from ravi_django.kernel import (
    AgentId,
    ConflictError,
    ForbiddenError,
    IllegalTransitionError,
    InvalidInputError,
    NotFoundError,
)
from ravi_django.live.streams import hidden
from ravi_django.models import ACTIVE, JournalEntry, Run, Session, Status
from ravi_django.people import site_rules
from ravi_django.runs import checks, sessions
from ravi_django.runs.lifecycle.endings import cancel
from ravi_django.runs.lifecycle.fork import fork_once
from ravi_django.services.exchanges import Exchange, Input, begin, input_known

MOST_HANDOFFS = 1000  # of a conversation that are followed


def conversation(user: Any, thread: checks.Thread | None) -> Session | None:
    """The user's conversation of this name or id, if there is one."""
    if thread is None:
        return None
    session = checks.conversation_of(thread, checks.owner_of(user), site_rules.tenant_for(user))
    return None if session is None or session._state.adding else session


def present_agent(session: Session | None, agent: AgentId) -> AgentId:
    """The agent that goes on: the conversation's last one, if the addressed one has handed over in it."""
    if session is None or session.agent in ("", str(agent)):
        return agent
    rows = JournalEntry.objects.filter(run__session=session, kind="run.handoff", error__isnull=True)
    present = str(agent)
    for source, target in rows.order_by("finished_at", "seq").values_list("result__from", "result__to")[:MOST_HANDOFFS]:
        present = target if source == present else present
    return AgentId.parse(present) if present == session.agent else agent


def of_call(
    user: Any, session: Session | None, agent: AgentId, key: str | None
) -> tuple[AgentId, tuple[list[dict[str, Any]], list[dict[str, Any]] | None] | None]:
    """The agent that a call is for, and the content and the tools with which an equal call began its run."""
    present = present_agent(session, agent)
    for one in dict.fromkeys((agent, present)) if key else ():
        if (known := input_known(user, one, str(key))) is not None:
            return one, known
    return present, None


def live(user: Any, session: Session | None, agent: AgentId) -> Exchange:
    """The agent's active run in the conversation, from its start. Raises InvalidInputError if there is none."""
    access.find(user, agent, session.id if session else None)
    rows = Run.objects.select_related("session").filter(session=session, agent=str(agent), parent=None)
    if session is None or (run := rows.filter(status__in=ACTIVE).first()) is None:
        text = "there is no message of the user after the last one of the assistant, and no run is at work"
        raise InvalidInputError(text, field="messages")
    return Exchange(user, run, whole=hidden.sees(user), is_repeat=True)


def answered(user: Any, session: Session | None, incoming: Input) -> bool:
    """Whether the tool messages beside a user's message answer requests. Others are no error: a page may have answered
    too late."""
    if session is None or not incoming.answers:
        return False
    with suppress(InvalidInputError, ConflictError, ForbiddenError, NotFoundError):
        exchange = begin(user, AgentId.parse(session.agent), checks.Thread(session.id), replace(incoming, blocks=[]))
        return not exchange.is_repeat
    return False


def next_run(session: Session | None, message: Any, agents: Collection[AgentId]) -> Run | None:
    """The run of these agents after the one that this message of the client is from, in a conversation of the session's
    family. None if that run waits: it goes by `on_busy`."""
    id = message.get("id") if isinstance(message, Mapping) else None
    if session is None or (run_id := checks.uuid_of(str(id).partition("/")[0])) is None:
        return None
    family = Session.objects.of_family(session.family or session.id)
    runs = Run.objects.filter(session__in=family, owner_id=session.owner_id, parent=None)
    if (run := runs.filter(id=run_id).first()) is None:
        return None
    later = Q(created_at__gt=run.created_at) | Q(created_at=run.created_at, id__gt=run.id)
    runs = runs.filter(later, session_id=run.session_id, agent__in=[str(agent) for agent in agents])
    following = runs.exclude(status=Status.QUEUED).order_by("created_at", "id").first()
    return None if following is None or following.status == Status.SUSPENDED else following


def fork(
    user: Any,
    session: Session,
    source: Run,
    blocks: list[dict[str, Any]],
    key: str | None,
    tools: list[dict[str, Any]] | None,
) -> Exchange:
    """Answer the blocks in place of the message that `source` began with. The conversation's name goes along, and its
    run at work is cancelled. Raises as a fork over REST."""
    access.find(user, source.agent, source.session_id)
    limits.count(user, "fork")
    run, is_new = fork_once(source.id, input=blocks, client_tools=tools, user=user, idempotency_key=key)
    if is_new:
        for at_work in sessions.at_work(Run.objects.filter(session=session, parent=None)):
            with suppress(IllegalTransitionError):  # it has ended meanwhile
                cancel(at_work.id, "interrupted by a later message")
    return Exchange(user, run, whole=hidden.sees(user), is_repeat=not is_new)
