"""Sessions and their runs: each agent has one active root run in a session, the others are queued behind it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db import Error, IntegrityError
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from ravi_django.db import alias, transaction
from ravi_django.engine.db import claim_order, clock, postgres
from ravi_django.engine.db.postgres import NOW
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.entries import encode
from ravi_django.engine.lease.inbox import STEERS
from ravi_django.kernel import AgentNotFoundError, IdempotencyMismatchError, SessionNotFoundError
from ravi_django.models import ACTIVE, InboxMessage, Run, Session, Status, uuid7
from ravi_django.models.session import NAMELESS
from ravi_django.runs.catalog import specs
from ravi_django.runs.wake import ready, touch


def create_run(run: Run, message: dict[str, Any], session: Session | None = None, *, unlocked: bool = False) -> Run:
    """Write a run and its first message in the caller's transaction, with its `session` when that is new. A root run
    whose session has an active or queued run of the same agent is queued behind it.

    The session is locked until the caller's transaction ends, and every live run of the session waits for the lock.
    With `unlocked` a run that has to queue takes no lock: the caller calls `promote_orphan` after the commit.

    Raises IntegrityError when its id or its idempotency key is taken.
    """
    if session is not None:
        run.session = session
        if postgres.in_use():  # nobody else knows the session: there is nothing to lock and nothing to queue behind
            return _insert_run(run, message, session)
    with transaction.atomic():
        is_locked = session is None and _queue_behind(run, unlocked)
        if postgres.in_use():
            return _insert_run(run, message, None, is_locked=is_locked)
        if session is not None:
            create_session(session)
        elif is_locked:
            _note_agent(run)
        claim_order.stamp(run).save(force_insert=True)
        InboxMessage.of(run, message).save(force_insert=True)
        outbox.write(outbox.of_submit(run, message))
        run.refresh_from_db(fields=["created_at", "claim_at"])
    return run


def _queue_behind(run: Run, unlocked: bool) -> bool:
    """Returns whether the session is locked."""
    live = Run.objects.filter(session_id=run.session_id, parent=None, status__in=ACTIVE)
    if unlocked and live.exists():
        run.status = Status.QUEUED
        return False
    if not lock_session(run):
        raise SessionNotFoundError(run.session_id)
    if run.parent_id is None and is_busy(run):
        run.status = Status.QUEUED
    return True


def _note_agent(run: Run) -> None:
    Session.objects.filter(id=run.session_id).update(agent=run.agent, updated_at=clock.now())


def _insert_run(run: Run, message: dict[str, Any], session: Session | None, *, is_locked: bool = True) -> Run:
    """One statement. A run that another submit has written already is not an error of it: that would break the caller's
    transaction."""
    columns, values, params = postgres.insertable(clock.stamp(run))
    params |= claim_order.parameters() | {
        "message_id": message["id"],
        "body": encode(InboxMessage.of(run, message).body).decode(),
    }
    if session is None and not is_locked:
        params["session"] = str(run.session_id)
        beside = "SELECT created_at, updated_at FROM ravi_session WHERE id = %(session)s::uuid"
    elif session is None:
        params |= {"session": str(run.session_id), "agent": run.agent}
        beside = f"""UPDATE ravi_session SET agent = %(agent)s::text, updated_at = {NOW} FROM run
  WHERE ravi_session.id = %(session)s::uuid RETURNING ravi_session.created_at, updated_at"""  # noqa: S608
    else:
        names, selected, more = postgres.insertable(clock.stamp(session))
        params |= more
        beside = f"INSERT INTO ravi_session ({names}) SELECT {selected} FROM run RETURNING created_at, updated_at"  # noqa: S608
    claim_at = claim_order.in_sql(
        "%(run_priority)s::int", "%(run_owner_id)s::text", "%(run_tenant)s::text", "%(run_id)s::uuid"
    )
    events = outbox.of_submit(run, message)
    if events:
        params |= {"topic": outbox.TOPIC, "event": encode(outbox.body(events[0])).decode()}
    rows = postgres.execute(
        f"""
WITH run AS (
  INSERT INTO ravi_run ({columns}, claim_at) VALUES ({values}, {claim_at})
  ON CONFLICT DO NOTHING RETURNING id, created_at, claim_at
), session AS (
  {beside}
), message AS (
  INSERT INTO ravi_inboxmessage (run_id, message_id, body, created_at)
  SELECT id, %(message_id)s::text, %(body)s::jsonb, {NOW} FROM run
){_EVENTS if events else ""}
SELECT run.created_at, run.claim_at, session.created_at, session.updated_at FROM run, session""",  # noqa: S608
        params,
    )
    if not rows:
        raise IntegrityError(f"the id or the idempotency key of run {run.id} is taken, or its session is not free")
    if events:
        outbox.hint_on_commit()
    run.created_at, run.claim_at, *times = rows[0]
    _is_stored(run)
    if session is not None:
        session.created_at, session.updated_at = times
        _is_stored(session)
    return run


_EVENTS = f""", events AS (
  INSERT INTO ravi_outboxevent (topic, body, created_at) SELECT %(topic)s::text, %(event)s::jsonb, {NOW} FROM run
)"""  # noqa: S608


def _is_stored(row: Any) -> None:
    row._state.adding, row._state.db = False, alias()


def create_session(session: Session) -> Session:
    clock.stamp(session).save(force_insert=True)
    return session


def store_named(session: Session, again: bool = True) -> Session:
    """The stored conversation of this new name. Of several submits at once one makes it; the others wait for its
    commit."""
    Session.objects.bulk_create([clock.stamp(session)], ignore_conflicts=True)  # one that is there may lose the name
    named: Any = Session.objects.filter(tenant=session.tenant, owner_key=session.owner_key, name=session.name)
    stored: Session = (named.first() or store_named(session, again=False)) if again else named.get()
    return stored


def stored(session: Session | None, agent: str) -> Session | None:
    """A conversation as `checks.conversation_of` returns it; a new one is stored, for this agent."""
    if session is None or not session._state.adding:
        return session
    session.agent = agent
    return store_named(session)


def take_name(run_id: UUID | str) -> Sequence[str]:
    """Remove name and owner's key from the conversation of a root run or from the fork of it that has them, and return
    them; nothing if none has a name."""
    family = Session.objects.filter(runs__id=run_id).values(first=Coalesce("family", "id"))
    rows = Session.objects.of_family(family[:1]).exclude(name="")
    if (session := rows.select_for_update(of=("self",), no_key=True).first()) is None:
        return ()
    Session.objects.filter(id=session.id).update(**NAMELESS)
    return session.name, session.owner_key


def lock_session(run: Run) -> bool:
    """Lock the run's session. Rows with a foreign key to it can still be written: their writer may hold a run that this
    transaction needs. Returns whether the session may have new runs: it exists and is not being erased."""
    rows = Session.objects.filter(id=run.session_id, erasure=None)
    return bool(rows.select_for_update(no_key=True).values_list("id"))


MOST_BRANCHES = 1000  # forks of one family


def branches_of(session: Session, user: Any) -> list[list[Run]]:
    """The runs of the session's family, as far as the user may see it, that are forks of each other, oldest first. Each
    list has the versions of one message."""
    seen = Session.objects.for_user(user).of_family(session.family or session.id)
    runs = Run.objects.filter(session__in=seen, parent=None)
    forks = runs.filter(forked_from__isnull=False)
    related = runs.filter(Q(forked_from__isnull=False) | Q(id__in=forks.values("forked_from")))
    origins: dict[UUID, UUID] = {}  # the run that each one descends from
    groups: dict[UUID, list[Run]] = {}
    for run in related.only("id", "session", "forked_from").order_by("id")[:MOST_BRANCHES]:  # before their forks
        source = run.forked_from or run.id
        origins[run.id] = origins.get(source, source)
        groups.setdefault(origins[run.id], []).append(run)
    return [runs for runs in groups.values() if len(runs) > 1]


def steer(run: Run, message: dict[str, Any]) -> Run | None:
    """Give the message of a new run to the one that is at work in its session; None if no run there can take it. A
    repeat with the same idempotency key gives it once. Raises IdempotencyMismatchError."""
    if run.idempotency_scope is not None:
        message = {**message, "id": run.idempotency_scope}
    with transaction.atomic():
        at_work = active_root(run).exclude(status=Status.BLOCKED).filter(cancel_requested_at=None)
        running = at_work.select_for_update(no_key=True).first()
        earlier = InboxMessage.objects.filter(message_id=message["id"], run__session_id=run.session_id)
        if (first := earlier.select_related("run").first()) is not None:
            if first.body["payload"] != message["payload"]:
                raise IdempotencyMismatchError(f"this idempotency key belongs to another message to run {first.run_id}")
            return first.run
        if running is not None:
            body = {**message, "metadata": {**message.get("metadata", {}), STEERS: True}}
            InboxMessage.of(running, body).save(force_insert=True)
            touch([running.id])
        return running


def pass_on(run: Run) -> None:
    """In the transaction of an end that is no completion: each steering message that the code was not given becomes a
    queued run."""
    unread = InboxMessage.objects.filter(run_id=run.id, id__gt=F("run__read_upto")).order_by("id")
    steering = unread.filter(body__metadata__steers=True)
    if not steering.exists() or not lock_session(run):
        return
    for row in steering:
        del row.body["metadata"][STEERS]
        same = {name: getattr(run, name) for name in ("agent", "session_id", "owner_id", "tenant", "priority")}
        new = Run(id=uuid7(), status=Status.QUEUED, agent_version=_present_version(run), **same)
        claim_order.stamp(new).save(force_insert=True)
        InboxMessage.objects.filter(id=row.id).delete()
        InboxMessage.objects.create(run=new, message_id=row.message_id, body=row.body)


def _present_version(run: Run) -> int | None:
    try:
        return specs.find(run.agent).version
    except AgentNotFoundError:  # disabled, or code of another process
        return run.agent_version


def is_busy(run: Run) -> bool:
    """Whether a run of the agent is at work in the session, or waits there. Locks nothing."""
    return _next_queued(run) is not None or active_root(run).exists()


def active_root(run: Run) -> QuerySet[Run]:
    return Run.objects.filter(session_id=run.session_id, agent=run.agent, parent=None, status__in=ACTIVE)


def at_work(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Those of these root runs that are pending or running, or have such a run below them."""
    statuses = [Status.PENDING, Status.RUNNING]
    below = Run.objects.filter(root=OuterRef("id"), status__in=statuses)
    return runs.filter(Q(status__in=statuses) | Exists(below))


def _next_queued(run: Run) -> UUID | None:
    """The oldest queued root run of this agent in the session. By the clock of the database: ids are of the clocks of
    web processes."""
    if postgres.in_use():
        rows = postgres.execute(_NEXT, {"session": str(run.session_id), "agent": run.agent, "now": postgres.present()})
        return rows[0][0] if rows else None
    queued = _due().filter(session_id=run.session_id, agent=run.agent)
    return queued.order_by("created_at", "id").values_list("id", flat=True).first()


_NEXT = f"""
SELECT id FROM ravi_run WHERE session_id = %(session)s::uuid AND agent = %(agent)s::text AND parent_id IS NULL
  AND status = 'queued' AND (wake_at IS NULL OR wake_at <= {NOW}) ORDER BY created_at, id LIMIT 1"""  # noqa: S608


def promote(run: Run) -> list[UUID]:
    """Make the session's next queued run of this agent pending, under the session's lock."""
    if run.parent_id is not None:
        return []
    lock_session(run)
    next_id = _next_queued(run)
    if next_id is None or active_root(run).exists():
        return []
    Run.objects.filter(id=next_id, status=Status.QUEUED).update(**ready())
    return [next_id]


def promote_soon(run: Run) -> list[UUID]:
    """`promote` after the commit of an end that has written turns: these lock the session, so each run that was queued
    behind this one is visible now. If this fails, the sweep promotes it."""
    with suppress(Error):
        if _next_queued(run) is not None:
            with transaction.atomic():
                return promote(run)
    return []


def orphans(limit: int) -> list[Run]:
    """Queued runs whose session has no active run: their promotion was lost, or `start_at` has passed."""
    active = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, status__in=ACTIVE
    )
    return list(_due().filter(~Exists(active)).order_by("id")[:limit])


def _due() -> QuerySet[Run]:
    """Queued root runs that may start."""
    is_due = Q(wake_at=None) | Q(wake_at__lte=clock.now())
    return Run.objects.filter(is_due, status=Status.QUEUED, parent=None)


def promote_orphan(run: Run) -> list[UUID]:
    """Call it after the commit of a run that was queued without the session's lock: the run before may have ended."""
    with transaction.atomic():
        promoted = promote(run)
        _note_agent(run)
        return promoted
