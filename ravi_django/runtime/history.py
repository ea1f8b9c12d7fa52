"""Conversation history in the database: the turns of a session, keyed by agent and session.

Inside a run, what is appended rides on the next effect's commit, and what was read is journaled as a position: turns
are immutable, so that a replay reads the same conversation again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import F, Q, QuerySet, Subquery

from ravi_django.agents.dangling import close_dangling
from ravi_django.agents.history import window_of
from ravi_django.agents.summary import keeps_of
from ravi_django.kernel import AgentId, ChatMessage, Role
from ravi_django.models import Session, Turn

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext


class DjangoHistoryProvider:
    """History provider over Session and Turn. Serves concurrent runs."""

    async def append(
        self, agent_id: AgentId, session_id: str, message: ChatMessage, *, run_id: str = "", index: int | None = None
    ) -> None:
        await self.append_many(agent_id, session_id, [message], run_id=run_id, start=index)

    async def append_many(
        self,
        agent_id: AgentId,
        session_id: str,
        messages: Sequence[ChatMessage],
        *,
        run_id: str = "",
        start: int | None = None,
    ) -> None:
        """Store messages; one that is there already under (run, index) is left as it is."""
        ctx = _context_of(run_id)
        if ctx is not None:
            ctx.remember(agent_id, session_id, messages, start)
        else:
            await sync_to_async(_append)(agent_id, session_id, messages, run_id, start)

    async def get(
        self, agent_id: AgentId, session_id: str, *, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """The newest `limit` messages (all when None) after skipping `offset` of the newest, oldest first."""
        ctx = _context_of(None)
        if ctx is not None and str(ctx.session_id) == str(session_id):
            return await ctx.read_history(agent_id, limit=limit, offset=offset)
        found: list[ChatMessage] = await sync_to_async(read)(agent_id, session_id, limit=limit, offset=offset)
        return found

    async def window(self, agent_id: AgentId, session_id: str, *, limit: int | None = None) -> list[ChatMessage]:
        """See `agents.history.window_of`. At most two queries."""
        ctx = _context_of(None)
        if ctx is not None and str(ctx.session_id) == str(session_id):
            return await ctx.read_history(agent_id, limit=limit, window=True)
        found: list[ChatMessage] = await sync_to_async(read_window)(agent_id, session_id, limit=limit)
        return found

    async def count(self, agent_id: AgentId, session_id: str) -> int:
        return int(await _off_loop(_turns(agent_id, session_id).filter(keeps=None).count))

    async def clear(self, agent_id: AgentId, session_id: str) -> None:
        await _off_loop(_turns(agent_id, session_id).delete)

    async def clear_run(self, agent_id: AgentId, session_id: str, run_id: str) -> None:
        """Forget a run's turns, also those that wait for its next commit."""
        ctx = _context_of(run_id)
        if ctx is not None:
            ctx.effects.turns.clear()
        await _off_loop(_turns(agent_id, session_id).filter(run_id=run_id).delete)


async def _off_loop(function: Callable[[], Any]) -> Any:
    """On the run's database threads; outside of runs, as Django's own async calls do."""
    ctx = _context_of(None)
    if ctx is None:
        return await sync_to_async(function)()
    with ctx.effects.busy():
        return await ctx.effects.database.call(function)


def read(
    agent_id: AgentId, session_id: str | UUID, *, limit: int | None = None, offset: int = 0, before: int | None = None
) -> list[ChatMessage]:
    """One query, whatever the length of the conversation. `before` is a position: what came later is not seen."""
    newest = _newest(agent_id, session_id, before).filter(keeps=None)
    page = newest[offset:] if limit is None else newest[offset : offset + limit]
    return close_dangling([_message(*row[1:]) for row in reversed(page)], at_end=offset <= 0)


def read_window(
    agent_id: AgentId, session_id: str | UUID, *, limit: int | None = None, before: int | None = None
) -> list[ChatMessage]:
    """See `agents.history.window_of`. One query; a second one for what lies before its page."""
    newest = _newest(agent_id, session_id, before)
    page = [*(newest if limit is None else newest[:limit])][::-1]

    def older() -> tuple[ChatMessage | None, ChatMessage | None]:
        rows = _newest(agent_id, session_id, page[0][0])
        said, told = rows.filter(role=Role.USER), rows.filter(keeps__isnull=False)
        either = Q(position=Subquery(said.values("position")[:1])) | Q(position=Subquery(told.values("position")[:1]))
        both = [_message(*row[1:]) for row in rows.filter(either)]
        summary = next((message for message in both if keeps_of(message) is not None), None)
        return summary, next((message for message in both if message.role is Role.USER), None)

    return window_of([_message(*row[1:]) for row in page], limit, older)


def _newest(agent_id: AgentId, session_id: str | UUID, before: int | None) -> QuerySet[Turn, Any]:
    rows = _turns(agent_id, session_id)
    if before is not None:
        rows = rows.filter(position__lt=before)
    return rows.order_by("-position").values_list("position", "role", "content", "name", "keeps")


def _message(role: str, content: list[Any], name: str, keeps: int | None) -> ChatMessage:
    metadata = {} if keeps is None else {"summary": {"keeps": keeps}}
    return ChatMessage.model_validate({"role": role, "content": content, "name": name or None, "metadata": metadata})


def _turns(agent_id: AgentId, session_id: str | UUID) -> QuerySet[Turn]:
    return Turn.objects.filter(session_id=session_id, agent=str(agent_id))


def _append(
    agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage], run_id: str, start: int | None
) -> None:
    """Outside a run: positions are given under the session's lock."""
    with transaction.atomic():
        Session.objects.filter(id=session_id).update(next_position=F("next_position") + len(messages))
        end = Session.objects.values_list("next_position", flat=True).get(id=session_id)
        Turn.objects.bulk_create(
            [
                Turn(
                    session_id=session_id,
                    agent=str(agent_id),
                    position=end - len(messages) + place,
                    run_id=run_id or None,
                    index=None if start is None else start + place,
                    role=message.role,
                    content=message.to_json()["content"],
                    name=message.name or "",
                    keeps=keeps_of(message),
                )
                for place, message in enumerate(messages)
            ],
            ignore_conflicts=True,
        )


def _context_of(run_id: str | None) -> DurableContext | None:
    """The context of the run that this code runs in; None outside, or inside another run than `run_id`."""
    from ravi_django.runtime.context import current_context

    ctx = current_context()
    return ctx if ctx is not None and run_id in (None, "", ctx.run_id) else None
