"""Claims and heartbeats. A claim is one conditional UPDATE that raises the epoch: the worker whose UPDATE matches the
row has the lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import OperationalError
from django.db.models import Case, Exists, F, IntegerField, OuterRef, Q, QuerySet, When
from django.db.models.functions import Coalesce

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.models import Run, Session, Status, WorkerProcess
from ravi_django.runtime.db import clock, postgres
from ravi_django.runtime.db.postgres import NOW
from ravi_django.runtime.journal import outbox
from ravi_django.runtime.journal.lease import Lease

SUSPECT = 2  # crashes in a row
_CALM = Q(crashes__lt=SUSPECT - 1) | Q(crashes=SUSPECT - 1) & ~Q(status=Status.RUNNING)


def claim(run_id: UUID | str, owner: str, agents: Iterable[str] | None = None, suspects: bool = True) -> Lease | None:
    """Take the lease of a claimable run of one of these agents (None: any), or of an agent stored in the database. None
    if another worker has it or there is nothing to do. Without `suspects`, not of a run with two crashes in a row."""
    known = None if agents is None else list(agents)
    if postgres.in_use():
        return _claim_postgres("one", owner, known, suspects, run_id)
    with transaction.atomic():
        return _claim_by_orm(run_id, owner, _of(known, suspects))


def claim_next(owner: str, agents: Iterable[str], suspects: bool = True, *, only_expired: bool = False) -> Lease | None:
    """Take a claimable run of these agents, or of an agent stored in the database: one with an expired lease, else with
    a due timer, else the ready one with the earliest `claim_at`. SKIP LOCKED only avoids waits; the condition is the
    guard."""
    known = list(agents)
    if postgres.in_use():
        return _claim_postgres("expired" if only_expired else "any", owner, known, suspects)
    mine = _of(known, suspects)
    with transaction.atomic():
        for part in (expired,) if only_expired else (expired, timed, ready):
            for run_id in skip_locked(part().filter(mine)).values_list("id", flat=True)[:1]:
                return _claim_by_orm(run_id, owner, mine)
    return None


def waits_as_suspect(run_id: UUID | str) -> bool:
    """Whether the run can only be claimed by a process that drives no other suspect."""
    return Run.objects.filter(claimable(), ~_CALM, id=run_id).exists()


# ---------------------------------------------------------------------------------------------- through the ORM


def _claim_by_orm(run_id: UUID | str, owner: str, mine: Q) -> Lease | None:
    before = Run.objects.filter(id=run_id).values_list("crashes", "lease_owner", "lease_expires_at").first()
    alive = WorkerProcess.objects.filter(name=OuterRef("lease_owner"), seen_at__gt=OuterRef("lease_expires_at"))
    is_crash = When(~Exists(alive), status=Status.RUNNING, then=1)
    taken = Run.objects.filter(claimable(), mine, id=run_id).update(
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
    run = Run.objects.select_related("session").get(id=run_id)
    if before is not None and outbox.is_on() and run.crashes > before[0]:
        outbox.write([outbox.of_crash(run, before[1])])
    return _with_relatives(run, owner, before and before[2])


def _of(known: list[str] | None, suspects: bool) -> Q:
    """Runs that this process can drive: of its registered agents, and of agents stored in the database."""
    agents = Q() if known is None else Q(agent__in=known) | Q(agent_version__isnull=False)
    return agents if suspects else agents & _CALM


def _with_relatives(run: Run, owner: str, expired_at: datetime | None) -> Lease:
    """The lease of a claimed run. Only a child needs its root and parent: their rows are as wide as the run's."""
    wanted = {key for key in (run.root_id, run.parent_id) if key is not None}
    above = Run.objects.in_bulk(wanted) if wanted else {}
    run.root = above.get(run.root_id)
    run.parent = above.get(run.parent_id)
    return Lease(run=run, epoch=run.lease_epoch, owner=owner, expired_at=expired_at)


# ------------------------------------------------------------------------------------------------- on PostgreSQL

# The same as `claimable`, `ready`, `timed`, `expired`, `_CALM` and `_of`; a test compares them.
_DUE = f"(wake_at IS NULL OR wake_at <= {NOW} OR (%(release)s::text <> '' AND for_release = %(release)s::text))"
_MAY_GO_ON = "(paused_at IS NULL OR cancel_requested_at IS NOT NULL)"
_READY = f"status = 'pending' AND {_MAY_GO_ON} AND {_DUE}"
_TIMED = f"status = 'suspended' AND {_MAY_GO_ON} AND wake_at <= {NOW}"
_EXPIRED = f"status = 'running' AND lease_expires_at < {NOW}"
_AGENTS = "SELECT jsonb_array_elements_text(%(agents)s::jsonb) AS agent"
_ALLOWED = f"(%(suspects)s::boolean OR crashes + (status = 'running')::int < {SUSPECT})"
_KNOWN = f"(%(agents)s::jsonb IS NULL OR agent_version IS NOT NULL OR agent IN ({_AGENTS})) AND {_ALLOWED}"
_KEY = "CASE WHEN agent_version IS NULL THEN agent ELSE '' END"  # the expression of the index of ready runs
_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
# Agents in the order of their earliest runs: no run of another agent is read.
_HEAD = f"FROM ravi_run WHERE {_KEY} = known.agent AND {_READY} AND {_ALLOWED} ORDER BY claim_at, id LIMIT 1"
_PARTS = {
    "expired": f"id FROM ravi_run WHERE {_EXPIRED} AND {_KNOWN} ORDER BY lease_expires_at LIMIT 1 {_LOCK}",
    "timed": f"id FROM ravi_run WHERE {_TIMED} AND {_KNOWN} ORDER BY wake_at LIMIT 1 {_LOCK}",
    "ready": f"""first.id FROM (
      SELECT known.agent FROM ({_AGENTS} UNION ALL SELECT '') AS known
      CROSS JOIN LATERAL (SELECT claim_at {_HEAD}) AS head ORDER BY head.claim_at
    ) AS known CROSS JOIN LATERAL (SELECT id {_HEAD} {_LOCK}) AS first LIMIT 1""",  # noqa: S608
}


def _claim_postgres(
    part: str, owner: str, known: list[str] | None, suspects: bool, run_id: UUID | str | None = None
) -> Lease | None:
    """Pick and claim a run in one statement, which returns the claimed row with its session."""
    params: dict[str, str | None] = {
        "now": postgres.present(),
        "owner": owner,
        "lease_s": repr(float(conf.LEASE_S)),
        "release": str(conf.RELEASE),
        "agents": postgres.texts(known),
        "suspects": str(suspects),
        "run": None if run_id is None else str(run_id),
    }
    told = outbox.is_on()
    for row in postgres.execute(_STATEMENTS[part, told], params):
        own = len(Run._meta.concrete_fields)
        run = postgres.instance(Run, row[:own])
        run.session = postgres.instance(Session, row[own:-1])
        if told and run.crashes:
            outbox.hint_on_commit()
        return _with_relatives(run, owner, row[-1])
    return None


# A worker that was seen after the end of its lease lives: the run did not crash it.
_CRASHED = """status = 'running' AND NOT EXISTS (
      SELECT FROM ravi_workerprocess alive WHERE alive.name = lease_owner AND alive.seen_at > lease_expires_at
    )"""


def _statement(part: str, told: bool) -> str:
    """`part`: "one" claims the run with an id, "expired" the first expired one, "any" the first of any part."""
    picked, which = "", "id = %(run)s::uuid"
    if part != "one":
        parts = _PARTS.values() if part == "any" else [_PARTS[part]]
        found = " UNION ALL ".join(f"SELECT id FROM (SELECT {one}) AS part" for one in parts)  # noqa: S608
        picked, which = f"picked AS MATERIALIZED ({found} LIMIT 1), ", "id IN (SELECT id FROM picked)"
    return f"""
WITH {picked}taken AS (
  UPDATE ravi_run SET
    status = 'running', lease_owner = %(owner)s::text, lease_epoch = lease_epoch + 1,
    lease_expires_at = {NOW} + make_interval(secs => %(lease_s)s::float8),
    crashes = crashes + ({_CRASHED})::int, started_at = coalesce(started_at, {NOW}),
    error = NULL, wake_at = NULL, hints = 0, hint_after = NULL
  WHERE {which} AND {_KNOWN} AND (({_READY}) OR ({_TIMED}) OR ({_EXPIRED}))
  RETURNING *
){_TOLD % {"which": which} if told else ""}
SELECT {postgres.columns(Run, "taken")}, {postgres.columns(Session, "session")},
  (SELECT lease_expires_at FROM ravi_run before WHERE before.id = taken.id)
FROM taken JOIN ravi_session session ON session.id = taken.session_id"""  # noqa: S608


# `before` is the run when the statement began. The statement may have waited for the row since: only the row's own
# count of crashes shows that it was claimed from a dead worker.
_TOLD = f""", before AS (
  SELECT id, crashes, lease_owner FROM ravi_run WHERE %(which)s AND status = 'running'
), told AS (
  INSERT INTO ravi_outboxevent (topic, body, created_at)
  SELECT '{outbox.TOPIC}', {outbox.CRASHED}, {NOW.replace("%", "%%")}
  FROM taken run JOIN before USING (id) WHERE run.crashes = before.crashes + 1
)"""  # noqa: S608
_STATEMENTS = {(part, told): _statement(part, told) for part in ("one", "expired", "any") for told in (False, True)}

LOCK_S = 0.25  # how long a heartbeat waits for one locked row


def claimable() -> Q:
    """Pending and due, suspended until a time that has passed, or running under an expired lease."""
    now = clock.now()
    pending = Q(status=Status.PENDING) & _due()
    timed = Q(status=Status.SUSPENDED, wake_at__lte=now)
    return ((pending | timed) & _may_go_on()) | Q(status=Status.RUNNING, lease_expires_at__lt=now)


def _may_go_on() -> Q:
    """Not paused, or to be cancelled."""
    return Q(paused_at=None) | Q(cancel_requested_at__isnull=False)


def _due() -> Q:
    """Due by its time, or waiting for a worker of this release."""
    due = Q(wake_at__isnull=True) | Q(wake_at__lte=clock.now())
    return due | Q(for_release=conf.RELEASE) if conf.RELEASE else due


def ready() -> QuerySet[Run]:
    """Pending runs that are due, in the order of `claim_at`."""
    return Run.objects.filter(_due(), _may_go_on(), status=Status.PENDING).order_by("claim_at", "id")


def timed() -> QuerySet[Run]:
    """Suspended runs with a due timer, the longest overdue first."""
    return Run.objects.filter(_may_go_on(), status=Status.SUSPENDED, wake_at__lte=clock.now()).order_by("wake_at")


def expired() -> QuerySet[Run]:
    """Running runs with an expired lease."""
    return Run.objects.filter(status=Status.RUNNING, lease_expires_at__lt=clock.now()).order_by("lease_expires_at")


def skip_locked(rows: QuerySet[Run]) -> QuerySet[Run]:
    """Skip locked rows where the database can. A transaction that signals a run does not count as a lock."""
    if connection.features.has_select_for_update_skip_locked:
        return rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    return rows


def abandon(lease: Lease) -> None:
    """Have the lease expire like one of a dead worker."""
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner, status=Status.RUNNING)
    held.update(lease_owner=f"{lease.owner[:190]} failed")


def heartbeat(
    owner: str, leases: Sequence[tuple[UUID, int]], seen: Mapping[UUID, int] | None = None
) -> dict[UUID, str]:
    """Renew all leases of a process in one UPDATE; returns "ok", "cancel", "paused" or "lost" for each, and "woken" for
    those with a wake-up after the one in `seen`.

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
    columns = ("lease_epoch", "cancel_requested_at", "paused_at", "wake_seq")
    rows = {run_id: row for run_id, *row in held.values_list("id", *columns)}
    Run.objects.filter(id__in=list(rows)).update(lease_expires_at=clock.after(conf.LEASE_S))
    return rows


def _verdict(row: Sequence[Any] | None, epoch: int, seen: int | None) -> str:
    mine, cancel, paused, woken = row or (None, None, None, 0)
    if mine != epoch:
        return "lost"
    if cancel:
        return "cancel"
    if paused:
        return "paused"
    return "ok" if seen is None or woken <= seen else "woken"
