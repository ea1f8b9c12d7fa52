"""The run's tree on its page: its runs, their usage, and the budget."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils.translation import gettext

from ravi_django.models import BudgetAccount, Run
from ravi_django.pages import show
from ravi_django.runtime.budgets import accounts

MOST = 200  # runs of one tree on a page
FIELDS = (
    *("id", "agent", "status", "depth", "parent_id", "root_id", "awaits_slot", "started_at", "finished_at"),
    *("input_tokens", "cached_tokens", "output_tokens", "cost", "cost_unknown"),
)


def of_run(run: Run) -> dict[str, Any] | None:
    """For the template; None for a run on its own without a budget. Two queries."""
    tree = Run.objects.filter(Q(id=run.tree_id) | Q(root_id=run.tree_id))
    rows = list(tree.order_by("id").only(*FIELDS)[: MOST + 1])
    account = accounts.tree_account(run.tree_id)
    if len(rows) < 2 and account is None:
        return None
    shown = rows[:MOST]
    total = accounts.TreeUsage.of(shown)
    return {
        "lines": [_line(one, run) for one in _parents_first(shown)],
        "more": len(rows) > MOST,
        "runs": total.runs,
        "live": total.live,
        "tokens": show.tokens(total.input_tokens, total.output_tokens, total.cached_tokens),
        "cost": show.money(total.cost, unknown=total.cost_unknown),
        "budget": None if account is None else _budget(account),
    }


def _parents_first(rows: list[Run]) -> list[Run]:
    """Each run above its children, oldest child first."""
    below: dict[Any, list[Run]] = {}
    for row in rows:
        below.setdefault(row.parent_id, []).append(row)
    found: list[Run] = []
    waiting = [row for row in rows if row.parent_id is None]
    while waiting:
        row = waiting.pop()
        found.append(row)
        waiting += reversed(below.get(row.id, []))
    return found


def _line(row: Run, run: Run) -> dict[str, Any]:
    return {
        "run": row,
        "here": row.id == run.id,
        "indent": min(row.depth, 16),  # the style sheet has so many steps
        "status": show.status(row.status),
        "awaits_slot": row.awaits_slot and not row.is_terminal,
        "took": show.between(row.started_at, row.finished_at),
        "tokens": show.tokens(row.input_tokens, row.output_tokens),
        "cost": show.money(row.cost, unknown=row.cost_unknown) if row.input_tokens or row.cost_unknown else "",
    }


def _budget(account: BudgetAccount) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "spent": shown(getattr(account, f"spent_{field}")),
            "reserved": shown(getattr(account, f"reserved_{field}")),
            "limit": show.NONE if (most := getattr(account, f"max_{field}")) is None else shown(most),
        }
        for name, field, shown in (
            (gettext("tokens"), "tokens", "{:,}".format),
            (gettext("cost"), "cost", show.money),
            (gettext("maximum model calls"), "turns", "{:,}".format),
        )
    ]
