"""How people keep up with what they are asked, for dashboards and monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from rest_framework import serializers
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from ravi_django.api.base import ApiView
from ravi_django.api.filters import moment_of
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.usage import MAX_SPAN
from ravi_django.kernel import ForbiddenError, InvalidInputError
from ravi_django.runtime.events import outbox_rows
from ravi_django.runtime.journal import outbox
from ravi_django.runtime.people import figures
from ravi_django.runtime.people.figures import Figures
from ravi_django.users import has, permits

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_LATE = "of the requests opened of late, within 30 days by default"


class PrometheusRenderer(BaseRenderer):
    """Prometheus' text format; the view has made the text."""

    media_type = "text/plain"
    format = "prometheus"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return str(data).encode()


class RequestFiguresSerializer(serializers.Serializer[Any]):
    tool = serializers.CharField(help_text="What was asked about; the kind of a request about no tool")
    to = serializers.CharField(help_text="The address that was asked")
    asked = serializers.IntegerField(help_text="Requests addressed to it now, or when they were closed")
    open = serializers.IntegerField(help_text="Now, whenever it was opened")
    answered = serializers.IntegerField()
    denied = serializers.IntegerField(
        help_text="Approvals that were decided and not approved: denied, skipped or withdrawn. Without the expired ones"
    )
    denied_share = serializers.FloatField(
        allow_null=True, help_text="0 to 1, of the approvals that were decided; null: none was"
    )
    expired = serializers.IntegerField(help_text="While this address was asked")
    cancelled = serializers.IntegerField(help_text="Closed with their runs, while this address was asked")
    answer_s_p50 = serializers.FloatField(
        allow_null=True, help_text="Seconds from when this address was asked to the answer, the median; null on SQLite"
    )
    answer_s_p95 = serializers.FloatField(allow_null=True)
    answer_s_max = serializers.FloatField(allow_null=True)
    oldest_open_s = serializers.FloatField(
        allow_null=True, help_text="Seconds that this address has been asked the oldest that is open"
    )


class MetricsSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(help_text="Requests opened from then on are counted")
    requests = RequestFiguresSerializer(many=True)


class ByFormat(DefaultContentNegotiation):
    """`?format=prometheus` too, for scrapers that send no Accept header."""

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
            parameter("since", "Requests opened from then on: ISO 8601, a day or a moment; 30 days ago unless given."),
            parameter("format", "`prometheus` is the same as `Accept: text/plain`.", enum=["json", "prometheus"]),
        ],
    )
    def get(self, request: Any) -> Response:
        """How people keep up: open, answered, expired, and the time to an answer, by tool and address.

        For superusers, and staff with the permission `ravi.view_humanrequest`; of all owners, and of all tenants or of
        those that RAVI["TENANT_OF"] gives them. As JSON, or as Prometheus text.
        """
        user = request.user
        if not (has(user, "is_superuser") or (has(user, "is_staff") and permits(user, "ravi.view_humanrequest"))):
            raise ForbiddenError("these figures are for staff with the permission ravi.view_humanrequest")
        since = _since(request.query_params)
        theirs = figures.tenants_for(user)
        found = figures.figures(since, theirs)
        if isinstance(request.accepted_renderer, PrometheusRenderer):
            text = prometheus(found) + _event_bus()
            return Response(text, content_type=PROMETHEUS)
        return Response(MetricsSerializer({"since": since, "requests": found}).data)


def _event_bus() -> str:
    """What the event bus has yet to be given; nothing on a site without one."""
    if not outbox.is_on():
        return ""
    count, age = outbox_rows.backlog()
    refused, _ = outbox_rows.refused()
    return (
        "# HELP ravi_outbox_events Events that the bus has yet to be given.\n"
        f"# TYPE ravi_outbox_events gauge\nravi_outbox_events {count}\n"
        "# HELP ravi_outbox_oldest_seconds How long the oldest of them has waited.\n"
        f"# TYPE ravi_outbox_oldest_seconds gauge\nravi_outbox_oldest_seconds {age:.3f}\n"
        "# HELP ravi_outbox_refused Events beside them that the bus's server refuses.\n"
        f"# TYPE ravi_outbox_refused gauge\nravi_outbox_refused {refused}\n"
    )


def _since(given: Any) -> datetime:
    present = datetime.now(UTC)
    since = moment_of(given["since"], "since") if "since" in given else present - figures.SPAN
    if not present - MAX_SPAN <= since <= present:
        raise InvalidInputError(f"since must be within the last {MAX_SPAN.days} days", field="since")
    return since


def prometheus(recent: Iterable[Figures]) -> str:
    recent = list(recent)
    lines = [
        *_metric("open", "gauge", "Requests that wait for a person.", recent, lambda one: one.open),
        *_metric(
            "oldest_open_seconds",
            "gauge",
            "How long this address has been asked the oldest that waits.",
            recent,
            lambda one: one.oldest_open_s,
        ),
        *_metric("answered_recently", "gauge", f"Answered, {_LATE}.", recent, lambda one: one.answered),
        *_metric("expired_recently", "gauge", f"Nobody answered in time, {_LATE}.", recent, lambda one: one.expired),
        f"# HELP ravi_request_answer_recent_seconds From when the address was asked to the answer, {_LATE}.",
        "# TYPE ravi_request_answer_recent_seconds gauge",
    ]
    for one in recent:
        for quantile, value in (("0.5", one.answer_s_p50), ("0.95", one.answer_s_p95)):
            if value is not None:
                lines.append(f'ravi_request_answer_recent_seconds{{{_labels(one)},quantile="{quantile}"}} {value:.6g}')
    return "\n".join(lines) + "\n"


def _metric(
    name: str, kind: str, what: str, of: Iterable[Figures], value: Callable[[Figures], float | None]
) -> Iterator[str]:
    yield f"# HELP ravi_requests_{name} {what}"
    yield f"# TYPE ravi_requests_{name} {kind}"
    for one in of:
        if (found := value(one)) is not None:
            yield f"ravi_requests_{name}{{{_labels(one)}}} {found:.15g}"


def _labels(one: Figures) -> str:
    return f'tool="{escaped(one.tool)}",to="{escaped(one.to)}"'


def escaped(value: str) -> str:
    """A label's value: backslash, quote and line feed are written with a backslash."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
