"""The rows of deliveries. On PostgreSQL each kind is one statement for all followers; elsewhere they are created in
bulk. The caller has locked the runs and sessions that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.db.models.expressions import DatabaseDefault

from ravi_django.engine.db import claim_order, clock, postgres
from ravi_django.engine.db.postgres import NOW, as_text, cast
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.entries import encode
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Follow, InboxMessage, Run, Session, Status
from ravi_django.runs.wake import WOKEN, woken

SIGNAL = "new_feed_item"  # a message to a live run ends a wait for it
PRIORITY = Priority.LOW  # a person who waits comes before ten thousand feeds


@dataclass(frozen=True, slots=True)
class FollowerMessage:
    """A message to followers. Many followers share the same object."""

    id: str  # the inbox's: a repeat is the same message
    body: Mapping[str, Any]  # the kernel Message
    by: UUID | None = None  # the run that has published it, and does not get it


@dataclass(frozen=True, slots=True)
class ToLive:
    """A live run that gets a message."""

    follow_id: UUID
    message: FollowerMessage
    run_id: UUID
    session_id: UUID


@dataclass(frozen=True, slots=True)
class ToNew:
    """A new run with its first message."""

    follow_id: UUID
    message: FollowerMessage
    run_id: UUID
    session_id: UUID
    fresh: bool  # the session is new, too
    status: Status
    version: int | None  # of the agent's spec


def to_live_runs(targets: Sequence[ToLive]) -> list[UUID]:
    """Write message and wake-up, once for each run and message; returns the runs that can be claimed."""
    if not targets:
        return []
    if not postgres.in_use():
        return _to_live_by_orm(targets)
    indexes, documents = _documents([one.message for one in targets])
    rows = [[one.run_id, indexes[one.message.id]] for one in targets]
    params = claim_order.parameters(PRIORITY) | {"rows": json_text(rows), "documents": documents}
    return [run_id for run_id, status in postgres.execute(_TO_LIVE, params) if status == Status.PENDING]


def to_new_runs(targets: Sequence[ToNew]) -> list[UUID]:
    """Create runs with their first message, and the new sessions; returns the runs that can be claimed."""
    if not targets:
        return []
    if outbox.is_on():
        _write_events(targets)
    if not postgres.in_use():
        return _to_new_by_orm(targets)
    indexes, documents = _documents([one.message for one in targets])
    rows = [
        [one.follow_id, one.run_id, one.session_id, one.fresh, one.status, one.version, indexes[one.message.id]]
        for one in targets
    ]
    sql, params = _begin_statement()
    postgres.execute(sql, params | claim_order.parameters() | {"rows": json_text(rows), "documents": documents})
    return [one.run_id for one in targets if one.status == Status.PENDING]


def note_delivered(homes: Mapping[UUID, UUID]) -> None:
    """Write the home of each follow, and for those with `every_s` the time."""
    if postgres.in_use():
        params = {"now": postgres.present(), "rows": json_text(list(homes.items()))}
        postgres.execute(_NOTE, params)
        return
    Follow.objects.filter(id__in=homes, every_s__gt=0).update(last_at=clock.now())
    moved = [Follow(id=follow_id, home_id=session_id) for follow_id, session_id in homes.items()]
    Follow.objects.bulk_update(moved, ["home_id"], batch_size=500)


def _documents(messages: Sequence[FollowerMessage]) -> tuple[dict[str, int], str]:
    """The index of each different message by its id, and the messages as JSON."""
    unique = {message.id: message for message in messages}
    documents = [[message.id, message.body] for message in unique.values()]
    return {name: index for index, name in enumerate(unique)}, json_text(documents)


def json_text(rows: Any) -> str:
    return encode(rows).decode()


# ------------------------------------------------------------------------------------------------- on PostgreSQL

_DOCUMENTS = """document AS MATERIALIZED (
  SELECT place - 1 AS place, one ->> 0 AS id, one -> 1 AS body
  FROM jsonb_array_elements(%(documents)s::jsonb) WITH ORDINALITY AS given(one, place)
)"""
_TO_LIVE = f"""
WITH {_DOCUMENTS}, given AS (
  SELECT (one ->> 0)::uuid AS run_id, (one ->> 1)::int AS place FROM jsonb_array_elements(%(rows)s::jsonb) AS one
), sent AS (
  INSERT INTO ravi_inboxmessage (run_id, message_id, name, body, created_at)
  SELECT given.run_id, document.id, '{SIGNAL}', document.body, {NOW} FROM given JOIN document USING (place)
  ON CONFLICT DO NOTHING RETURNING run_id
)
UPDATE ravi_run SET {WOKEN}
FROM (SELECT DISTINCT run_id FROM sent) AS woken WHERE ravi_run.id = woken.run_id
RETURNING ravi_run.id, ravi_run.status"""  # noqa: S608 - of our own names
_NOTE = f"""
UPDATE ravi_follow SET last_at = CASE WHEN every_s > 0 THEN {NOW} END, home_id = (one ->> 1)::uuid
FROM jsonb_array_elements(%(rows)s::jsonb) AS one WHERE ravi_follow.id = (one ->> 0)::uuid
RETURNING ravi_follow.id"""  # noqa: S608


def _begin_statement() -> tuple[str, dict[str, str | None]]:
    same = {"agent": "f.agent", "owner_id": "f.owner_id", "tenant": "f.tenant", "created_at": NOW}
    runs, run_values, params = _columns(
        Run(priority=PRIORITY.value),
        same
        | {
            "id": "g.run_id",
            "session_id": "g.session_id",
            "status": "g.status",
            "metadata": "f.metadata",
            "agent_version": "g.version",
            "claim_at": claim_order.in_sql("%(run_priority)s::int", "f.owner_id", "f.tenant", "g.run_id"),
        },
    )
    sessions, session_values, more = _columns(
        Session(), same | {"id": "g.session_id", "title": "left(f.topic, 200)", "updated_at": NOW}
    )
    sql = f"""
WITH {_DOCUMENTS}, g AS MATERIALIZED (
  SELECT (one ->> 0)::uuid AS follow_id, (one ->> 1)::uuid AS run_id, (one ->> 2)::uuid AS session_id,
    (one ->> 3)::boolean AS fresh, one ->> 4 AS status, (one ->> 5)::int AS version, (one ->> 6)::int AS place
  FROM jsonb_array_elements(%(rows)s::jsonb) AS one
), sessions AS (
  INSERT INTO ravi_session ({sessions})
  SELECT {session_values} FROM g JOIN ravi_follow f ON f.id = g.follow_id WHERE g.fresh
), spoken AS (
  UPDATE ravi_session SET agent = f.agent, updated_at = {NOW}
  FROM g JOIN ravi_follow f ON f.id = g.follow_id WHERE NOT g.fresh AND ravi_session.id = g.session_id
), runs AS (
  INSERT INTO ravi_run ({runs}) SELECT {run_values} FROM g JOIN ravi_follow f ON f.id = g.follow_id RETURNING id
), messages AS (
  INSERT INTO ravi_inboxmessage (run_id, message_id, body, created_at)
  SELECT g.run_id, document.id, document.body, {NOW} FROM g JOIN document USING (place)
)
SELECT count(*) FROM runs"""  # noqa: S608
    return sql, params | more


def _columns(row: Model, expressions: Mapping[str, str]) -> tuple[str, str, dict[str, str | None]]:
    """The columns of new rows and their values: SQL from `expressions`, else parameters with the values of `row`."""
    values: dict[str, str] = {}
    params: dict[str, str | None] = {}
    fields: Any = row._meta.concrete_fields
    for one in fields:
        value = getattr(row, one.attname)
        if one.column in expressions:
            values[one.column] = expressions[one.column]
        elif not isinstance(value, DatabaseDefault):
            name = f"{row._meta.model_name}_{one.column}"
            values[one.column] = f"%({name})s::{cast(one)}"
            params[name] = as_text(one, value)
    return ", ".join(f'"{column}"' for column in values), ", ".join(values.values()), params


# ---------------------------------------------------------------------------------------------- through the ORM


def _to_live_by_orm(targets: Sequence[ToLive]) -> list[UUID]:
    known = set(
        InboxMessage.objects.filter(
            run_id__in=[one.run_id for one in targets], message_id__in={one.message.id for one in targets}
        ).values_list("run_id", "message_id")
    )
    new = {(one.run_id, one.message.id): one for one in targets if (one.run_id, one.message.id) not in known}.values()
    InboxMessage.objects.bulk_create(clock.stamp(_message(one, SIGNAL)) for one in new)
    ids = {one.run_id for one in new}
    Run.objects.filter(id__in=ids).update(**woken(PRIORITY))
    return list(Run.objects.filter(id__in=ids, status=Status.PENDING).values_list("id", flat=True))


def _to_new_by_orm(targets: Sequence[ToNew]) -> list[UUID]:
    follows = Follow.objects.in_bulk([one.follow_id for one in targets])
    Session.objects.bulk_create(
        clock.stamp(
            Session(
                id=one.session_id,
                owner_id=follows[one.follow_id].owner_id,
                tenant=follows[one.follow_id].tenant,
                agent=follows[one.follow_id].agent,
                title=follows[one.follow_id].topic[:200],
            )
        )
        for one in targets
        if one.fresh
    )
    for agent in {follows[one.follow_id].agent for one in targets if not one.fresh}:
        spoken = [one.session_id for one in targets if not one.fresh and follows[one.follow_id].agent == agent]
        Session.objects.filter(id__in=spoken).update(agent=agent, updated_at=clock.now())
    Run.objects.bulk_create(claim_order.stamp(_run(one, follows[one.follow_id])) for one in targets)
    InboxMessage.objects.bulk_create(clock.stamp(_message(one)) for one in targets)
    return [one.run_id for one in targets if one.status == Status.PENDING]


def _run(one: ToNew, follow: Follow) -> Run:
    return Run(
        id=one.run_id,
        agent=follow.agent,
        session_id=one.session_id,
        owner_id=follow.owner_id,
        tenant=follow.tenant,
        status=one.status,
        priority=PRIORITY.value,
        metadata=follow.metadata,
        agent_version=one.version,
    )


def _message(one: ToLive | ToNew, name: str = "") -> InboxMessage:
    return InboxMessage(run_id=one.run_id, message_id=one.message.id, name=name, body=dict(one.message.body))


def _write_events(targets: Sequence[ToNew]) -> None:
    follows = Follow.objects.in_bulk([one.follow_id for one in targets])
    runs = ((_run(one, follows[one.follow_id]), one.message.body) for one in targets)
    outbox.write([event for run, body in runs for event in outbox.of_submit(run, body)])
