"""Sessions and the runs in them: one active root run of an agent a session, the others queued behind it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from ravi_django.models import (
    ACTIVE,
    InboxMessage,
    Run,
    Session,
    Status,
)
from ravi_django.runtime import clock


def create_run(run: Run, message: dict[str, Any]) -> Run:
    """Write a run and its first message in the caller's transaction. A root run whose session has an active run of
    the same agent is queued behind it."""
    with transaction.atomic():
        lock_session(run)
        if run.parent_id is None and active_root(run).exists():
            run.status = Status.QUEUED
        stamp(run).save(force_insert=True)
        Session.objects.filter(id=run.session_id).update(agent=run.agent, updated_at=clock.now())
        InboxMessage.objects.create(run=run, message_id=message["id"], body=message)
        run.refresh_from_db(fields=["created_at"])
    return run


def create_session(session: Session) -> Session:
    """Write a conversation's row; its times are the database's."""
    stamp(session).save(force_insert=True)
    return session


def stamp(row: Any) -> Any:
    if (present := clock.fixed()) is not None:
        row.created_at = present
    return row


def lock_session(run: Run) -> None:
    Session.objects.select_for_update().filter(id=run.session_id).values_list("id").get()


def active_root(run: Run) -> QuerySet[Run]:
    return Run.objects.filter(session_id=run.session_id, agent=run.agent, parent=None, status__in=ACTIVE)


def promote(run: Run) -> list[UUID]:
    """The session's next queued run of this agent, if any, becomes pending. Under the session's lock, as
    `create_run`."""
    if run.parent_id is not None:
        return []
    lock_session(run)
    queued = Run.objects.filter(session_id=run.session_id, agent=run.agent, parent=None, status=Status.QUEUED)
    next_id: UUID | None = queued.order_by("id").values_list("id", flat=True).first()
    if next_id is None or active_root(run).exists():
        return []
    Run.objects.filter(id=next_id, status=Status.QUEUED).update(status=Status.PENDING)
    return [next_id]


def orphaned() -> QuerySet[Run]:
    """Queued runs whose session has no active run any more."""
    active = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, status__in=ACTIVE
    )
    return Run.objects.filter(~Exists(active), status=Status.QUEUED, parent=None).order_by("id")


def orphans(limit: int) -> list[Run]:
    """A guard behind the promotion in `finish`: finds nothing unless a promotion was lost."""
    return list(orphaned()[:limit])


def promote_orphan(run: Run) -> list[UUID]:
    with transaction.atomic():
        return promote(run)
