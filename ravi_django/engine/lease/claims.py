"""Claims and heartbeats. A claim is one conditional UPDATE that raises the epoch: the worker whose UPDATE matches the
row has the lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db import OperationalError
from django.db.models import Case, Exists, F, IntegerField, JSONField, OuterRef, Q, QuerySet, When
from django.db.models.functions import Coalesce

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock, postgres
from ravi_django.engine.db.postgres import NOW, Row
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.append import mark
from ravi_django.engine.journal.lease import Lease
from ravi_django.models import InboxMessage, Run, Session, Status, WorkerProcess

SUSPECT = 2  # crashes in a row
_CALM = Q(crashes__lt=SUSPECT - 1) | Q(crashes=SUSPECT - 1) & ~Q(status=Status.RUNNING)


def claim(run_id: UUID | str, owner: str, agents: Iterable[str] | None = None, suspects: bool = True) -> Lease | None:
    """Take the lease of a claimable run of one of these agents (None: any), or of an agent stored in the database. None
    if another worker has it or there is nothing to do. Without `suspects`, not of a run with two crashes in a row."""
    known = None if agents is None else list(agents)
    if postgres.in_use():
        return next(iter(_claim_postgres("one", owner, known, suspects, run_id)), None)
    with transaction.atomic():
        return _claim_by_orm(run_id, owner, _of(known, suspects))


def claim_batch(
    owner: str, agents: Iterable[str], room: int, suspects: bool = True, *, only_expired: bool = False
) -> list[Lease]:
    """Take up to `room` claimable runs of these agents, or of agents stored in the database: first those with an
    expired lease, then those with a due timer, then ready ones in the order of `claim_at`. Of runs with two crashes in
    a row at most one. SKIP LOCKED only avoids waits; the condition is the guard."""
    known = list(agents)
    if postgres.in_use():
        return _claim_postgres("expired" if only_expired else "any", owner, known, suspects, room=room)
    leases: list[Lease] = []
    with transaction.atomic():
        for part in (expired,) if only_expired else (expired, timed, ready):
            run_ids = skip_locked(part().filter(_of(known, suspects))).values_list("id", flat=True)
            for run_id in run_ids[: room - len(leases)]:
                if lease := _claim_by_orm(run_id, owner, _of(known, suspects)):
                    suspects = suspects and lease.run.crashes < SUSPECT
                    leases.append(lease)
    return leases


def unclaimed(agents: Iterable[str]) -> list[UUID]:
    """Some of the claimable runs of these agents, or of agents stored in the database, locked ones too."""
    return list(Run.objects.filter(claimable(), _of(list(agents), True)).values_list("id", flat=True)[:5])


def waits_as_suspect(run_id: UUID | str) -> bool:
    """Whether the run can only be claimed by a process that drives no other suspect."""
    return Run.objects.filter(claimable(), ~_CALM, id=run_id).exists()


# ---------------------------------------------------------------------------------------------- through the ORM


def _claim_by_orm(run_id: UUID | str, owner: str, may_claim: Q) -> Lease | None:
    before = Run.objects.filter(id=run_id).values_list("crashes", "lease_owner", "lease_expires_at").first()
    alive = WorkerProcess.objects.filter(name=OuterRef("lease_owner"), seen_at__gt=OuterRef("lease_expires_at"))
    is_crash = When(~Exists(alive), status=Status.RUNNING, then=1)
    taken = Run.objects.filter(claimable(), may_claim, id=run_id).update(
        status=Status.RUNNING,
        lease_owner=owner,
        lease_expires_at=clock.after(conf.LEASE_S),
        lease_epoch=F("lease_epoch") + 1,
        crashes=F("crashes") + Case(is_crash, default=0, output_field=IntegerField()),
        started_at=Coalesce("started_at", clock.now()),
        error=None,
        wake_at=None,
        hints=0,
        hint_after=None,
    )
    if not taken:
        return None
    mark(run_id)
    errors: list[str] = []
    run = _row(Run, run_id, errors)
    run.session = _row(Session, run.session_id, errors)
    # Only children need their roots and parents: these rows are as wide as the run's.
    run.root = _row(Run, run.root_id, errors) if run.root_id else None
    run.parent = _row(Run, run.parent_id, errors) if run.parent_id else None
    if before is not None and outbox.is_on() and run.crashes > before[0]:
        outbox.write([outbox.of_crash(run, before[1])])
    ended, fault = before and before[2], "; ".join(errors)
    return Lease(run=run, epoch=run.lease_epoch, owner=owner, expired_at=ended, fault=fault)


def _row(model: type[Row], key: Any, errors: list[str]) -> Row:
    """The row. If its JSON cannot be read, that is None, and the reason is added to `errors`."""
    rows = model._default_manager.filter(pk=key)
    try:
        return rows.get()
    except ValueError as error:
        errors.append(str(error))
    documents = [column.name for column in model._meta.concrete_fields if isinstance(column, JSONField)]
    row = rows.defer(*documents).get()
    for name in documents:
        setattr(row, name, None)
    return row


def _of(known: list[str] | None, suspects: bool) -> Q:
    """Runs that this process can drive: of its registered agents, and of agents stored in the database."""
    agents = Q() if known is None else Q(agent__in=known) | Q(agent_version__isnull=False)
    return agents if suspects else agents & _CALM


# ------------------------------------------------------------------------------------------------- on PostgreSQL

# The same as `claimable`, `ready`, `timed`, `expired`, `_CALM` and `_of`; a test compares them.
_DUE = f"(wake_at IS NULL OR wake_at <= {NOW} OR (%(release)s::text <> '' AND for_release = %(release)s::text))"
_READY = f"status = 'pending' AND NOT awaits_slot AND {_DUE}"
_TIMED = f"status = 'suspended' AND wake_at <= {NOW}"
_EXPIRED = f"status = 'running' AND lease_expires_at < {NOW}"
_AGENTS = "SELECT jsonb_array_elements_text(%(agents)s::jsonb) AS agent"
_ALLOWED = f"(%(suspects)s::boolean OR crashes + (status = 'running')::int < {SUSPECT})"
_KNOWN = f"(%(agents)s::jsonb IS NULL OR agent_version IS NOT NULL OR agent IN ({_AGENTS})) AND {_ALLOWED}"
_KEY = "CASE WHEN agent_version IS NULL THEN agent ELSE '' END"  # the expression of the index of ready runs
_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
_HEAD = f"FROM ravi_run WHERE {_KEY} = known.agent AND {_READY} AND {_ALLOWED} ORDER BY claim_at, id LIMIT"
_OVERDUE = {
    "expired": f"FROM ravi_run WHERE {_EXPIRED} AND {_KNOWN} ORDER BY lease_expires_at, id",
    "timed": f"FROM ravi_run WHERE {_TIMED} AND {_KNOWN} ORDER BY wake_at, id",
}
_SUSPECTED = f"crashes + (status = 'running')::int >= {SUSPECT} AS suspected"
# The earliest ready runs are counted by agent. Then so many runs of each agent are locked: a run that another claim has
# locked is replaced by the agent's next one, and no run of an unknown agent is read.
_FIRST = f"""SELECT first.* FROM (
    SELECT agent, count(*) AS share
    FROM (
      SELECT known.agent, head.* FROM ({_AGENTS} UNION ALL SELECT '') AS known
      CROSS JOIN LATERAL (SELECT claim_at, id {_HEAD} (SELECT room FROM rest)) AS head
      ORDER BY head.claim_at, head.id LIMIT (SELECT room FROM rest)
    ) AS head GROUP BY agent
  ) AS known
  CROSS JOIN LATERAL (SELECT id, {_SUSPECTED}, claim_at {_HEAD} known.share {_LOCK}) AS first
  ORDER BY first.claim_at, first.id"""  # noqa: S608


def _claim_postgres(
    part: str, owner: str, known: list[str] | None, suspects: bool, run_id: UUID | str | None = None, room: int = 1
) -> list[Lease]:
    """Pick and claim runs in one statement, which returns the claimed rows with their sessions."""
    params: dict[str, str | None] = {
        "now": postgres.present(),
        "owner": owner,
        "lease_s": repr(float(conf.LEASE_S)),
        "release": str(conf.RELEASE),
        "agents": postgres.texts(known),
        "suspects": str(suspects),
        "room": str(room),
        "run": None if run_id is None else str(run_id),
    }
    events = outbox.is_on()
    leases = [_lease_of(row, owner) for row in postgres.execute(_STATEMENTS[part, events], params)]
    if events and any(lease.run.crashes for lease in leases):
        outbox.hint_on_commit()
    return leases


def _lease_of(row: Sequence[Any], owner: str) -> Lease:
    expired_at, number, message_id, body, *rest = row
    width = len(Run._meta.concrete_fields)
    errors: list[str] = []  # of one row: they must not lose the other leases of the batch
    run, root, parent = (
        postgres.instance(Run, rest[start:end], errors) if rest[start] is not None else None
        for start, end in pairwise(range(0, 4 * width, width))
    )
    assert run is not None
    run.root, run.parent, run.session = root, parent, postgres.instance(Session, rest[3 * width :], errors)
    (message,) = postgres.decoded([body], [0], errors)
    sole = None if number is None else (number, InboxMessage.whole(run, message_id, message))
    fault = "; ".join(errors)
    return Lease(run=run, epoch=run.lease_epoch, owner=owner, expired_at=expired_at, sole=sole, fault=fault)


# A worker that was seen after the end of its lease lives: the run did not crash it.
_CRASHED = """status = 'running' AND NOT EXISTS (
      SELECT FROM ravi_workerprocess alive WHERE alive.name = lease_owner AND alive.seen_at > lease_expires_at
    )"""


def _statement(part: str, events: bool) -> str:
    """`part`: "one" claims the run with an id, "expired" runs with an expired lease, "any" the first of any part."""
    picked, which, order = "", "id = %(run)s::uuid", ""
    if part != "one":
        which = "id IN (SELECT id FROM allowed)"
        order = "JOIN allowed ON allowed.id = taken.id ORDER BY place"
        picked = f"""overdue AS MATERIALIZED (
  {" UNION ALL ".join(_overdue(one) for one in (_OVERDUE if part == "any" else [part]))} LIMIT %(room)s::int
), rest AS (
  SELECT %(room)s::int - count(*) AS room FROM overdue
), picked AS MATERIALIZED (
  SELECT *, row_number() OVER () AS place FROM (
    SELECT * FROM overdue {f"UNION ALL SELECT id, suspected FROM ({_FIRST}) AS first" if part == "any" else ""}
  ) AS found
), allowed AS MATERIALIZED (
  SELECT id, place FROM picked WHERE NOT suspected OR place = (SELECT min(place) FROM picked WHERE suspected)
), """  # noqa: S608
    return f"""
WITH {picked}taken AS (
  UPDATE ravi_run SET
    status = 'running', lease_owner = %(owner)s::text, lease_epoch = lease_epoch + 1,
    lease_expires_at = {NOW} + make_interval(secs => %(lease_s)s::float8),
    crashes = crashes + ({_CRASHED})::int, started_at = coalesce(started_at, {NOW}),
    error = NULL, wake_at = NULL, hints = 0, hint_after = NULL
  WHERE {which} AND {_KNOWN} AND (({_READY}) OR ({_TIMED}) OR ({_EXPIRED}))
  RETURNING *
), marks AS (
  INSERT INTO ravi_afterlease (run_id) SELECT id FROM taken ON CONFLICT DO NOTHING
){_EVENTS % {"which": which} if events else ""}
SELECT before.lease_expires_at, message.id, message.message_id, message.body, {postgres.columns(Run, "taken")},
  {postgres.columns(Run, "root")}, {postgres.columns(Run, "parent")}, {postgres.columns(Session, "session")}
FROM taken JOIN ravi_session session ON session.id = taken.session_id
{_beside("before", "taken.id")}{_beside("root", "taken.root_id")}{_beside("parent", "taken.parent_id")}{_SOLE}{order}"""  # noqa: S608


def _beside(name: str, key: str) -> str:
    """The row of a run with this id when the statement began. Always read by its key."""
    return f"LEFT JOIN LATERAL (SELECT * FROM ravi_run WHERE id = {key} LIMIT 1) AS {name} ON TRUE\n"  # noqa: S608


# The message of a run that has one. A delivery wakes the run in its own transaction: if the run was not woken while the
# statement waited for its row, there is no other message. Ordered as in `wake_state.some_after`.
_SOLE = """LEFT JOIN LATERAL (
  SELECT min(id) AS id FROM (
    SELECT id FROM ravi_inboxmessage WHERE run_id BETWEEN taken.id AND taken.id
    AND (run_id, id) > (taken.id, taken.inbox_from) ORDER BY run_id, id LIMIT 2
  ) AS found HAVING count(*) = 1
) AS sole ON taken.generation = 0 AND taken.wake_seq = before.wake_seq
LEFT JOIN LATERAL (SELECT id, message_id, body FROM ravi_inboxmessage WHERE id = sole.id LIMIT 1) AS message ON TRUE
"""


def _overdue(part: str) -> str:
    return f"SELECT * FROM (SELECT id, {_SUSPECTED} {_OVERDUE[part]} LIMIT %(room)s::int {_LOCK}) AS part"  # noqa: S608


# `before` is the run when the statement began. The statement may have waited for the row since: only the row's own
# count of crashes shows that it was claimed from a dead worker.
_EVENTS = f""", before AS (
  SELECT id, crashes, lease_owner FROM ravi_run WHERE %(which)s AND status = 'running'
), events AS (
  INSERT INTO ravi_outboxevent (topic, body, created_at)
  SELECT '{outbox.TOPIC}', {outbox.CRASHED}, {NOW.replace("%", "%%")}
  FROM taken run JOIN before USING (id) WHERE run.crashes = before.crashes + 1
)"""  # noqa: S608
_STATEMENTS = {(part, on): _statement(part, on) for part in ("one", "expired", "any") for on in (False, True)}

LOCK_S = 0.25  # how long a heartbeat waits for one locked row


def claimable() -> Q:
    """Pending with a slot and due, suspended until a time that has passed, or running under an expired lease."""
    now = clock.now()
    pending = Q(status=Status.PENDING, awaits_slot=False) & _due()
    timed = Q(status=Status.SUSPENDED, wake_at__lte=now)
    return pending | timed | Q(status=Status.RUNNING, lease_expires_at__lt=now)


def _due() -> Q:
    """Due by its time, or waiting for a worker of this release."""
    due = Q(wake_at__isnull=True) | Q(wake_at__lte=clock.now())
    return due | Q(for_release=conf.RELEASE) if conf.RELEASE else due


def ready() -> QuerySet[Run]:
    """Pending runs with a slot that are due, in the order of `claim_at`."""
    return Run.objects.filter(_due(), status=Status.PENDING, awaits_slot=False).order_by("claim_at", "id")


def timed() -> QuerySet[Run]:
    """Suspended runs with a due timer, the longest overdue first."""
    return Run.objects.filter(status=Status.SUSPENDED, wake_at__lte=clock.now()).order_by("wake_at", "id")


def expired() -> QuerySet[Run]:
    """Running runs with an expired lease."""
    return Run.objects.filter(status=Status.RUNNING, lease_expires_at__lt=clock.now()).order_by(
        "lease_expires_at", "id"
    )


def skip_locked(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Lock rows and skip locked ones. A transaction that signals a run does not count as a lock."""
    return rows.select_for_update(skip_locked=True, no_key=True, of=("self",))


def abandon(lease: Lease) -> None:
    """Have the lease expire like one of a dead worker."""
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner, status=Status.RUNNING)
    held.update(lease_owner=f"{lease.owner[:190]} failed")


def heartbeat(
    owner: str, leases: Sequence[tuple[UUID, int]], seen: Mapping[UUID, int] | None = None
) -> dict[UUID, str]:
    """Renew all leases of a process in one UPDATE; returns "ok", "cancel", "displaced" (another run of the tree has its
    slot) or "lost" for each, and "woken" for those with a wake-up after the one in `seen`.

    A slow transaction on one run must not cost the others their leases: locked rows are skipped, and waited for
    afterwards, one by one in the given order. Those that stay locked are "unknown". After half a heartbeat the rest is
    "unreached", and should come first in the next heartbeat.
    """
    held = Run.objects.filter(id__in=[run_id for run_id, _ in leases], lease_owner=owner, status=Status.RUNNING)
    with transaction.atomic():
        rows = _renew(skip_locked(held.order_by("id")))
    skipped = set()
    if len(rows) < len(leases):
        skipped = set(held.exclude(id__in=list(rows)).values_list("id", flat=True))
    give_up = time.monotonic() + conf.HEARTBEAT_S / 2
    verdicts = {}
    for run_id, epoch in leases:
        try:
            if run_id in skipped and time.monotonic() > give_up:
                verdicts[run_id] = "unreached"
                continue
            if run_id in skipped:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = {int(LOCK_S * 1000)}")
                    rows |= _renew(held.filter(id=run_id).select_for_update(no_key=True))
            verdicts[run_id] = _verdict(rows.get(run_id), epoch, (seen or {}).get(run_id))
        except OperationalError:
            verdicts[run_id] = "unknown"
    return verdicts


def _renew(held: QuerySet[Run]) -> dict[UUID, tuple[Any, ...]]:
    columns = ("lease_epoch", "cancel_requested_at", "awaits_slot", "wake_seq")
    rows = {run_id: row for run_id, *row in held.values_list("id", *columns)}
    Run.objects.filter(id__in=list(rows)).update(lease_expires_at=clock.after(conf.LEASE_S))
    return rows


def _verdict(row: Sequence[Any] | None, epoch: int, seen: int | None) -> str:
    held_epoch, cancel, awaits_slot, woken = row or (None, None, False, 0)
    if held_epoch != epoch:
        return "lost"
    if cancel:
        return "cancel"
    if awaits_slot:
        return "displaced"
    return "ok" if seen is None or woken <= seen else "woken"
