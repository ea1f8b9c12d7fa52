"""Usage of runs: sums over their rows, for REST and the admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Case, CharField, Count, F, Max, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, TruncDate

from ravi_django.conf import conf
from ravi_django.models import BudgetAccount, DailyBudget, Run
from ravi_django.runtime.budgets.accounts import UNITS

KEYS: dict[str, Any] = {
    "agent": F("agent"),
    "tenant": F("tenant"),
    "user": Coalesce(Cast("owner_id", CharField()), Value("")),  # pages have no order with nulls
    "tree": Coalesce(F("root_id"), F("id")),
    "day": TruncDate("created_at", tzinfo=UTC),
}
COUNTED = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def grouped(rows: QuerySet[Run], by: str) -> QuerySet[Run, Any]:
    """One row a group, `by` a name of KEYS: its `key`, how many `runs`, the sums of their tokens and known cost, and
    whether some `cost_unknown`."""
    keyed = rows.order_by().values(key=KEYS[by])
    unknown = Case(When(cost_unknown=True, then=1), default=0)
    sums = {f"sum_{name}": Sum(name) for name in (*COUNTED, "cost")}
    return keyed.annotate(runs=Count("id"), **sums, unknown=Max(unknown))


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """The usage of a whole tree."""

    runs: int
    live: int  # not ended
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: Decimal  # US dollars, the known part
    cost_unknown: bool  # some call's price was not known

    @classmethod
    def of(cls, runs: Iterable[Run]) -> TreeUsage:
        rows = list(runs)
        return cls(
            runs=len(rows),
            live=sum(not run.is_terminal for run in rows),
            input_tokens=sum(run.input_tokens for run in rows),
            cached_tokens=sum(run.cached_tokens for run in rows),
            output_tokens=sum(run.output_tokens for run in rows),
            cost=sum((run.cost for run in rows), Decimal(0)),
            cost_unknown=any(run.cost_unknown for run in rows),
        )


def tree_account(root_id: UUID) -> BudgetAccount | None:
    """The counters of a tree that has a budget."""
    return BudgetAccount.objects.filter(key=f"tree:{root_id}").first()


def today(user_id: Any, tenant: str) -> dict[str, Any]:
    """The `day` (UTC), and its accounts of the `user` and the `tenant`: unsaved ones with the limits before the first
    charge, None without limits."""
    day = datetime.now(UTC).date()
    keys = {"user": f"user:{user_id}:{day}", "tenant": f"tenant:{tenant}:{day}"}
    accounts = BudgetAccount.objects.in_bulk(list(keys.values()))
    rows = DailyBudget.objects.filter(Q(owner_id=user_id) | Q(owner=None, tenant=tenant))
    given: dict[str, Any] = {"user" if row.owner_id else "tenant": vars(row) for row in rows}
    limits = {**(conf.DAILY_BUDGETS or {}), **given}  # a row replaces the whole setting
    return {"day": day, **{kind: accounts.get(key) or _unused(key, limits.get(kind)) for kind, key in keys.items()}}


def _unused(key: str, limits: Mapping[str, Any] | None) -> BudgetAccount | None:
    if not limits:
        return None
    return BudgetAccount(key=key, **{f"max_{unit}": limits.get(name) for name, unit in UNITS.items()})
