"""More budget for a tree, asked of a person: one request at a time, whose answer raises the limits in its transaction.

Whoever has asked, or waits for what another run has asked, looks again when it is woken: the account says what is left,
the latest request what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet

from ravi_django.db import transaction
from ravi_django.kernel import InvalidInputError
from ravi_django.models import TERMINAL, BudgetAccount, HumanRequest, JournalEntry, Run, Status
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.accounts import LIMITS, dollars, limits_of
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.outbox import TOP_UP
from ravi_django.runtime.store.people import TooManyRequests, answer_request, write_request
from ravi_django.runtime.store.touching import lock, touch

USERS = 5  # runs that a request names
_COLUMN = {"max_tokens": "max_tokens", "max_cost_usd": "max_cost", "max_turns": "max_turns"}
_SPENT = {"max_tokens": "spent_tokens", "max_cost_usd": "spent_cost", "max_turns": "spent_turns"}


def pending_top_up(lease: Lease) -> HumanRequest | bool | None:
    """The tree's open request; False when the latest was denied, and nobody has retried a run since; None: ask."""
    latest = _requests(lease.run.tree_id).order_by("-id").first()
    if latest is None or latest.status not in (HumanRequest.Status.PENDING, HumanRequest.Status.ANSWERED):
        return None
    if latest.status == HumanRequest.Status.PENDING:
        return latest
    if (latest.answer or {}).get("action") != "deny":
        return None
    again = JournalEntry.objects.filter(
        run__in=_tree(lease.run.tree_id).values("id"), kind="run.retried", finished_at__gt=latest.answered_at
    )
    return None if again.exists() else False


def suggestion(lease: Lease) -> tuple[str, dict[str, Any]]:
    """What a person is asked, and the limits that are suggested: as much again, for those that are used up."""
    root = lease.run.root or lease.run
    account = BudgetAccount.objects.get(key=f"tree:{root.id}")
    first = limits_of(root.budget)
    used = {name: (limit, spent) for name, limit, spent in _states(account) if spent >= limit}
    arguments = {
        name: _shown(name, max(limit, spent) + (first.get(name) or limit)) for name, (limit, spent) in used.items()
    }
    words = ", ".join(f"{_shown(name, spent)} of {name} {_shown(name, limit)}" for name, (limit, spent) in used.items())
    tree = _tree(root.id).annotate(tokens=F("input_tokens") + F("output_tokens")).order_by("-tokens", "id")
    by = [f"{run.agent} ({run.id}): {run.tokens} tokens, {run.cost.normalize():f} dollars" for run in tree[:USERS]]
    text = (
        f"The budget of {root.agent} is used up: {words}. Its run {lease.run_id} ({lease.run.agent}) wants to go on. "
        f"Used by: {'; '.join(by)}. Approve these limits or others, or deny."
    )
    return text, arguments


def open_top_up(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, request: HumanRequest) -> int:
    """Write the request with the row that announces it. Raises TooManyRequests when the tree has one, or when the
    budget is not used up any more."""
    store_big_values(entries)
    with transaction.atomic():
        lock([lease.run.tree_id, lease.run_id])  # the root's: of two runs that ask at once one is second
        first = fence.append(lease, entries, turns)
        if _requests(lease.run.tree_id).filter(status=HumanRequest.Status.PENDING).exists():
            raise TooManyRequests
        account = BudgetAccount.objects.get(key=f"tree:{lease.run.tree_id}")
        if all(spent < limit for _, limit, spent in _states(account)):
            raise TooManyRequests
        write_request(request, lease.run)
        return first


def answer_top_up(
    request: HumanRequest, answer: dict[str, Any], limits: Mapping[str, Any], *, by: Any, version: int | None = None
) -> list[UUID]:
    """Answer the request, raise the tree's limits and wake who waits for that, in one transaction. Returns the runs to
    hint. Raises InvalidInputError for a limit that is used up already, NotFoundError and ConflictError."""
    with transaction.atomic():
        tree = Run.objects.values_list("root_id", flat=True).get(id=request.run_id) or request.run_id
        live = _tree(tree).exclude(status__in=TERMINAL)
        lock([request.run_id, *live.values_list("id", flat=True)])
        answer_request(request.id, answer, by=by, version=version)
        _raise(f"tree:{tree}", limits)
        waiting = [request.run_id]
        for run_id, status, waits in live.values_list("id", "status", "waiting_on"):
            named = any(wait.get("id") == str(request.id) for wait in waits or ())
            if status == Status.RUNNING or (status == Status.SUSPENDED and named):
                waiting.append(run_id)
        touch(waiting)
        HumanRequest.objects.filter(id=request.id).update(woke=True)
        return sorted(set(waiting))


def _raise(key: str, limits: Mapping[str, Any]) -> None:
    if not limits:
        return
    account = BudgetAccount.objects.select_for_update().get(key=key)
    known = {name: spent for name, _, spent in _states(account)}
    changes = {}
    for name, value in limits.items():
        if name not in known:
            raise InvalidInputError(f"the tree has no {name} to raise, but {', '.join(known)}", field="arguments")
        if Decimal(str(value)) <= known[name]:
            used = _shown(name, known[name])
            raise InvalidInputError(f"{name} must be above the {used} that are used already", field="arguments")
        changes[_COLUMN[name]] = dollars(value) if name == "max_cost_usd" else int(value)
    BudgetAccount.objects.filter(key=key).update(**changes)


def _states(account: BudgetAccount) -> list[tuple[str, Decimal, Decimal]]:
    """Each limit's name, the limit and what is spent."""
    found = ((name, getattr(account, _COLUMN[name]), getattr(account, _SPENT[name])) for name in LIMITS)
    return [(name, Decimal(limit), Decimal(spent)) for name, limit, spent in found if limit is not None]


def _shown(name: str, value: Decimal) -> int | float:
    return float(value) if name == "max_cost_usd" else int(value)


def _tree(root: UUID) -> QuerySet[Run]:
    return Run.objects.filter(Q(id=root) | Q(root_id=root)).order_by("id")


def _requests(root: UUID) -> QuerySet[HumanRequest]:
    return HumanRequest.objects.filter(
        Q(run_id=root) | Q(run__root_id=root), kind=HumanRequest.Kind.APPROVAL, tool=TOP_UP
    )
