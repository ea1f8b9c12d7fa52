"""Budgets as REST shows them: what may be used, what is spent, and what open model calls have reserved."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from ravi_django.models import BudgetAccount


class CountersSerializer(serializers.Serializer[Any]):
    """The columns of an account that begin with the field's name: `spent_tokens`, …"""

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
    reserved = CountersSerializer(source="*", help_text="By model calls under way")
