"""A run's whole tree: its root, with nested children, and what all of them have used."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Q
from rest_framework import serializers
from rest_framework.exceptions import NotFound

from ravi_django.api.budgets import BudgetAccountSerializer
from ravi_django.models import Run
from ravi_django.runtime.budgets import usage
from ravi_django.services.shapes import RunRowSerializer


class TreeTotalSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the input tokens")
    output_tokens = serializers.IntegerField()
    cost = serializers.FloatField(allow_null=True, help_text="US dollars; null when a call's price is unknown")
    cost_known = serializers.FloatField(help_text="The known part of it")


class TreeSummarySerializer(serializers.Serializer[Any]):
    runs = serializers.IntegerField()
    live = serializers.IntegerField(help_text="Those that have not ended")
    usage = TreeTotalSerializer()
    budget = BudgetAccountSerializer(allow_null=True, help_text="Null for a tree without a budget")


class RunTreeSerializer(RunRowSerializer):
    children = serializers.ListField(child=serializers.DictField(), help_text="Runs like this one, oldest first")
    tree = TreeSummarySerializer(required=False, help_text="Of the whole tree; at its root alone")

    def to_representation(self, root: Any) -> dict[str, Any]:
        """Parents before their children: no depth is too deep."""
        runs: list[Run] = root.members
        shown = {run.id: {**super(RunTreeSerializer, self).to_representation(run), "children": []} for run in runs}
        for run in runs:
            if run.id != root.id and run.parent_id in shown:
                shown[run.parent_id]["children"].append(shown[run.id])
        return {**shown[root.id], "tree": _summary(root, runs)}


def _summary(root: Run, runs: list[Run]) -> dict[str, Any]:
    total, account = usage.TreeUsage.of(runs), usage.tree_account(root.id)
    return {
        "runs": total.runs,
        "live": total.live,
        "usage": {
            "input_tokens": total.input_tokens,
            "cached_tokens": total.cached_tokens,
            "output_tokens": total.output_tokens,
            "cost": None if total.cost_unknown else float(total.cost),
            "cost_known": float(total.cost),
        },
        "budget": None if account is None else BudgetAccountSerializer(account).data,
    }


def tree_of(runs: Any, id: UUID) -> Run:
    """The root, with all of its tree as `members`, oldest first: one query from the root, two from a child."""
    mine = RunRowSerializer.read(runs.order_by("id"))
    rows = {row.id: row for row in mine.filter(Q(id=id) | Q(root_id=id))}
    if id in rows and rows[id].tree_id != id:
        id = rows[id].tree_id
        rows = {row.id: row for row in mine.filter(Q(id=id) | Q(root_id=id))}
    if id not in rows:
        raise NotFound(f"there is no run {id} of yours")
    root: Run = rows[id]
    root.members = list(rows.values())  # type: ignore[attr-defined]
    return root
