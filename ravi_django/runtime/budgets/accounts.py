"""The budgets of a run: of its tree, of its user's day and of its tenant's day.

A run without a budget costs no query: its lease has the root's row with the limits of the tree, and the process knows
the daily ones. The rows of DailyBudget are read at the first lease of a process and with every heartbeat.
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
from ravi_django.kernel.checks import did_you_mean
from ravi_django.models import BudgetAccount, DailyBudget, Run
from ravi_django.runtime.db import clock

DAYS = 31  # how long the account of a day is kept
UNITS = {"max_tokens": "tokens", "max_cost_usd": "cost", "max_turns": "turns"}  # an account has max_tokens, max_cost, …
LIMITS = tuple(UNITS)
_CENT = Decimal("0.00000001")  # dollars, the precision of a row
_TOP = Decimal(10) ** 8 - 1  # dollars, the most that a row can hold

Daily = Mapping[tuple[str, Any], Mapping[str, Any]]
_daily: Daily | None = None  # rows by ("user", pk) and ("tenant", name); None: never read


@dataclass(frozen=True, slots=True)
class Account:
    """A budget of a run."""

    key: str
    limits: Mapping[str, Decimal]  # by the names in LIMITS
    tree: UUID | None = None  # the root's id, for the budget of a tree


def dollars(value: float | Decimal | None) -> Decimal:
    """Rounded as PostgreSQL rounds them: half a unit of the last place goes up."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value or 0.0))
    return min(exact, _TOP).quantize(_CENT, ROUND_HALF_UP)


def accounts_of(run: Run, day: date | None = None) -> list[Account]:
    """The budgets of a leased run, in the order of their keys. `day` is in UTC, by default today."""
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


def states(
    row: BudgetAccount, limits: Mapping[str, Decimal] | None = None
) -> Iterator[tuple[str, Decimal, Decimal, Decimal]]:
    """Name, limit, spent and reserved amount of each limit: of `limits`, or of the row's own."""
    for name, unit in UNITS.items():
        limit = getattr(row, f"max_{unit}") if limits is None else limits.get(name)
        if limit is not None:
            yield (
                name,
                Decimal(limit),
                Decimal(getattr(row, f"spent_{unit}")),
                Decimal(getattr(row, f"reserved_{unit}")),
            )


def _limits_a_day(kind: str, name: Any) -> dict[str, Decimal]:
    """A row replaces the whole setting: its empty columns are no limit."""
    own = (_daily or {}).get((kind, name))
    return limits_of((conf.DAILY_BUDGETS or {}).get(kind) if own is None else own)


def learn() -> None:
    """Read the daily budgets before the first lease of the process."""
    if _daily is None:
        refresh()


def refresh() -> None:
    """Read the daily budgets again."""
    global _daily
    _daily = {
        ("tenant", row["tenant"]) if row["owner_id"] is None else ("user", row["owner_id"]): row
        for row in DailyBudget.objects.values("owner_id", "tenant", *LIMITS)
    }


def forget() -> None:
    """For tests: the next one has another database."""
    global _daily
    _daily = None


# ------------------------------------------------------------------------------------------------------- prune


def old_accounts() -> QuerySet[BudgetAccount]:
    """Accounts of deleted trees, and of days that are more than DAYS ago."""
    keys = BudgetAccount.objects.order_by().values_list("key", flat=True)
    trees = {key: key.partition(":")[2] for key in keys.filter(key__startswith="tree:").iterator()}
    there = {str(run) for run in Run.objects.filter(parent=None).order_by().values_list("id", flat=True).iterator()}
    gone = [key for key, root in trees.items() if root not in there]
    past = (clock.fixed() or datetime.now(UTC)).date() - timedelta(days=DAYS)
    gone += [key for key in keys.exclude(key__startswith="tree:").iterator() if key[-10:] < f"{past:%Y-%m-%d}"]
    return BudgetAccount.objects.filter(key__in=gone)


def faults(setting: Any) -> Iterator[str]:
    """Errors in RAVI["DAILY_BUDGETS"], with their place."""
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
            yield f" has an unknown key {name!r}; known: {', '.join(LIMITS)}{did_you_mean(name, LIMITS)}"
        elif value is not None:
            is_cost = name == "max_cost_usd"
            try:
                ExecutionBudget.model_validate({name: value}, strict=True)
                is_valid = 0 <= value < 10**8 if is_cost else value < 2**62
            except ValueError:
                is_valid = False
            if not is_valid:
                yield f"[{name!r}] is {value!r}, not a {'number of dollars' if is_cost else 'whole number above 0'}"
