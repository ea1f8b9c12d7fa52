"""The order of claims: ready runs with the earliest `claim_at` first.

It is the time at which a run becomes ready, plus SHARE for each open run of its owner in its tenant with the same or a
higher priority, minus the head start of its priority. So one owner's backlog lets other owners' runs pass, and still no
run waits forever. The runs are counted when a run becomes ready: a claim costs the same for any owner.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from operator import mul
from typing import Any

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, IntegerField
from django.db.models.expressions import RawSQL

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.engine.db import clock, postgres
from ravi_django.engine.db.postgres import NOW
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run

SHARE = timedelta(seconds=10)
HEAD_START = timedelta(minutes=1)  # of a run before one of the next lower priority
MOST_OPEN = 500  # more open runs count as this many: counting costs up to 0.1 ms
URGENT = max(Priority).value


def claim_at(ready_at: Any, priority: Any, open_runs: Any, times: Callable[[Any, timedelta], Any] = mul) -> Any:
    """Of a run that becomes ready at `ready_at` while its owner has so many open runs. Takes values, or expressions
    with their own `times`."""
    return ready_at + times(open_runs, SHARE) - times(priority, HEAD_START)


def _count(same: str, priority: str, run_id: str) -> str:
    return (
        f"(SELECT count(*) FROM (SELECT 1 FROM ravi_run o WHERE {same} AND o.status IN ('pending', 'running')"  # noqa: S608
        f" AND NOT o.awaits_slot AND o.priority >= {priority} AND o.id <> {run_id} LIMIT {MOST_OPEN}) AS open)"
    )


def _same(owner: str, tenant: str) -> dict[str, str]:
    """By RAVI["FAIR_BY"]: the condition that a run `o` shares with a run of this owner and tenant. An index has it."""
    of_tenant = f"o.tenant = {tenant}"
    return {
        "owner": f"{of_tenant} AND coalesce(CAST(o.owner_id AS text), '') = coalesce(CAST({owner} AS text), '')",
        "tenant": of_tenant,
    }


# ---------------------------------------------------------------------------------------------- through the ORM


def of_row(delay_s: float = 0.0, most: int = URGENT) -> Any:
    """An expression for an UPDATE of runs that become ready after `delay_s`. A priority counts as `most` at most."""
    priority = f"CASE WHEN ravi_run.priority < {most:d} THEN ravi_run.priority ELSE {most:d} END"
    same = _same("ravi_run.owner_id", "ravi_run.tenant").get(conf.FAIR_BY)
    return _expression(priority, [], same and _count(same, priority, "ravi_run.id"), [], delay_s)


def stamp(run: Run, ahead: int = 0) -> Run:
    """Set the times of a new run that are not the database's default. `claim_at` is an expression for the INSERT;
    `ahead` is the number of the owner's runs that the same statement writes before this one."""
    same = _same("%s", "%s").get(conf.FAIR_BY)
    names = ["tenant", *(["owner"] if conf.FAIR_BY == "owner" else []), "priority", "id"]
    count_parameters = [_prepared(run, name) for name in names] if same else []
    count = same and f"{_count(same, '%s', '%s')} + {ahead:d}"
    run.claim_at = _expression("%s", [run.priority], count, count_parameters)
    stamped: Run = clock.stamp(run)
    return stamped


def _prepared(run: Run, name: str) -> Any:
    field: Any = Run._meta.get_field(name)
    return field.get_db_prep_value(getattr(run, field.attname), connection)


def _expression(
    priority: str, level_parameters: list[Any], count: str | None, count_parameters: list[Any], delay_s: float = 0.0
) -> Any:
    def times(number: RawSQL, span: timedelta) -> Any:
        return ExpressionWrapper(number * span, DurationField())

    counted = RawSQL(count or "0", count_parameters, IntegerField())  # noqa: S611 - of our own names
    level = RawSQL(priority, level_parameters, IntegerField())  # noqa: S611 - of our own names
    at = claim_at(clock.after(delay_s), level, counted, times)
    return ExpressionWrapper(at, output_field=DateTimeField())


# ------------------------------------------------------------------------------------------------- on PostgreSQL


def in_sql(
    priority: str,
    owner: str = "ravi_run.owner_id",
    tenant: str = "ravi_run.tenant",
    run_id: str = "ravi_run.id",
) -> str:
    """`claim_at` of a run that becomes ready now. Takes the parameters of `parameters`; a test compares it with the
    expressions."""
    counts = "".join(f" WHEN '{by}' THEN {_count(same, priority, run_id)}" for by, same in _same(owner, tenant).items())
    return f"""({NOW} + (CASE %(fair_by)s::text{counts} ELSE 0 END) * interval '{SHARE.total_seconds()} s'
  - {priority} * interval '{HEAD_START.total_seconds()} s')"""


def parameters(most: int = URGENT) -> dict[str, str | None]:
    return {"now": postgres.present(), "fair_by": conf.FAIR_BY, "most": str(most)}
