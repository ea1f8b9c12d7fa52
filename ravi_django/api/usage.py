"""Usage of the user's runs by agent, tenant, user, tree or day, and the daily budgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django.api.base import ApiView, ApiViewSet
from ravi_django.api.filters import EPOCH, AddressFilter, Form, MomentFilter, choice
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.runs import BudgetAccountSerializer
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Run, first_id_of
from ravi_django.runtime.budgets import accounts

SPAN, MAX_SPAN = timedelta(days=30), timedelta(days=366)
NEWEST_FIRST = ("tree", "day")


class UsageGroupSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(
        source="shown",
        allow_null=True,
        help_text="The agent's address, the tenant, the user's id, the root run's id or the day (UTC)",
    )
    name = serializers.CharField(help_text="The user's name, the agent of the tree's root, else the key")
    runs = serializers.IntegerField()
    input_tokens = serializers.IntegerField(source="sum_input_tokens")
    cached_tokens = serializers.IntegerField(source="sum_cached_tokens", help_text="Of the input tokens")
    output_tokens = serializers.IntegerField(source="sum_output_tokens")
    reasoning_tokens = serializers.IntegerField(source="sum_reasoning_tokens", help_text="Of the output tokens")
    cost = serializers.SerializerMethodField(help_text="US dollars; null when a call's price is unknown")
    cost_known = serializers.FloatField(source="sum_cost", help_text="The known part of it")

    def get_cost(self, row: dict[str, Any]) -> float | None:
        return None if row["unknown"] else float(row["sum_cost"])


class UsageFilters(FilterSet):
    by = choice("by", accounts.KEYS, method="as_is", help_text="The key of the groups; agent by default.")
    since = MomentFilter(
        method="as_is", help_text="Runs created since: ISO 8601, a date or a time; by default 30 days ago."
    )
    until = MomentFilter(
        method="as_is", help_text="Runs created before; by default now. At most 366 days after `since`."
    )
    agent = AddressFilter(help_text="Only runs of this agent, type/key.")

    class Meta:
        model = Run
        fields: list[str] = []
        form = Form

    def as_is(self, rows: QuerySet[Run], name: str, value: Any) -> QuerySet[Run]:
        return rows

    def filter_queryset(self, queryset: QuerySet[Run]) -> QuerySet[Run]:
        """Through the index of the ids, which begin with the time in milliseconds."""
        given = self.form.cleaned_data
        until = given["until"] or datetime.now(UTC)
        since = given["since"] or max(until - SPAN, EPOCH)
        if since > until:
            raise InvalidInputError("since must not be after until", field="since")
        if until - since > MAX_SPAN:
            raise InvalidInputError(f"since must be within {MAX_SPAN.days} days before until", field="since")
        rows = super().filter_queryset(queryset).filter(id__gte=first_id_of(since))
        return rows.filter(id__lt=first_id_of(until)) if given["until"] else rows


class UsageViewSet(ApiViewSet):
    queryset = Run.objects.all()
    serializer_class = UsageGroupSerializer
    filterset_class = UsageFilters

    @documented("usage_list", ok={200: UsageGroupSerializer(many=True)}, errors=[400])
    def list(self, request: Any) -> Response:
        """The usage of the user's runs.

        Sums over the runs created in the span, including those that have not ended. An unknown price makes the cost
        null; `cost_known` is the known part.
        """
        rows = self.filter_queryset(self.get_queryset())
        by = request.query_params.get("by", "agent")
        self.ordering = "-key" if by in NEWEST_FIRST else "key"
        return self.page(accounts.grouped(rows, by), prepare=_NAMES.get(by, _as_keys))


# ------------------------------------------------------------------------------------------------ names of groups


def _as_keys(page: list[dict[str, Any]]) -> None:
    for row in page:
        row["shown"] = row["name"] = str(row["key"])


def _with_user_names(page: list[dict[str, Any]]) -> None:
    users = get_user_model()._default_manager.in_bulk([row["key"] for row in page if row["key"]])
    names = {str(key): user.get_username() for key, user in users.items()}
    for row in page:
        row["shown"], row["name"] = row["key"] or None, names.get(row["key"], "")


def _with_agents(page: list[dict[str, Any]]) -> None:
    agents = dict(Run.objects.filter(id__in=[row["key"] for row in page]).values_list("id", "agent"))
    for row in page:
        row["shown"], row["name"] = str(row["key"]), agents.get(row["key"], "")


_NAMES = {"user": _with_user_names, "tree": _with_agents}


# ------------------------------------------------------------------------------------------------- daily budgets


class TodaySerializer(serializers.Serializer[Any]):
    day = serializers.DateField(help_text="UTC")
    user = BudgetAccountSerializer(allow_null=True, help_text="The user's; null if nothing limits or counts it")
    tenant = BudgetAccountSerializer(
        allow_null=True, help_text="Null if nothing limits or counts it, or the user has no run in the tenant"
    )


class TodayView(ApiView):
    @documented(
        "usage_today",
        ok={200: TodaySerializer},
        errors=[400, 404],
        parameters=[parameter("tenant", "The tenant of the second budget; by default the one without a name.")],
    )
    def get(self, request: Any) -> Response:
        """Today's budgets of the user and of a tenant: spent, reserved and left.

        404 for a tenant in which the user has no run.
        """
        tenant, named = request.query_params.get("tenant", ""), "tenant" in request.query_params
        if "\0" in tenant:
            raise InvalidInputError("tenant must not contain the character NUL", field="tenant")
        theirs = Run.objects.for_user(request.user).filter(tenant=tenant).exists()
        if named and not theirs:
            raise NotFound(f"there is no tenant {tenant!r} of yours")
        today = accounts.today(request.user.pk, tenant)
        return Response(TodaySerializer(today if theirs else {**today, "tenant": None}).data)
