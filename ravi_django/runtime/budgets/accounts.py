"""Which budgets a run is under: its tree's, its user's day and its tenant's day.

A run that is under none costs nothing for it: the tree's limits are on the root's row, which its lease has, and the
daily ones are known to the process. The rows of DailyBudget are read at a process's first lease and with every
heartbeat: an edit counts from the next one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.conf import conf
from ravi_django.kernel import ExecutionBudget
from ravi_django.models import BudgetAccount, DailyBudget, Run
from ravi_django.runtime.db import clock

DAYS = 31  # that an account of a day is kept
LIMITS = ("max_tokens", "max_cost_usd", "max_turns")
_CENT = Decimal("0.00000001")  # what a row holds of a dollar
_TOP = Decimal(10) ** 8 - 1  # dollars that a row can hold

Daily = Mapping[tuple[str, Any], Mapping[str, Any]]
_daily: Daily | None = None  # rows by ("user", pk) and ("tenant", name); None: never read


@dataclass(frozen=True, slots=True)
class Account:
    """A budget that a run is under. `limits` are by name, those that there are."""

    key: str
    limits: Mapping[str, Decimal]
    tree: UUID | None = None  # its root, of a tree's


def dollars(value: float | Decimal | None) -> Decimal:
    """As a row holds them: half a unit of the last place goes up, as PostgreSQL rounds it."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value or 0.0))
    return min(exact, _TOP).quantize(_CENT, ROUND_HALF_UP)


def accounts_of(run: Run, day: date | None = None) -> list[Account]:
    """The budgets of a leased run, in the order of their keys; the daily ones on this day, UTC."""
    found = []
    if limits := limits_of((run.root or run).budget):
        found.append(Account(f"tree:{run.tree_id}", limits, tree=run.tree_id))
    if _daily or conf.DAILY_BUDGETS:
        day = day or (clock.fixed() or datetime.now(UTC)).date()
        for kind, name in (("user", run.owner_id), ("tenant", run.tenant)):
            if name is not None and (limits := _limits_a_day(kind, name)):
                found.append(Account(f"{kind}:{name}:{day:%Y-%m-%d}", limits))
    return sorted(found, key=lambda account: account.key) if len(found) > 1 else found


def limits_of(budget: Mapping[str, Any] | None) -> dict[str, Decimal]:
    if not budget:
        return {}
    return {name: Decimal(str(budget[name])) for name in LIMITS if budget.get(name) is not None}


def _limits_a_day(kind: str, name: Any) -> dict[str, Decimal]:
    """A row goes before the setting, whole: what it leaves empty has no limit."""
    own = (_daily or {}).get((kind, name))
    return limits_of((conf.DAILY_BUDGETS or {}).get(kind) if own is None else own)


def learn() -> None:
    """Before a process's first lease: read the daily budgets."""
    if _daily is None:
        refresh()


def refresh() -> None:
    """Read the daily budgets anew, off the way of any run."""
    global _daily
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    for owner, tenant, *limits in DailyBudget.objects.values_list("owner_id", "tenant", *LIMITS):
        found["tenant" if owner is None else "user", tenant if owner is None else owner] = dict(
            zip(LIMITS, limits, strict=True)
        )
    _daily = found


def forget() -> None:
    """For tests: the next has another database."""
    global _daily
    _daily = None


# ------------------------------------------------------------------------------------------------------- prune


def old_accounts() -> QuerySet[BudgetAccount]:
    """Of trees whose rows are deleted, and of days that are more than DAYS past."""
    keys = BudgetAccount.objects.order_by().values_list("key", flat=True)
    trees = {key: key.partition(":")[2] for key in keys.filter(key__startswith="tree:").iterator()}
    there = {str(run) for run in Run.objects.filter(parent=None).order_by().values_list("id", flat=True).iterator()}
    gone = [key for key, root in trees.items() if root not in there]
    past = (clock.fixed() or datetime.now(UTC)).date() - timedelta(days=DAYS)
    gone += [key for key in keys.exclude(key__startswith="tree:").iterator() if key[-10:] < f"{past:%Y-%m-%d}"]
    return BudgetAccount.objects.filter(key__in=gone)


def faults(setting: Any) -> Iterator[str]:
    """What is wrong with RAVI["DAILY_BUDGETS"], in words that name the place."""
    if not isinstance(setting, Mapping):
        yield f" is {setting!r}, not a dict of user and tenant"
        return
    for kind, limits in setting.items():
        if kind not in ("user", "tenant"):
            yield f" has an unknown key {kind!r}"
        elif not isinstance(limits, Mapping):
            yield f"[{kind!r}] is {limits!r}, not a dict of limits"
        else:
            yield from (f"[{kind!r}]{fault}" for fault in faults_of_limits(limits))


def faults_of_limits(limits: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in limits.items():
        if name not in LIMITS:
            yield f" has an unknown key {name!r}"
        elif value is None:
            continue
        else:
            try:
                ExecutionBudget.model_validate({name: value}, strict=True)
                sound = 0 <= value < 10**8 if name == "max_cost_usd" else value < 2**62
            except ValueError:
                sound = False
            if not sound:
                wanted = "number of dollars" if name == "max_cost_usd" else "whole number above 0"
                yield f"[{name!r}] is {value!r}, not a {wanted}"
