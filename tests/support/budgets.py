"""What the accounts of budgets have to say, against the rows of the journal."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.db.models import Q

from ravi_django.kernel import ChatMessage, Usage
from ravi_django.models import BudgetAccount, JournalEntry, Reservation, Run
from ravi_django.testing import ScriptedModel
from tests.support.world import BUDGETS_CALLS, BUDGETS_REFUSED

USER = ChatMessage.of("user", "hello")


def model(tokens: int = 10, cost: float | None = None, **fields: Any) -> ScriptedModel:
    """Every call uses so many tokens, and costs so many dollars."""
    usage = Usage(input_tokens=tokens - tokens // 2, output_tokens=tokens // 2)
    return ScriptedModel("fine", loop=True, usage=usage, cost=cost, **fields)


def account(of: Run | str) -> BudgetAccount:
    return BudgetAccount.objects.get(key=of if isinstance(of, str) else f"tree:{of.tree_id}")


def spent(of: Run | str) -> tuple[int, Decimal, int]:
    row = account(of)
    return row.spent_tokens, row.spent_cost, row.spent_turns


def reserved(of: Run | str) -> tuple[int, Decimal, int]:
    row = account(of)
    return row.reserved_tokens, row.reserved_cost, row.reserved_turns


def recorded(root: Run) -> tuple[int, Decimal, int]:
    """What the journals of the tree have."""
    calls = JournalEntry.objects.filter(Q(run=root) | Q(run__root=root), kind__in=BUDGETS_CALLS)
    rows = [row for row in calls if BUDGETS_REFUSED not in (row.error or ())]
    tokens = sum((row.input_tokens or 0) + (row.output_tokens or 0) for row in rows)
    return tokens, sum((row.cost or Decimal(0) for row in rows), Decimal(0)), len(rows)


def balances(root: Run) -> bool:
    """To the token; and nothing is reserved once nobody leases a run of the tree."""
    held = Reservation.objects.filter(Q(run=root) | Q(run__root=root)).exists()
    return spent(root) == recorded(root) and reserved(root) == (0, Decimal(0), 0) and not held


def lost(root: Run) -> int:
    """How many requests were lost with a worker."""
    return JournalEntry.objects.filter(Q(run=root) | Q(run__root=root), kind="llm.paid", result__reason="lost").count()
