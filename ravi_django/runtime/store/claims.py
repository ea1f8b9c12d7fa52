"""Taking leases: one conditional UPDATE, which raises the epoch. Whoever's it is that matches the row has the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, IntegerField, Q, QuerySet, When
from django.db.models.functions import Coalesce

from ravi_django.conf import conf
from ravi_django.models import Run, Session, Status
from ravi_django.runtime import clock
from ravi_django.runtime.store import outbox, postgres
from ravi_django.runtime.store.leases import Lease, claimable, expired, ready, skip_locked, timed
from ravi_django.runtime.store.postgres import NOW


def claim(run_id: UUID | str, owner: str, agents: Iterable[str] | None = None) -> Lease | None:
    """Take the lease of a claimable run of one of these agents (None: any), or of one that is a row; None when
    somebody else has it or there is nothing to do."""
    known = None if agents is None else list(agents)
    if postgres.in_use():
        return next(iter(_claim_postgres("one", owner, known, 1, run_id)), None)
    with transaction.atomic():
        return _claim_by_orm(run_id, owner, known)


def claim_next(owner: str, agents: Iterable[str]) -> Lease | None:
    """Take the most urgent claimable run of these agents, or of one that is a row."""
    return next(iter(claim_many(owner, agents, 1)), None)


def claim_many(owner: str, agents: Iterable[str], limit: int) -> list[Lease]:
    """Take the most urgent claimable runs of these agents and of those that are rows, what is ready before what a dead
    worker left. SKIP LOCKED only spares waiting; the condition on the row is the guard."""
    known = list(agents)
    if postgres.in_use():
        leases: list[Lease] = []
        for part in ("ready", "timed", "expired"):
            if len(leases) < limit:
                leases += _claim_postgres(part, owner, known, limit - len(leases))
        return leases
    with transaction.atomic():
        return _claim_many_by_orm(owner, known, limit)


# ---------------------------------------------------------------------------------------------- through the ORM


def _claim_by_orm(run_id: UUID | str, owner: str, known: list[str] | None) -> Lease | None:
    before = Run.objects.filter(id=run_id).values_list("crashes", "lease_owner").first() if outbox.is_on() else None
    taken = Run.objects.filter(claimable(), _of(known), id=run_id).update(
        status=Status.RUNNING,
        lease_owner=owner,
        lease_expires_at=clock.after(conf.LEASE_S),
        lease_epoch=F("lease_epoch") + 1,
        crashes=F("crashes") + Case(When(status=Status.RUNNING, then=1), default=0, output_field=IntegerField()),
        started_at=Coalesce("started_at", clock.now()),
        error=None,
        wake_at=None,
        hints=0,
        hint_after=None,
    )
    if not taken:
        return None
    run = Run.objects.select_related("session").get(id=run_id)
    if before is not None and run.crashes > before[0]:
        outbox.write([outbox.of_crash(run, before[1])])
    return _with_relatives([run], owner)[0]


def _claim_many_by_orm(owner: str, known: list[str], limit: int) -> list[Lease]:
    leases: list[Lease] = []
    parts: tuple[QuerySet[Run], ...] = (ready(), timed(), expired())
    for part in parts:
        found = skip_locked(part.filter(_of(known))).values_list("id", flat=True)
        for run_id in found[: limit - len(leases)]:
            if (lease := _claim_by_orm(run_id, owner, known)) is not None:
                leases.append(lease)
    return leases


def _of(known: list[str] | None) -> Q:
    """Runs that this process can drive: by its code, or by a spec, which every process can read."""
    return Q() if known is None else Q(agent__in=known) | Q(agent_version__isnull=False)


def _with_relatives(runs: Sequence[Run], owner: str) -> list[Lease]:
    """The leases of runs just claimed. Root and parent of a child are rare, and dear: rows as wide as the run's."""
    wanted = {key for run in runs for key in (run.root_id, run.parent_id) if key is not None}
    above = Run.objects.in_bulk(wanted) if wanted else {}
    for run in runs:
        run.root = above.get(run.root_id)
        run.parent = above.get(run.parent_id)
    return [Lease(run=run, epoch=run.lease_epoch, owner=owner) for run in runs]


# ------------------------------------------------------------------------------------------------- on PostgreSQL

# As `claimable`, `ready`, `timed`, `expired` and `_of` say it; a test compares them.
_DUE = f"(wake_at IS NULL OR wake_at <= {NOW} OR (%(release)s::text <> '' AND for_release = %(release)s::text))"
_MAY_GO_ON = "(paused_at IS NULL OR cancel_requested_at IS NOT NULL)"
_READY = f"status = 'pending' AND {_MAY_GO_ON} AND {_DUE}"
_TIMED = f"status = 'suspended' AND {_MAY_GO_ON} AND wake_at <= {NOW}"
_EXPIRED = f"status = 'running' AND lease_expires_at < {NOW}"
_KNOWN = """(%(agents)s::jsonb IS NULL OR agent_version IS NOT NULL
    OR agent IN (SELECT jsonb_array_elements_text(%(agents)s::jsonb)))"""
_PARTS = {
    "ready": (_READY, "priority DESC, id"),
    "timed": (_TIMED, "wake_at, id"),
    "expired": (_EXPIRED, "lease_expires_at, id"),
}


def _claim_postgres(
    part: str, owner: str, known: list[str] | None, limit: int, run_id: UUID | str | None = None
) -> list[Lease]:
    """One statement: which runs, the claim, and the rows as claimed with their sessions."""
    params: dict[str, str | None] = {
        "now": postgres.present(),
        "owner": owner,
        "lease_s": repr(float(conf.LEASE_S)),
        "release": str(conf.RELEASE),
        "agents": postgres.texts(known),
    }
    params |= {"run": str(run_id)} if run_id is not None else {"limit": str(limit)}
    told = outbox.is_on()
    rows = postgres.execute(_STATEMENTS[part, told], params)
    runs = [_run(row) for row in rows]
    if told and any(run.crashes for run in runs):
        outbox.hint_on_commit()
    if part == "ready":  # an UPDATE gives its rows in any order
        runs.sort(key=lambda run: (-run.priority, run.id))
    return _with_relatives(runs, owner)


def _run(row: Sequence[Any]) -> Run:
    own = len(Run._meta.concrete_fields)
    run = postgres.instance(Run, row[:own])
    run.session = postgres.instance(Session, row[own:])
    return run


def _statement(part: str, told: bool) -> str:
    if part == "one":
        picked, which = "", "id = %(run)s::uuid"
    else:
        condition, order = _PARTS[part]
        which = "id IN (SELECT id FROM picked)"
        picked = f"""picked AS MATERIALIZED (
  SELECT id FROM ravi_run WHERE {condition} AND {_KNOWN}
  ORDER BY {order} LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED
), """  # noqa: S608 - built from the constants above
    return f"""
WITH {picked}taken AS (
  UPDATE ravi_run SET
    status = 'running', lease_owner = %(owner)s::text, lease_epoch = lease_epoch + 1,
    lease_expires_at = {NOW} + make_interval(secs => %(lease_s)s::float8),
    crashes = crashes + (status = 'running')::int, started_at = coalesce(started_at, {NOW}),
    error = NULL, wake_at = NULL, hints = 0, hint_after = NULL
  WHERE {which} AND {_KNOWN} AND (({_READY}) OR ({_TIMED}) OR ({_EXPIRED}))
  RETURNING *
){_TOLD % {"which": which} if told else ""}
SELECT {postgres.columns(Run, "taken")}, {postgres.columns(Session, "session")}
FROM taken JOIN ravi_session session ON session.id = taken.session_id"""  # noqa: S608


# `before` is the run as the statement found it. It may have had to wait for the row: only the count, which is the row's
# own, says that it was taken from a dead worker.
_TOLD = f""", before AS (
  SELECT id, crashes, lease_owner FROM ravi_run WHERE %(which)s AND status = 'running'
), told AS (
  INSERT INTO ravi_outboxevent (topic, body, created_at)
  SELECT '{outbox.TOPIC}', {outbox.CRASHED}, {NOW.replace("%", "%%")}
  FROM taken run JOIN before USING (id) WHERE run.crashes = before.crashes + 1
)"""  # noqa: S608
_STATEMENTS = {(part, told): _statement(part, told) for part in ("one", *_PARTS) for told in (False, True)}
