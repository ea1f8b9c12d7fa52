"""The reservations of model calls: made before a call, settled in the transaction of its row.

A call is admitted when every account has room for it besides the spent and reserved amounts; and alone, also
when an account has something left and nothing reserved. So a budget is overspent by at most one call, as long as the
other calls stay within their reservations.

Only a leased run holds reservations: the end of a lease frees them. Those of a dead worker name the requests that were
lost with it: the takeover writes their rows, which settle them.
Accounts are locked last in every transaction, after runs and sessions, in the order of their keys. On PostgreSQL the
statements are our own: with the ORM's a budgeted model call costs 5 ms in place of 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypeVar

from django.db.models import Count, F, Q, Sum

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock, postgres
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.kernel import LeaseLostError
from ravi_django.models import BudgetAccount, JournalEntry, Reservation, Run, Status
from ravi_django.runs.budgets.accounts import UNITS, Account, accounts_of, dollars, states

T = TypeVar("T")

CALLS = ("llm.call", "llm.paid")
PAID = "@paid."  # "@paid.", path of the call, "#" and a number: an answer that could not be used
REFUSED = "account"  # the key of this name marks the error of a call that was not made
ZERO = Decimal(0)
_Changes = dict[str, Counter[str]]  # by key of the account and column


@dataclass(frozen=True, slots=True)
class Amount:
    """The most that a model call may use."""

    tokens: int
    cost: Decimal  # dollars; 0 where it is unknown
    model: str = ""
    request: str = ""  # epoch of the lease, dot, number of the request in its call; empty: not sent to a model
    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Why no model call is allowed: `account` has used `used` of the `limit` called `name`."""

    account: str
    name: str
    used: Decimal
    limit: Decimal


def reserve(lease: Lease, path: str, amount: Amount, day: date) -> Exhausted | bool:
    """Reserve for the model call at `path`, under the lease. True: make the call. False: ask again, other calls may not
    use all that they reserved. Raises LeaseLostError."""
    accounts = accounts_of(lease.run, day)
    keys = [account.key for account in accounts]
    while True:
        with transaction.atomic():
            if not hold(lease):  # nobody would free the reservation of a zombie
                raise LeaseLostError(lease.run_id, lease.epoch)
            if path in lease.reserved and is_reserved(lease, path):
                return True
            rows = locked(keys)
            if len(rows) == len(keys):
                verdict = _admit(accounts, rows, amount)
                if verdict is True:
                    lease.reserved.add(path)  # first: the commit may stand though its answer is lost
                    take(lease, path, keys, amount)
                    _show_limits(accounts, rows)
                    return True
                return verdict
        _create(accounts)  # in its own transaction: no account may be locked while it waits for an insert


def _admit(accounts: Sequence[Account], rows: Mapping[str, BudgetAccount], amount: Amount) -> Exhausted | bool:
    """True to reserve, False to wait, or what is exhausted."""
    fits = True
    by_limit = {"max_tokens": Decimal(amount.tokens), "max_turns": Decimal(1), "max_cost_usd": amount.cost}
    for account in accounts:
        for name, limit, spent, reserved in _states(account, rows[account.key]):
            if spent >= limit:
                return Exhausted(account.key, name, spent, limit)
            alone = not rows[account.key].reserved_turns
            fits = fits and (alone or spent + reserved + by_limit[name] <= limit)
    return fits


def _states(account: Account, row: BudgetAccount) -> Iterable[tuple[str, Decimal, Decimal, Decimal]]:
    """A tree's limits are in its row, because a person may have raised them; a day's are the present ones."""
    return states(row, None if account.tree is not None else account.limits)


def _show_limits(accounts: Sequence[Account], rows: Mapping[str, BudgetAccount]) -> None:
    """The limits of a day may have changed: write them to its row, for readers."""
    for account in accounts:
        limits = _limits(account)
        if account.tree is None and any(getattr(rows[account.key], name) != value for name, value in limits.items()):
            BudgetAccount.objects.filter(key=account.key).update(**limits)


def _limits(account: Account) -> dict[str, Any]:
    return {f"max_{unit}": account.limits.get(name) for name, unit in UNITS.items()}


def _create(accounts: Sequence[Account]) -> None:
    """A day begins with 0, a tree with the sums of its journals, which a fork has copied."""
    new = [
        BudgetAccount(key=account.key, **_limits(account), **({} if account.tree is None else _used_by(account.tree)))
        for account in accounts
    ]
    BudgetAccount.objects.bulk_create(new, ignore_conflicts=True)


def _used_by(root: Any) -> dict[str, Any]:
    """Tokens and costs are sums of the runs, which outlive their journals. Calls are counted in the journals."""
    tree = Run.objects.filter(Q(id=root) | Q(root_id=root))
    sums = tree.aggregate(into=Sum("input_tokens"), out=Sum("output_tokens"), cost=Sum("cost"))
    calls = JournalEntry.objects.filter(run__in=tree.order_by().values("id"), kind__in=CALLS)
    refused = Q(error__has_key=REFUSED)
    turns = calls.aggregate(turns=Count("seq", filter=Q(error__isnull=True) | ~refused))["turns"]
    return {
        "spent_tokens": (sums["into"] or 0) + (sums["out"] or 0),
        "spent_cost": sums["cost"] or ZERO,
        "spent_turns": turns,
    }


def settled(lease: Lease, entries: Sequence[Entry], write: Callable[[], T], *, ends: bool = False) -> T:
    """Call `write`, which appends the entries, and charge the model calls among them in the same transaction. `ends`,
    the end of the lease: free all reservations of the run."""
    if not concerns(lease, entries, ends=ends):
        return write()
    with transaction.atomic():
        answer = write()
        paths = _settle(lease, entries, ends)
    if not connection.in_atomic_block:  # else it may be rolled back
        lease.reserved.difference_update(paths)
    return answer


def concerns(lease: Lease, entries: Sequence[Entry], *, ends: bool = False) -> bool:
    """Whether an account pays for these entries."""
    if ends and (lease.reserved or lease.run.crashes):
        return True
    paid = any(entry.usage is not None or entry.kind in CALLS for entry in entries)
    return paid and bool(lease.reserved or accounts_of(lease.run))


def free(lease: Lease, path: str | None = None) -> None:
    """Free the reservation of a call that is not made, or without a path all of the run. Does nothing if the lease is
    lost."""
    with transaction.atomic():
        if not hold(lease):
            return
        rows = release(lease, None if path is None else [path])
        _change(_released(rows))
    lease.reserved.difference_update([*(row.path for row in rows), path])


def free_abandoned(lease: Lease, day: date) -> None:
    """Free the reservations of dead workers in the accounts of this lease: their runs may not be taken over for long.
    Their rows stay, as marks of lost requests. The row of such a call is charged all the same."""
    keys = {account.key for account in accounts_of(lease.run, day)}
    dead = Q(run__status=Status.RUNNING, run__lease_expires_at__lt=clock.after(-conf.LEASE_S))
    for run_id, accounts in list(Reservation.objects.filter(dead).values_list("run_id", "accounts")):
        if keys.isdisjoint(accounts):
            continue
        with transaction.atomic():
            list(Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id"))
            rows = list(Reservation.objects.filter(dead, run_id=run_id))  # read again: not taken over meanwhile
            freed = {"accounts": [], "tokens": 0, "cost": ZERO}
            Reservation.objects.filter(pk__in=[row.pk for row in rows]).update(**freed)
            _change(_released(rows))


def _released(rows: Iterable[Reservation]) -> _Changes:
    changes: _Changes = defaultdict(Counter)
    for row in rows:
        _add(changes, row.accounts, _held(row))
    return changes


def _change(changes: _Changes) -> None:
    for key in sorted(changes):
        by = changes[key]
        if postgres.in_use():
            postgres.execute(_CHANGE, [*(str(by[name]) for name in _SUMS), key])
        else:
            BudgetAccount.objects.filter(key=key).update(**{name: F(name) + value for name, value in by.items()})


_SUMS = tuple(f"{what}_{unit}" for what in ("spent", "reserved") for unit in UNITS.values())
_CHANGE = (
    "UPDATE ravi_budgetaccount SET "  # noqa: S608 - of our own names
    + ", ".join(f"{name} = {name} + %s::{'numeric' if name.endswith('cost') else 'bigint'}" for name in _SUMS)
    + " WHERE key = %s::text RETURNING key"
)


def _held(row: Reservation) -> dict[str, Any]:
    return {"reserved_tokens": -row.tokens, "reserved_cost": -row.cost, "reserved_turns": -1}


def _settle(lease: Lease, entries: Sequence[Entry], ends: bool) -> list[str]:
    charges = _charges(entries)
    rows = release(lease, None if ends else list(charges))
    changes: _Changes = defaultdict(Counter)
    for row in rows:
        is_paid = row.accounts and row.generation == lease.run.generation
        charge = charges.pop(row.path, {}) if is_paid else {}
        _add(changes, row.accounts, {**_held(row), **charge})
    now = [account.key for account in accounts_of(lease.run)]
    for charge in charges.values():  # answers of calls whose reservation is freed already
        _add(changes, now, charge)
    _change(changes)
    return [row.path for row in rows]


def _add(changes: _Changes, keys: Iterable[str], by: Mapping[str, Any]) -> None:
    for key in keys:
        changes[key].update(by)


def _charges(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """The amounts that entries have used, by the path of their call."""
    charges: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if (entry.usage is None and entry.kind not in CALLS) or REFUSED in (entry.error or ()):
            continue
        path = entry.path[len(PAID) :].rpartition("#")[0] if entry.path.startswith(PAID) else entry.path
        charge = charges.setdefault(path, {"spent_tokens": 0, "spent_cost": ZERO, "spent_turns": 0})
        charge["spent_tokens"] += entry.usage.total if entry.usage else 0
        charge["spent_cost"] += dollars(entry.cost) if entry.usage else ZERO
        charge["spent_turns"] += entry.kind in CALLS
    return charges


_ACCOUNT = postgres.columns(BudgetAccount, "account")
_RESERVATION = postgres.columns(Reservation, "reservation")


def hold(lease: Lease) -> bool:
    """Lock the run. Returns False when the lease is lost."""
    if postgres.in_use():
        sql = (
            "SELECT 1 FROM ravi_run WHERE id = %s::uuid AND lease_epoch = %s::bigint AND lease_owner = %s::text"
            " FOR NO KEY UPDATE"
        )
        return bool(postgres.execute(sql, [str(lease.run_id), str(lease.epoch), lease.owner]))
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner)
    return bool(held.select_for_update(no_key=True).values_list("id"))


def locked(keys: Sequence[str]) -> dict[str, BudgetAccount]:
    """The existing accounts, locked in the order of their keys."""
    if postgres.in_use():
        sql = (
            f"SELECT {_ACCOUNT} FROM ravi_budgetaccount account"  # noqa: S608 - the names of our own columns
            " WHERE key IN (SELECT jsonb_array_elements_text(%s::jsonb)) ORDER BY key FOR UPDATE"
        )
        rows = [postgres.instance(BudgetAccount, row) for row in postgres.execute(sql, [postgres.texts(keys)])]
    else:
        rows = list(BudgetAccount.objects.select_for_update().filter(key__in=keys).order_by("key"))
    return {row.key: row for row in rows}


def is_reserved(lease: Lease, path: str) -> bool:
    return Reservation.objects.filter(run_id=lease.run_id, generation=lease.run.generation, path=path).exists()


def take(lease: Lease, path: str, keys: Sequence[str], amount: Amount) -> None:
    """Reserve in accounts that are locked."""
    tokens, cost = amount.tokens, amount.cost
    if postgres.in_use():
        call_key = [str(lease.run_id), str(lease.run.generation), path]
        held = [str(tokens), str(cost), postgres.texts(keys)]
        about = [amount.model[:200], amount.request, str(amount.input_tokens)]
        postgres.execute(_TAKE, [*held, *call_key, *held, *about])
        return
    BudgetAccount.objects.filter(key__in=keys).update(
        reserved_tokens=F("reserved_tokens") + tokens,
        reserved_cost=F("reserved_cost") + cost,
        reserved_turns=F("reserved_turns") + 1,
    )
    where = {"run_id": lease.run_id, "generation": lease.run.generation, "path": path}
    mark = {"model": amount.model[:200], "request": amount.request, "input_tokens": amount.input_tokens}
    Reservation.objects.create(**where, **mark, accounts=list(keys), tokens=tokens, cost=cost)


_TAKE = """
WITH taken AS (
  UPDATE ravi_budgetaccount SET reserved_tokens = reserved_tokens + %s::bigint,
    reserved_cost = reserved_cost + %s::numeric, reserved_turns = reserved_turns + 1
  WHERE key IN (SELECT jsonb_array_elements_text(%s::jsonb))
)
INSERT INTO ravi_reservation (run_id, generation, path, tokens, cost, accounts, model, request, input_tokens)
VALUES (%s::uuid, %s::int, %s::text, %s::bigint, %s::numeric, %s::jsonb, %s::text, %s::text, %s::bigint) RETURNING id"""


def release(lease: Lease, paths: Sequence[str] | None) -> list[Reservation]:
    """Delete the reservations of these calls, or with None all of the run; returns them."""
    if postgres.in_use():
        rows = postgres.execute(
            "DELETE FROM ravi_reservation reservation WHERE run_id = %s::uuid"  # noqa: S608 - of our own names
            " AND (%s::jsonb IS NULL OR (generation = %s::int"
            " AND path IN (SELECT jsonb_array_elements_text(%s::jsonb))))"
            f" RETURNING {_RESERVATION}",
            [str(lease.run_id), postgres.texts(paths), str(lease.run.generation), postgres.texts(paths)],
        )
        return [postgres.instance(Reservation, row) for row in rows]
    which = Q() if paths is None else Q(generation=lease.run.generation, path__in=paths)
    reservations = list(Reservation.objects.filter(which, run_id=lease.run_id))
    Reservation.objects.filter(pk__in=[row.pk for row in reservations]).delete()
    return reservations
