"""For dashboards and monitors: health, response times of people, and the event bus's backlog."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import AllowAny
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from ravi_django import wing
from ravi_django.api.base import ApiView, ApiViewSet, non_atomic
from ravi_django.api.filters import EPOCH, AddressFilter, Form, MomentFilter, choice, moment_of
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.runs import BudgetAccountSerializer
from ravi_django.engine.worker.health import Check, check_all
from ravi_django.kernel import ForbiddenError, InvalidInputError
from ravi_django.models import Run, first_id_of
from ravi_django.people import figures
from ravi_django.people.figures import Figures
from ravi_django.runs.budgets import accounts
from ravi_django.services import shapes
from ravi_django.users import has, permits

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
        cleaned = self.form.cleaned_data
        until = cleaned["until"] or datetime.now(UTC)
        since = cleaned["since"] or max(until - SPAN, EPOCH)
        if since > until:
            raise InvalidInputError("since must not be after until", field="since")
        if until - since > MAX_SPAN:
            raise InvalidInputError(f"since must be within {MAX_SPAN.days} days before until", field="since")
        rows = super().filter_queryset(queryset).filter(id__gte=first_id_of(since))
        return rows.filter(id__lt=first_id_of(until)) if cleaned["until"] else rows


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


PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_RECENT = "of requests opened recently, by default within 30 days"


class PrometheusRenderer(BaseRenderer):
    """Prometheus' text format; the view has made the text."""

    media_type = "text/plain"
    format = "prometheus"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return str(data).encode()


class RequestFiguresSerializer(serializers.Serializer[Any]):
    tool = serializers.CharField(help_text="The tool; for a request about no tool, its kind")
    to = serializers.CharField(help_text="The address")
    asked = serializers.IntegerField(help_text="Requests addressed to it now, or when they were closed")
    open = serializers.IntegerField(help_text="Pending now, whenever they were opened")
    answered = serializers.IntegerField()
    denied = serializers.IntegerField(
        help_text="Approvals that were denied, skipped or withdrawn; without expired ones"
    )
    denied_share = serializers.FloatField(
        allow_null=True, help_text="0 to 1, of the decided approvals; null if there is none"
    )
    expired = serializers.IntegerField(help_text="Expired at this address")
    cancelled = serializers.IntegerField(help_text="Closed at this address because the run ended")
    answer_s_p50 = serializers.FloatField(
        allow_null=True, help_text="Median of the seconds until this address answered; null on SQLite"
    )
    answer_s_p95 = serializers.FloatField(allow_null=True)
    answer_s_max = serializers.FloatField(allow_null=True)
    oldest_open_s = serializers.FloatField(
        allow_null=True, help_text="Seconds that the oldest pending request has been at this address"
    )


class MetricsSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(help_text="Counts requests opened since")
    requests = RequestFiguresSerializer(many=True)


class ByFormat(DefaultContentNegotiation):
    """Also by `?format=prometheus`, for scrapers that send no Accept header."""

    settings = SimpleNamespace(URL_FORMAT_OVERRIDE="format")  # type: ignore[assignment]


class MetricsView(ApiView):
    content_negotiation_class = ByFormat
    renderer_classes = [JSONRenderer, PrometheusRenderer]

    @documented(
        "metrics_read",
        ok={(200, "application/json"): MetricsSerializer, (200, "text/plain"): str},
        media_type="application/json",
        errors=[400, 403, 404],
        parameters=[
            parameter("since", "Requests opened since this time; by default 30 days ago.", kind=datetime),
            parameter(
                "format",
                "`prometheus` is the same as `Accept: text/plain`; an empty one counts as none.",
                enum=["", "json", "prometheus"],
            ),
        ],
    )
    def get(self, request: Any) -> Response:
        """Requests by tool and address: open, answered, expired, and the time to an answer.

        For superusers, and for staff with the permission `ravi.view_humanrequest`. It covers requests of all owners in
        the user's tenants, or in all tenants if RAVI["TENANT_OF"] is not set. As JSON, or as Prometheus text.
        """
        user = request.user
        if not (has(user, "is_superuser") or (has(user, "is_staff") and permits(user, "ravi.view_humanrequest"))):
            raise ForbiddenError("these figures are for staff with the permission ravi.view_humanrequest")
        since = _since(request.query_params)
        theirs = figures.tenants_for(user)
        rows = figures.figures(since, theirs)
        if isinstance(request.accepted_renderer, PrometheusRenderer):
            of_wings = "".join(text() for _, text in wing.each("metrics"))
            return Response(prometheus(rows) + of_wings, content_type=PROMETHEUS)
        return Response(MetricsSerializer({"since": since, "requests": rows}).data)


def _since(query: Any) -> datetime:
    present = datetime.now(UTC)
    since = moment_of(query["since"], "since") if "since" in query else present - figures.SPAN
    if not present - MAX_SPAN <= since <= present:
        raise InvalidInputError(f"since must be within the last {MAX_SPAN.days} days", field="since")
    return since


_GAUGES = (
    ("open", "Requests that wait for a person.", attrgetter("open")),
    ("oldest_open_seconds", "How long the oldest has waited at this address.", attrgetter("oldest_open_s")),
    ("answered_recently", f"Answered, {_RECENT}.", attrgetter("answered")),
    ("expired_recently", f"Expired, {_RECENT}.", attrgetter("expired")),
)


def prometheus(recent: Sequence[Figures]) -> str:
    lines = []
    for name, meaning, value in _GAUGES:
        lines += [f"# HELP ravi_requests_{name} {meaning}", f"# TYPE ravi_requests_{name} gauge"]
        values = [(one, value(one)) for one in recent]
        lines += [f"ravi_requests_{name}{{{_labels(one)}}} {at:.15g}" for one, at in values if at is not None]
    name = "ravi_request_answer_recent_seconds"
    lines += [f"# HELP {name} From the request at this address to the answer, {_RECENT}.", f"# TYPE {name} gauge"]
    for one in recent:
        for quantile, at in (("0.5", one.answer_s_p50), ("0.95", one.answer_s_p95)):
            if at is not None:
                lines.append(f'{name}{{{_labels(one)},quantile="{quantile}"}} {at:.6g}')
    return "\n".join(lines) + "\n"


def _labels(one: Figures) -> str:
    return f'tool="{escaped(one.tool)}",to="{escaped(one.to)}"'


def escaped(value: str) -> str:
    """A label's value, with backslash, quote and line feed escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


FRESH_S = 1.0  # anonymous clients may ask, and each answer opens several connections

_lock = threading.Lock()
_last: tuple[float, list[Check]] = (float("-inf"), [])


@non_atomic  # a transaction would fail without a database
class HealthView(ApiView):
    permission_classes = [AllowAny]
    throttle_classes = []  # a load balancer asks often

    def perform_authentication(self, request: Any) -> None:
        """Done in `_is_staff`: it may need the database, which may be down."""

    @documented("health", ok={200: shapes.HealthSerializer, 503: shapes.HealthSerializer}, anonymous=True)
    def get(self, request: Any) -> Response:
        """Whether all services that runs need are available; anonymous. Staff see each check."""
        checks = _checks()
        healthy = all(check.ok for check in checks)
        body: dict[str, Any] = {"status": "ok" if healthy else "unavailable"}
        if _is_staff(request):
            body["checks"] = {check.name: check for check in checks}
        return Response(shapes.HealthSerializer(body).data, status=200 if healthy else 503)


def _checks() -> list[Check]:
    """At most FRESH_S old; of concurrent calls only one runs the checks."""
    global _last
    with _lock:
        at, checks = _last
        if time.monotonic() - at > FRESH_S:
            checks = check_all()
            _last = (time.monotonic(), checks)
    return checks


def _is_staff(request: Any) -> bool:
    """False if authentication fails: health answers all the same."""
    try:
        return bool(request.user.is_active and request.user.is_staff)
    except Exception:
        return False
