"""A run's whole tree: its root, with nested children, their usage and their budget."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.db.models import Q
from rest_framework import serializers
from rest_framework.exceptions import NotFound

from ravi_django.models import BudgetAccount, Run
from ravi_django.runtime.budgets import usage
from ravi_django.services.shapes import CostField, RunRowSerializer


class CountersSerializer(serializers.Serializer[Any]):
    """The columns of an account that begin with the field's name, such as `spent_tokens`."""

    tokens = serializers.IntegerField()
    cost = serializers.FloatField(help_text="US dollars, the known part")
    turns = serializers.IntegerField(help_text="Model calls")

    def to_representation(self, account: BudgetAccount) -> dict[str, Any]:
        row = {name: getattr(account, f"{self.field_name}_{name}") for name in ("tokens", "cost", "turns")}
        return super().to_representation(row)


class BudgetLimitsSerializer(serializers.Serializer[Any]):
    max_tokens = serializers.IntegerField(allow_null=True, help_text="Null: no limit")
    max_cost_usd = serializers.FloatField(source="max_cost", allow_null=True)
    max_turns = serializers.IntegerField(allow_null=True, help_text="Model calls")


class BudgetAccountSerializer(serializers.Serializer[Any]):
    limits = BudgetLimitsSerializer(source="*")
    spent = CountersSerializer(source="*")
    reserved = CountersSerializer(source="*", help_text="By open model calls")


class TreeTotalSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the input tokens")
    output_tokens = serializers.IntegerField()
    cost = CostField()
    cost_known = serializers.FloatField(source="cost", help_text="The known part of it")


class TreeSummarySerializer(serializers.Serializer[Any]):
    runs = serializers.IntegerField()
    live = serializers.IntegerField(help_text="Those that have not ended")
    usage = TreeTotalSerializer(source="*")
    budget = BudgetAccountSerializer(allow_null=True, help_text="Null for a tree without a budget")


class RunTreeSerializer(RunRowSerializer):
    children = serializers.ListField(child=serializers.DictField(), help_text="Runs like this one, oldest first")
    tree = TreeSummarySerializer(required=False, help_text="Of the whole tree; only at its root")

    def to_representation(self, root: Any) -> dict[str, Any]:
        """Iterative, so that the depth has no limit."""
        rows = RunRowSerializer(root.members, many=True).data
        shown = {row["id"]: {**row, "children": []} for row in rows}
        for row in shown.values():
            if row["parent"] in shown:
                shown[row["parent"]]["children"].append(row)
        whole = SimpleNamespace(**asdict(usage.TreeUsage.of(root.members)), budget=usage.tree_account(root.id))
        return {**shown[str(root.id)], "tree": TreeSummarySerializer(whole).data}


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
