"""Budgets as REST shows them: what may be used, what is spent, and what open model calls have reserved."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from ravi_django.models import BudgetAccount


class CountersSerializer(serializers.Serializer[Any]):
    tokens = serializers.IntegerField()
    cost = serializers.FloatField(help_text="US dollars, the known part")
    turns = serializers.IntegerField(help_text="Model calls")


class BudgetLimitsSerializer(serializers.Serializer[Any]):
    max_tokens = serializers.IntegerField(allow_null=True, help_text="Null: no limit")
    max_cost_usd = serializers.FloatField(allow_null=True)
    max_turns = serializers.IntegerField(allow_null=True, help_text="Model calls")


class BudgetAccountSerializer(serializers.Serializer[Any]):
    limits = BudgetLimitsSerializer()
    spent = CountersSerializer()
    reserved = CountersSerializer(help_text="By model calls under way")

    def to_representation(self, account: BudgetAccount) -> dict[str, Any]:
        return {
            "limits": {
                "max_tokens": account.max_tokens,
                "max_cost_usd": None if account.max_cost is None else float(account.max_cost),
                "max_turns": account.max_turns,
            },
            "spent": _counters(account, "spent"),
            "reserved": _counters(account, "reserved"),
        }


def _counters(account: BudgetAccount, which: str) -> dict[str, Any]:
    return {
        "tokens": getattr(account, f"{which}_tokens"),
        "cost": float(getattr(account, f"{which}_cost")),
        "turns": getattr(account, f"{which}_turns"),
    }
