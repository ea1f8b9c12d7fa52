"""The budgets of a run: of its tree, of its user's day and of its tenant's day.

A run without a budget costs no query: its lease has the root's row with the limits of the tree, and the process knows
the daily ones. The rows of DailyBudget are read at the first lease of a process and with every heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from uuid import UUID

from django.db.models import Case, CharField, Count, F, Max, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, TruncDate

from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.kernel import ExecutionBudget
from ravi_django.kernel.checks import did_you_mean
from ravi_django.models import BudgetAccount, DailyBudget, Run

DAYS = 31  # how long the account of a day is kept
UNITS = {"max_tokens": "tokens", "max_cost_usd": "cost", "max_turns": "turns"}  # an account has max_tokens, max_cost, …
LIMITS = tuple(UNITS)
_CENT = Decimal("0.00000001")  # dollars, the precision of a row
TOP_COST = 10**8  # dollars: a row can hold less
_TOP = Decimal(TOP_COST) - 1  # dollars, the most that a row can hold

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
    accounts = []
    if limits := limits_of((run.root or run).budget):
        accounts.append(Account(f"tree:{run.tree_id}", limits, tree=run.tree_id))
    if _daily or conf.DAILY_BUDGETS:
        day = day or (clock.fixed() or datetime.now(UTC)).date()
        for kind, name in (("user", run.owner_id), ("tenant", run.tenant)):
            if name is not None and (limits := _limits_a_day(kind, name)):
                accounts.append(Account(f"{kind}:{name}:{day:%Y-%m-%d}", limits))
    return sorted(accounts, key=lambda account: account.key) if len(accounts) > 1 else accounts


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
    row = (_daily or {}).get((kind, name))
    return limits_of((conf.DAILY_BUDGETS or {}).get(kind) if row is None else row)


def are_known() -> bool:
    return _daily is not None


def learn() -> None:
    """Read the daily budgets before the first lease of the process."""
    if not are_known():
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


def old_accounts() -> QuerySet[BudgetAccount]:
    """Accounts of deleted trees, and of days that are more than DAYS ago."""
    keys = BudgetAccount.objects.order_by().values_list("key", flat=True)
    trees = {key: key.partition(":")[2] for key in keys.filter(key__startswith="tree:").iterator()}
    there = {str(run) for run in Run.objects.filter(parent=None).order_by().values_list("id", flat=True).iterator()}
    gone = [key for key, root in trees.items() if root not in there]
    past = (clock.fixed() or datetime.now(UTC)).date() - timedelta(days=DAYS)
    gone += [key for key in keys.exclude(key__startswith="tree:").iterator() if key[-10:] < f"{past:%Y-%m-%d}"]
    return BudgetAccount.objects.filter(key__in=gone)


def setting_errors(setting: Any) -> Iterator[str]:
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
            yield from (f"[{kind!r}]{fault}" for fault in limit_errors(limits))


def limit_errors(limits: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in limits.items():
        if name not in LIMITS:
            yield f" has an unknown key {name!r}; known: {', '.join(LIMITS)}{did_you_mean(name, LIMITS)}"
        elif value is not None:
            is_cost = name == "max_cost_usd"
            try:
                ExecutionBudget.model_validate({name: value}, strict=True)
                is_valid = 0 <= value < TOP_COST if is_cost else value < 2**62
            except ValueError:
                is_valid = False
            if not is_valid:
                yield f"[{name!r}] is {value!r}, not a {'number of dollars' if is_cost else 'whole number above 0'}"


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
    usage_estimated: bool  # some call's usage was counted here

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
            usage_estimated=any(run.usage_estimated for run in rows),
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
    row_limits: dict[str, Any] = {"user" if row.owner_id else "tenant": vars(row) for row in rows}
    limits = {**(conf.DAILY_BUDGETS or {}), **row_limits}  # a row replaces the whole setting
    return {"day": day, **{kind: accounts.get(key) or _unused(key, limits.get(kind)) for kind, key in keys.items()}}


def _unused(key: str, limits: Mapping[str, Any] | None) -> BudgetAccount | None:
    if not limits:
        return None
    return BudgetAccount(key=key, **{f"max_{unit}": limits.get(name) for name, unit in UNITS.items()})
