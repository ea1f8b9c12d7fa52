"""Conversation history in the database: turns by agent and session.

An agent reads its own turns and the session's shared ones: its person's words and the answers of other agents.
Appended turns are written with the run's next effect. A read is journaled as a position: turns do not change, so a
replay reads the same ones. Clearing and counting are journaled too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, When

from ravi_django.agents.memory.history import page_among, window_among, window_of
from ravi_django.agents.memory.transcript import OURS, POSITION, close_dangling, is_users, keeps_of
from ravi_django.db import transaction
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Entry, NewTurn, write_turns
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.lease_state import RETENTION
from ravi_django.engine.lease.state import ALONE, RunState, current_context
from ravi_django.kernel import AgentId, ChatMessage, Role, ToolResultBlock
from ravi_django.models import Session, Turn
from ravi_django.models.session import BLOCKS, TurnQuerySet, by_agent, row_blocks


class DjangoHistoryProvider:
    """A HistoryProvider for any number of concurrent runs."""

    shares = True  # `append_many` takes `shared`: the places of those messages that all agents of the session read

    async def append(
        self, agent_id: AgentId, session_id: str, message: ChatMessage, *, run_id: str = "", index: int | None = None
    ) -> None:
        """Store one turn at the end."""
        await self.append_many(agent_id, session_id, [message], run_id=run_id, start=index)

    async def append_many(
        self,
        agent_id: AgentId,
        session_id: str,
        messages: Sequence[ChatMessage],
        *,
        run_id: str = "",
        start: int | None = None,
        shared: Collection[int] = (),
    ) -> None:
        """Store messages; one that is stored already under (run, index) is skipped."""
        ctx = _context_of(run_id)
        if ctx is not None:
            ctx.remember(agent_id, session_id, messages, start, shared)
        else:
            await sync_to_async(_append)(agent_id, session_id, messages, run_id, start, shared)

    async def seed(self, agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage]) -> bool:
        """Store older turns unless the history has some; of several processes at once, one stores them. They do not
        count as turns of the run."""
        ctx = _context_of(None)
        if ctx is not None:
            return await _seed_in(ctx, agent_id, session_id, messages)
        stored: bool = (await sync_to_async(seed)(agent_id, session_id, messages))[0]
        return stored

    async def get(
        self, agent_id: AgentId, session_id: str, *, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """The newest `limit` messages (all when None) after skipping `offset` of the newest, oldest first."""
        ctx = _context_of(None)
        if ctx is not None and str(ctx.session_id) == str(session_id):
            return await _read_in(ctx, agent_id, limit=limit, offset=offset)
        messages: list[ChatMessage] = await sync_to_async(read)(agent_id, session_id, limit=limit, offset=offset)
        return messages

    async def window(self, agent_id: AgentId, session_id: str, *, limit: int | None = None) -> list[ChatMessage]:
        """See `window_of` in `agents/memory/history.py`. At most two queries."""
        ctx = _context_of(None)
        if ctx is not None and str(ctx.session_id) == str(session_id):
            return await _read_in(ctx, agent_id, limit=limit, window=True)
        messages: list[ChatMessage] = await sync_to_async(read_window)(agent_id, session_id, limit=limit)
        return messages

    async def count(self, agent_id: AgentId, session_id: str) -> int:
        """The number of turns; inside a run, without the run's own."""
        ctx = _context_of(None)
        if ctx is None:
            return int(await sync_to_async(_read_by(agent_id, session_id).filter(keeps=None).count)())
        return await _count_in_run(ctx, agent_id, session_id)

    async def clear(self, agent_id: AgentId, session_id: str) -> None:
        """Delete the conversation."""
        await _clear(agent_id, session_id)

    async def clear_run(self, agent_id: AgentId, session_id: str, run_id: str) -> None:
        """Delete a run's turns, also those that wait for its next commit."""
        await _clear(agent_id, session_id, run_id)

    def drops_at_end(self, agent_id: AgentId, session_id: str) -> bool:
        """Have the agent's turns deleted when the current run ends in any way. Returns False outside of runs, and does
        nothing."""
        ctx = _context_of(None)
        if ctx is not None:
            ctx.recorder.record_with_next_once(Entry("history.retention", f"{RETENTION}{agent_id}", str(agent_id)))
        return ctx is not None


async def _count_in_run(ctx: RunState, agent_id: AgentId, session_id: str) -> int:
    path = ctx.path()
    if (row := ctx.recorder.recall_unordered(path, "history.count", str(agent_id))) is not None:
        return int(row.result["count"])
    of_run = Q(run_id=ctx.run_id, index__gte=ctx.recorder.lease.run.turn_from)
    earlier = _read_by(agent_id, session_id).filter(keeps=None).exclude(of_run)
    with ctx.recorder.waits.busy():
        count = int(await ctx.recorder.database.call(earlier.count))
    ctx.recorder.record_with_next(Entry(kind="history.count", path=path, name=str(agent_id), result={"count": count}))
    return count


async def _clear(agent_id: AgentId, session_id: str, run_id: str | None = None) -> None:
    """Inside a run this is an effect, in one commit with its row and the turns before it."""
    ctx = _context_of(None)
    if ctx is None:
        turns = _turns(agent_id, session_id)
        await sync_to_async((turns if run_id is None else turns.filter(run_id=run_id)).delete)()
        return
    path, name = ctx.path(), str(agent_id)
    if await ctx.recorder.recall(path, "history.clear", name) is not None:
        return
    write = partial(clear_turns, session_id=session_id, agent=name, run_id=run_id)
    async with ctx.recorder.effect():
        await ctx.recorder.record(Entry(kind="history.clear", path=path, name=name, request={"run": run_id}), write)


def read(
    agent_id: AgentId,
    session_id: str | UUID,
    *,
    limit: int | None = None,
    offset: int = 0,
    before: int | None = None,
    alone: bool = False,
) -> list[ChatMessage]:
    """One query, for any length of the conversation. `before` is a position: turns from there on are not read. With
    `alone` no turns of other agents."""
    newest = _newest(agent_id, session_id, before, alone).filter(keeps=None)
    page = newest[offset:] if limit is None else newest[offset : offset + limit]
    return close_dangling(_view(str(agent_id), [*page][::-1]), at_end=offset <= 0)


def read_window(
    agent_id: AgentId,
    session_id: str | UUID,
    *,
    limit: int | None = None,
    before: int | None = None,
    alone: bool = False,
) -> list[ChatMessage]:
    """See `window_of` in `agents/memory/history.py`. One query, and one more for the turns before its page."""
    newest = _newest(agent_id, session_id, before, alone)
    page = [*(newest if limit is None else newest[:limit])][::-1]

    def older() -> tuple[ChatMessage | None, ChatMessage | None]:
        rows = _newest(agent_id, session_id, page[0].position, alone)
        users, summaries = rows.filter(role=Role.USER).exclude(name__startswith=OURS), rows.filter(keeps__isnull=False)
        last = [Q(position=Subquery(some.values("position")[:1])) for some in (users, summaries)]
        both = [_message(str(agent_id), row) for row in rows.filter(last[0] | last[1])]
        summary = next((message for message in both if keeps_of(message) is not None), None)
        return summary, next((message for message in both if is_users(message)), None)

    return window_of(_view(str(agent_id), page), limit, older)


def _newest(agent_id: AgentId, session_id: str | UUID, before: int | None, alone: bool = False) -> QuerySet[Turn, Any]:
    rows = (_turns if alone else _read_by)(agent_id, session_id)
    if before is not None:
        rows = rows.filter(position__lt=before)
    return rows.whole().order_by("-position").values_list(*_COLUMNS, named=True)


_COLUMNS = ("position", "by", "role", "name", "keeps", "seen", *BLOCKS)


def _message(agent: str, row: Any) -> ChatMessage:
    """Of another agent's answer its text alone, under that agent's name."""
    content = row_blocks(row)
    metadata = {} if row.keeps is None else {"summary": {"keeps": row.keeps}}
    name = row.name or None
    if row.by != agent and row.role == Role.ASSISTANT:
        content, name = [block for block in content if block["type"] == "text"], name_of(row.by)
    message = ChatMessage.model_validate({"role": row.role, "content": content, "name": name, "metadata": metadata})
    message._wire[POSITION] = row.position
    return message


def _view(agent: str, rows: Sequence[Any]) -> list[ChatMessage]:
    """The rows as the agent met them. Turns of other agents come behind the results of its own calls that were open
    meanwhile, and behind a summary whose run had not read them: the summary does not cover them."""
    if all(row.by == agent for row in rows):
        return [_message(agent, row) for row in rows]
    summary = next((row for row in reversed(rows) if row.keeps is not None), None)
    seen, end = (None, 0) if summary is None else (summary.seen, summary.position)
    view: list[ChatMessage] = []
    later: list[ChatMessage] = []  # behind the results of the open calls
    unread: list[ChatMessage] = []  # behind the summary
    calls: set[str] = set()  # without a result
    for row in rows:
        message = _message(agent, row)
        if row.by != agent:
            is_unread = seen is not None and seen <= row.position < end
            (unread if is_unread else later if calls else view).append(message)
            continue
        if message.role is Role.TOOL:
            calls -= {block.call_id for block in message.content if isinstance(block, ToolResultBlock)}
            view.append(message)
        else:
            calls = {call.call_id for call in message.tool_calls}
            view += [*later, message]
            later = []
        if row is summary:
            view += unread
        if not calls:
            view += later
            later = []
    return view + later


_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


def name_of(agent: str) -> str:
    """The name of another agent's answers: the key of its address, in the characters that providers accept."""
    return _NO_NAME.sub("_", AgentId.parse(agent).key)[:64]


def _turns(agent_id: AgentId, session_id: str | UUID) -> TurnQuerySet:
    """The agent's own turns."""
    return Turn.objects.filter(by_agent(str(agent_id)), session_id=session_id)


def _read_by(agent_id: AgentId, session_id: str | UUID) -> TurnQuerySet:
    """What the agent reads of the session: its own turns and the shared ones of other agents."""
    return Turn.objects.filter(by_agent(str(agent_id)) | Q(shared=True), session_id=session_id)


def _append(
    agent_id: AgentId,
    session_id: str,
    messages: Sequence[ChatMessage],
    run_id: str,
    start: int | None,
    shared: Collection[int] = (),
) -> None:
    """Outside a run."""
    session_key, run = UUID(str(session_id)), UUID(run_id) if run_id else None
    stored: set[int | None] = set()
    turns: list[tuple[int | None, NewTurn]] = []
    with transaction.atomic():
        if run is not None and start is not None:
            _lock(session_key)
            stored.update(Turn.objects.filter(session_id=session_key, run_id=run).values_list("index", flat=True))
        for number, message in enumerate(messages):
            index = None if start is None else start + number
            if index not in stored:
                turns.append((index, NewTurn(session_key, str(agent_id), message, shared=number in shared)))
        write_turns(session_key, turns, run_id=run)


def _lock(session_id: str | UUID) -> None:
    """On every database."""
    Session.objects.filter(id=session_id).update(next_position=F("next_position"))


def seed(agent_id: AgentId, session_id: str | UUID, messages: Sequence[ChatMessage]) -> tuple[bool, int]:
    """Returns whether the turns were stored, and the position of the session's next turn. Takes the session's lock."""
    with transaction.atomic():
        _lock(session_id)
        empty = not _turns(agent_id, session_id).filter(keeps=None).exists()
        if empty:
            _append(agent_id, str(session_id), messages, "", None)
        return empty, Session.objects.values_list("next_position", flat=True).get(id=session_id)


def _context_of(run_id: str | None) -> RunState | None:
    """The context of the current run; None outside of runs, and inside another run than `run_id`."""
    ctx = current_context()
    return ctx if ctx is not None and run_id in (None, "", ctx.run_id) else None


async def _seed_in(ctx: RunState, agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage]) -> bool:
    """Store at once turns that are older than the run, unless the conversation has some: the run's next read has
    them."""
    ctx.check_session(session_id)
    with ctx.recorder.waits.busy():
        seeded, end = await ctx.recorder.database.call(seed, agent_id, session_id, messages)
    ctx.recorder.lease.run.session.next_position = end
    return seeded


async def _read_in(
    ctx: RunState, agent_id: AgentId, *, limit: int | None, offset: int = 0, window: bool = False
) -> list[ChatMessage]:
    """The session's earlier turns, or with `window` those for a prompt. The position is journaled, and the sessions
    that a delegated agent remembers."""
    path, session = ctx.path(), ctx.recorder.lease.run.session
    row = ctx.recorder.recall_unordered(path, "history.read", str(agent_id))
    position = session.next_position if row is None else row.result["position"]
    known = None if row is None else row.result.get("sessions")
    sessions: dict[str, Any] = {}
    messages: list[ChatMessage] = []
    if known or (row is None and session.memory_of):
        with ctx.recorder.waits.busy():
            past, read_from = await ctx.recorder.database.call(read_remembered, agent_id, session, position, known)
        sessions = {"sessions": read_from}
        messages = window_among(past, limit) if window else page_among(past, limit, offset)
    elif position:  # a new conversation has nothing to read
        where: dict[str, Any] = {"limit": limit, "before": position} | ({} if window else {"offset": offset})
        where["alone"] = ALONE in (ctx.recorder.lease.run.metadata or {})
        reads = read_window if window else read
        with ctx.recorder.waits.busy():
            messages = await ctx.recorder.database.call(reads, agent_id, ctx.session_id, **where)
    if window:
        ctx.seen.setdefault(str(agent_id), position)
    if row is None:
        result = {"position": position, "count": len(messages), **sessions}
        ctx.recorder.record_with_next(Entry(kind="history.read", path=path, name=str(agent_id), result=result))
    return messages


SESSIONS = 20  # sessions that a delegated agent reads whole; their last summary stands for older ones
TURNS = 2_000  # the most turns that it reads


def read_remembered(
    agent_id: AgentId, session: Session, before: int, known: list[str] | None
) -> tuple[list[ChatMessage], list[str]]:
    """What a child remembers: its agent's turns in the ended child sessions of the conversation, in the order of their
    ends, then its own before a position. Returns them with summaries, and the ids of those sessions; `known`: reads
    these. One query."""
    turns = Turn.objects.filter(by_agent(str(agent_id)))
    ended = Q(memory_of=session.memory_of, ended_at__isnull=False) if known is None else Q(id__in=known)
    order = F("session__ended_at").desc(nulls_first=True), "-session_id", "-position"
    summary = turns.filter(session__in=Session.objects.filter(ended), keeps__isnull=False).order_by(*order)
    first = Case(When(id=session.id, then=0), When(id=Subquery(summary.values("session_id")[:1]), then=1), default=2)
    sessions = Session.objects.filter(ended | Q(id=session.id)).filter(Exists(turns.filter(session=OuterRef("pk"))))
    chosen = sessions.order_by(first, "-ended_at", "-id").values("id")[: SESSIONS + 2]
    rows = turns.whole().filter(session__in=chosen)  # in one IN: an OR would read the whole table
    rows = rows.exclude(session=session.id, position__gte=before).order_by(*order)
    of_session = ("session_id", "session__created_at", "session__ended_at")
    newest_first = rows.values_list(*of_session, *_COLUMNS, named=True)[:TURNS]
    groups = [(key, list(group)) for key, group in groupby(reversed(newest_first), key=itemgetter(0, 1, 2))]
    ids = [str(session_id) for (session_id, _, ended_at), _ in groups if ended_at is not None]
    messages: list[ChatMessage] = []
    last_end = None
    for number, ((group_id, created_at, ended_at), group) in enumerate(groups):
        of_group = [_message(str(agent_id), row) for row in group]
        for message in of_group:  # positions are those of one session
            message._wire[POSITION] += group_id.int << 64
        if number < len(ids) - SESSIONS:
            of_group = [message for message in of_group if keeps_of(message) is not None]
        elif ended_at and last_end and created_at < last_end:  # its summaries do not cover the turns of that sibling
            of_group = [message for message in of_group if keeps_of(message) is None]
        last_end = ended_at
        messages += of_group
    return messages, ids


def remembered_at(session_id: UUID, until: datetime) -> QuerySet[Turn]:
    """What the delegated agents of a conversation remembered at a time, without their summaries: these count turns of
    single sessions."""
    return Turn.objects.filter(session__memory_of=session_id, session__ended_at__lte=until, keeps=None)


@appending
def clear_turns(lease: Lease, *, session_id: UUID | str, agent: str, run_id: UUID | str | None = None) -> None:
    """Delete an agent's turns in a session, or only those of one run, including turns written with this row."""
    turns = Turn.objects.filter(by_agent(agent), session_id=session_id)
    (turns if run_id is None else turns.filter(run_id=run_id)).delete()
