"""Task boards: the tasks of the agents of a conversation. Every write to a board is here.

A board belongs to a thread: the conversation that a person sees. The session of a spawned run belongs to the thread of
its parent's, so the root's session shows the tasks of the whole tree, nested by `parent_agent`. Each agent of the
thread numbers its own tasks from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.models import Max

from ravi_django.agents.current import _task_agent_id, _task_agent_label, _task_parent_agent_id, _task_thread_id
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.kernel import InvalidInputError, NotFoundError
from ravi_django.kernel.json_values import storable
from ravi_django.live.streams.frames import in_utc
from ravi_django.models import BoardTask, JournalEntry, Run, Session

MAX_TASKS = 100  # of one agent in a thread
MAX_ALL = 500  # of all agents of a thread; concurrent additions may exceed it by one each
MAX_TITLE = 200  # characters
MAX_DETAIL = 2000


@dataclass(frozen=True, slots=True)
class BoardKey:
    """The thread and agent that a tool's tasks belong to, with the names that people see."""

    session_id: UUID
    agent: str
    label: str
    parent_agent: str
    run_id: UUID


def board_key(run: Run) -> BoardKey:
    """The key of the calling code, from the context variables that an agent sets inside its run, else from the
    run."""
    agent = _task_agent_id.get() or run.agent
    label = _task_agent_label.get() or agent.rpartition("/")[2]
    return BoardKey(
        session_id=thread_of(_named_session(run) or run.session).id,
        agent=storable(agent)[:302],
        label=storable(label)[:200],
        parent_agent=storable(_task_parent_agent_id.get() or _parent_of(run))[:302],
        run_id=run.id,
    )


def _named_session(run: Run) -> Session | None:
    """The session that the context names, if it has the run's owner and tenant."""
    named = _task_thread_id.get()
    if not named or named == str(run.session_id):
        return None
    try:
        return Session.objects.filter(id=named, owner_id=run.owner_id, tenant=run.tenant).first()
    except ValidationError:  # a correlation id that is not a session
        return None


def _parent_of(run: Run) -> str:
    if run.parent_id is None:
        return ""
    return str(Run.objects.values_list("agent", flat=True).get(id=run.parent_id))


def thread_of(session: Session) -> Session:
    """The conversation of a session: its own, or the root's for the session of a spawned run."""
    while session.parent_session is not None:
        session = session.parent_session
    return session


def add(key: BoardKey, title: str, detail: str = "") -> BoardTask:
    """Put a task on the board, under the agent's next number. Raises InvalidInputError for an invalid title or detail,
    and when the board is full."""
    task = BoardTask(
        **asdict(key),
        title=_title(title),
        detail=_detail(detail),
        created_at=clock.now(),
        updated_at=clock.now(),
    )
    while True:
        task.number = _last_number(key) + 1
        _check_room(key, task.number)
        try:
            with transaction.atomic():
                task.save(force_insert=True)
        except IntegrityError:
            if _last_number(key) < task.number:
                raise
            continue  # another run of this agent has taken the number
        task.refresh_from_db()
        return task


def _last_number(key: BoardKey) -> int:
    rows = BoardTask.objects.filter(session_id=key.session_id, agent=key.agent)
    return rows.aggregate(last=Max("number"))["last"] or 0


def _check_room(key: BoardKey, number: int) -> None:
    if number > MAX_TASKS:
        raise InvalidInputError(
            f"the board has {MAX_TASKS} tasks of yours, which is the limit; update those", field="title"
        )
    if BoardTask.objects.filter(session_id=key.session_id).count() >= MAX_ALL:
        raise InvalidInputError(f"the board has {MAX_ALL} tasks of all agents, which is the limit", field="title")


def update(
    key: BoardKey, number: int, *, status: str | None = None, title: str | None = None, detail: str | None = None
) -> BoardTask:
    """Change a task of the agent; None keeps a value. Raises NotFoundError for an unknown number, InvalidInputError for
    a bad value or no value at all."""
    checks = (("status", _status, status), ("title", _title, title), ("detail", _detail, detail))
    changes = {name: check(value) for name, check, value in checks if value is not None}
    if not changes:
        raise InvalidInputError("nothing to change: give a status, a title or a detail", field="status")
    rows = BoardTask.objects.filter(session_id=key.session_id, agent=key.agent, number=min(number, MAX_TASKS + 1))
    if not rows.update(**changes, updated_at=clock.now()):
        raise NotFoundError(f"you have no task {number} on the board; board_list shows yours")
    return rows.get()


def _title(value: str) -> str:
    title = " ".join(storable(value).split())
    if not 0 < len(title) <= MAX_TITLE:
        raise InvalidInputError(f"a title has 1 to {MAX_TITLE} characters, not {len(title)}", field="title")
    return title


def _detail(value: str) -> str:
    detail = str(storable(value)).strip()
    if len(detail) > MAX_DETAIL:
        raise InvalidInputError(f"a detail has at most {MAX_DETAIL} characters, not {len(detail)}", field="detail")
    return detail


def _status(value: str) -> str:
    if value not in BoardTask.Status.values:
        raise InvalidInputError(
            f"a status is one of {', '.join(BoardTask.Status.values)}, not {value!r}", field="status"
        )
    return value


def copy_past(source: Run, fork: Run) -> None:
    """Give a fork's thread the board of its past: the tasks from before the source began, as they stand, then the
    changes by the source's own calls up to the shared point."""
    tasks: dict[tuple[str, int], dict[str, Any]] = {}
    if source.session.parent_session_id is None:
        for task in BoardTask.objects.filter(session_id=source.session_id, created_at__lt=source.created_at):
            tasks[task.agent, task.number] = as_json(task)
    calls = JournalEntry.objects.filter(run_id=fork.id, kind="tool.call", result__board__isnull=False).order_by("seq")
    results: Iterable[Any] = calls.values_list("result", flat=True)
    for result in results:
        tasks[result["board"]["agent"], result["board"]["number"]] = result["board"]
    BoardTask.objects.bulk_create(
        BoardTask(
            session_id=fork.session_id,
            run_id=fork.id,
            parent_agent=task["parent_agent"] or "",
            **{name: task[name] for name in ("agent", "label", "number", "title", "detail", "status")},
        )
        for task in tasks.values()
    )


def tasks_of(key: BoardKey, *, all_agents: bool = False) -> Sequence[BoardTask]:
    """The agent's tasks by number, or the tasks of all agents of the thread."""
    rows = BoardTask.objects.filter(session_id=key.session_id)
    if not all_agents:
        rows = rows.filter(agent=key.agent)
    return list(rows.order_by("agent", "number"))


def as_json(task: BoardTask) -> dict[str, Any]:
    """The task as REST and the `board` frame show it."""
    return {
        "id": str(task.id),
        "session": str(task.session_id),
        "agent": task.agent,
        "label": task.label,
        "parent_agent": task.parent_agent or None,
        "run": None if task.run_id is None else str(task.run_id),
        "number": task.number,
        "title": task.title,
        "detail": task.detail,
        "status": str(task.status),
        "created_at": in_utc(task.created_at),
        "updated_at": in_utc(task.updated_at),
    }
