"""The rows of budgets, as the statements that a budgeted model call costs: on PostgreSQL our own, else the ORM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.db.models import F, Q

from ravi_django.models import BudgetAccount, Reservation, Run
from ravi_django.runtime.store import postgres
from ravi_django.runtime.store.leases import Lease

_ACCOUNT = postgres.columns(BudgetAccount, "account")
_RESERVATION = postgres.columns(Reservation, "reservation")


def hold(lease: Lease) -> bool:
    """Lock the run; False when the lease is not ours any more."""
    if postgres.in_use():
        sql = (
            "SELECT 1 FROM ravi_run WHERE id = %s::uuid AND lease_epoch = %s::bigint AND lease_owner = %s::text"
            " FOR NO KEY UPDATE"
        )
        return bool(postgres.execute(sql, [str(lease.run_id), str(lease.epoch), lease.owner]))
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner)
    return bool(held.select_for_update(no_key=True).values_list("id"))


def locked(keys: Sequence[str]) -> dict[str, BudgetAccount]:
    """Those that there are, locked in the order of their keys."""
    if postgres.in_use():
        sql = (
            f"SELECT {_ACCOUNT} FROM ravi_budgetaccount account"  # noqa: S608 - the names of our own columns
            " WHERE key IN (SELECT jsonb_array_elements_text(%s::jsonb)) ORDER BY key FOR UPDATE"
        )
        found = [postgres.instance(BudgetAccount, row) for row in postgres.execute(sql, [postgres.texts(keys)])]
    else:
        found = list(BudgetAccount.objects.select_for_update().filter(key__in=keys).order_by("key"))
    return {row.key: row for row in found}


def is_reserved(lease: Lease, path: str) -> bool:
    return Reservation.objects.filter(run_id=lease.run_id, generation=lease.run.generation, path=path).exists()


def take(lease: Lease, path: str, keys: Sequence[str], tokens: int, cost: Decimal) -> None:
    """Reserve, in accounts that are locked."""
    if postgres.in_use():
        place = [str(lease.run_id), str(lease.run.generation), path]
        held = [str(tokens), str(cost), postgres.texts(keys)]
        postgres.execute(_TAKE, [*held, *place, *held])
        return
    BudgetAccount.objects.filter(key__in=keys).update(
        reserved_tokens=F("reserved_tokens") + tokens,
        reserved_cost=F("reserved_cost") + cost,
        reserved_turns=F("reserved_turns") + 1,
    )
    Reservation.objects.create(
        run_id=lease.run_id,
        generation=lease.run.generation,
        path=path,
        accounts=list(keys),
        tokens=tokens,
        cost=cost,
    )


_TAKE = """
WITH taken AS (
  UPDATE ravi_budgetaccount SET reserved_tokens = reserved_tokens + %s::bigint,
    reserved_cost = reserved_cost + %s::numeric, reserved_turns = reserved_turns + 1
  WHERE key IN (SELECT jsonb_array_elements_text(%s::jsonb))
)
INSERT INTO ravi_reservation (run_id, generation, path, tokens, cost, accounts)
VALUES (%s::uuid, %s::int, %s::text, %s::bigint, %s::numeric, %s::jsonb) RETURNING id"""


def release(lease: Lease, paths: Sequence[str] | None) -> list[Reservation]:
    """Take the reservations of these calls away, or with None all that the run has; returns them."""
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
    found = list(Reservation.objects.filter(which, run_id=lease.run_id))
    Reservation.objects.filter(pk__in=[row.pk for row in found]).delete()
    return found


_SUMS = tuple(f"{what}_{unit}" for what in ("spent", "reserved") for unit in ("tokens", "cost", "turns"))


def change(key: str, by: Mapping[str, Any]) -> None:
    """Add to an account's sums; nothing happens where there is no account."""
    if postgres.in_use():
        postgres.execute(_CHANGE, [*(str(by.get(name, 0)) for name in _SUMS), key])
    else:
        BudgetAccount.objects.filter(key=key).update(**{name: F(name) + value for name, value in by.items()})


_CHANGE = (
    "UPDATE ravi_budgetaccount SET "  # noqa: S608 - of our own names
    + ", ".join(f"{name} = {name} + %s::{'numeric' if name.endswith('cost') else 'bigint'}" for name in _SUMS)
    + " WHERE key = %s::text RETURNING key"
)
