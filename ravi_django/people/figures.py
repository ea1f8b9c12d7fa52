"""Response times: figures of requests by tool and address. The time of an address begins with its step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Aggregate, Case, CharField, Count, DurationField, ExpressionWrapper, F, Max, Min, Q, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.engine.db import clock
from ravi_django.models import HumanRequest, first_id_of
from ravi_django.people import site_rules

SPAN = timedelta(days=30)
GROUPS = 500  # groups of tool and address, those with the most requests

Status = HumanRequest.Status
_ANSWERED = Q(status=Status.ANSWERED)
_APPROVAL = Q(kind=HumanRequest.Kind.APPROVAL)
_DENIED = _ANSWERED & _APPROVAL & ~Q(answer__action__in=["approve", "edit"])
_ASKED_AT = Coalesce("asked_at", "created_at")
_TOOK = ExpressionWrapper(F("answered_at") - _ASKED_AT, output_field=DurationField())
_ABOUT = Case(When(tool="", then=F("kind")), default=F("tool"), output_field=CharField())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the requests about one tool to one address. Times are in seconds, None without data."""

    tool: str  # the kind, for a request about no tool
    to: str  # `group:finance`
    asked: int = 0  # requests that have this address, or had it when they were closed
    open: int = 0  # now, without regard to the opening
    answered: int = 0
    decided: int = 0  # answered approvals
    denied: int = 0  # decided approvals that were denied, skipped or withdrawn; without expired ones
    expired: int = 0  # while they had this address
    cancelled: int = 0  # with their runs
    answer_s_p50: float | None = None  # from the asking to the answer; None on SQLite
    answer_s_p95: float | None = None
    answer_s_max: float | None = None
    oldest_open_s: float | None = None  # since the asking

    @property
    def denied_share(self) -> float | None:
        """0 to 1; None without decided approvals."""
        return self.denied / self.decided if self.decided else None


class _Quantile(Aggregate):
    """PostgreSQL's percentile_cont."""

    function = "percentile_cont"
    template = "percentile_cont(%(share)s) WITHIN GROUP (ORDER BY %(expressions)s)" + (
        "%(filter)s"
        if "%(filter)s" in Aggregate.template
        else ""  # older versions of Django append the filter themselves
    )
    allow_distinct = False


def tenants_for(user: Any) -> Collection[str] | None:
    """The tenants whose requests are in the figures for `user`. None: all, also without RAVI["TENANT_OF"]."""
    return None if conf.TENANT_OF is None else site_rules.tenants_of(user)


def figures(since: datetime | None = None, tenants: Collection[str] | None = None) -> list[Figures]:
    """Figures of the requests opened since then (default: 30 days ago) and of all open ones, by tool and address. Two
    queries, which read only those rows."""
    present = clock.fixed() or timezone.now()
    groups: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    rows = HumanRequest.objects.order_by()
    if tenants is not None:
        rows = rows.filter(tenant__in=tenants)
    counted = rows.filter(id__gte=first_id_of(since or present - SPAN)).values("to", about=_ABOUT)
    is_open = rows.filter(status=Status.PENDING).values("to", about=_ABOUT)
    for group_rows in (
        counted.annotate(**_counts()).order_by("-asked", "about", "to")[:GROUPS],
        is_open.annotate(open=Count("id"), oldest=Min(_ASKED_AT)).order_by("-open", "about", "to")[:GROUPS],
    ):
        for row in group_rows:
            groups[row.pop("about"), row.pop("to")].update(row)
    return [_figures(about, to, group, present) for (about, to), group in sorted(groups.items())]


def _counts() -> dict[str, Any]:
    counts: dict[str, Any] = {
        "asked": Count("id"),
        "answered": Count("id", filter=_ANSWERED),
        "decided": Count("id", filter=_ANSWERED & _APPROVAL),
        "denied": Count("id", filter=_DENIED),
        "expired": Count("id", filter=Q(status=Status.EXPIRED)),
        "cancelled": Count("id", filter=Q(status=Status.CANCELLED)),
        "answer_s_max": Max(_TOOK, filter=_ANSWERED),
    }
    if connection.vendor == "postgresql":
        for name, share in (("answer_s_p50", 0.5), ("answer_s_p95", 0.95)):
            counts[name] = _Quantile(_TOOK, share=share, output_field=DurationField(), filter=_ANSWERED)
    return counts


def _figures(about: str, to: str, row: Mapping[str, Any], present: datetime) -> Figures:
    values = dict(row)
    oldest = values.pop("oldest", None)
    values["oldest_open_s"] = oldest and present - oldest
    for name, value in values.items():
        if isinstance(value, timedelta):  # below 0 when two clocks differ
            values[name] = max(0.0, value.total_seconds())
    return Figures(tool=about, to=to, **values)
