"""Response times: figures of requests by what was asked and which address was asked.

An address is timed from when it was asked, not from the request's opening.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Aggregate,
    Case,
    CharField,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
    Max,
    Min,
    Q,
    When,
)
from django.db.models.functions import Coalesce
from django.utils import timezone

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.models import HumanRequest, first_id_of
from ravi_django.runtime.db import clock
from ravi_django.runtime.people import site_rules

SPAN = timedelta(days=30)
GROUPS = 500  # of tool and address; those with the most requests

Status = HumanRequest.Status
_Key = tuple[str, str]  # what it is about, and the address
_ANSWERED = Q(status=Status.ANSWERED)
_APPROVAL = Q(kind=HumanRequest.Kind.APPROVAL)
_DENIED = _ANSWERED & _APPROVAL & ~Q(answer__action__in=["approve", "edit"])
_ASKED_AT = Coalesce("asked_at", "created_at")
_TOOK = ExpressionWrapper(F("answered_at") - _ASKED_AT, output_field=DurationField())
_ABOUT = Case(When(tool="", then=F("kind")), default=F("tool"), output_field=CharField())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the requests about one tool that one address was asked. Times are seconds; None: nothing to tell them from."""

    tool: str  # or the kind, of a request about no tool
    to: str  # `group:finance`
    asked: int = 0  # requests addressed to it now, or when they were closed
    open: int = 0  # now, whenever it was opened
    answered: int = 0
    decided: int = 0  # approvals, of those answered
    denied: int = 0  # of the approvals decided: denied, skipped or withdrawn; not those that expired
    expired: int = 0  # while this address was asked
    cancelled: int = 0  # with their runs
    answer_s_p50: float | None = None  # from when it was asked to the answer; None on SQLite
    answer_s_p95: float | None = None
    answer_s_max: float | None = None
    oldest_open_s: float | None = None  # since it was asked

    @property
    def denied_share(self) -> float | None:
        """0 to 1, of the approvals decided."""
        return self.denied / self.decided if self.decided else None


class _Quantile(Aggregate):
    """PostgreSQL's, of those that the filter leaves."""

    function = "percentile_cont"
    template = "percentile_cont(%(share)s) WITHIN GROUP (ORDER BY %(expressions)s)" + (
        "%(filter)s" if "%(filter)s" in Aggregate.template else ""  # older Django puts it behind by itself
    )
    allow_distinct = False


def tenants_for(user: Any) -> Collection[str] | None:
    """Whose requests the figures that `user` sees are of: those of their tenants, where the site says which those are;
    None: all."""
    return None if conf.TENANT_OF is None else site_rules.tenants_of(user)


def figures(since: datetime | None = None, tenants: Collection[str] | None = None) -> list[Figures]:
    """Of the requests opened since then (30 days ago unless given), and of all that are open, by tool and address. Two
    queries, which read those rows alone."""
    present = clock.fixed() or timezone.now()
    first = first_id_of(since or present - SPAN)
    groups: dict[_Key, dict[str, Any]] = defaultdict(dict)
    rows = _of(tenants)
    counted = _grouped(rows.filter(id__gte=first)).annotate(**_counts(), **_quantiles())
    _take(groups, counted.order_by("-asked", "about", "to")[:GROUPS])
    is_open = _grouped(rows.filter(status=Status.PENDING))
    _take(groups, is_open.annotate(open=Count("id"), oldest=Min(_ASKED_AT)).order_by("-open", "about", "to")[:GROUPS])
    return [_figures(about, to, group, present) for (about, to), group in sorted(groups.items())]


def _of(tenants: Collection[str] | None) -> Any:
    rows: Any = HumanRequest.objects.all()
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def _grouped(rows: Any) -> Any:  # a queryset of rows that are no model's
    return rows.order_by().values("to", about=_ABOUT)


def _counts() -> dict[str, Any]:
    return {
        "asked": Count("id"),
        "answered": Count("id", filter=_ANSWERED),
        "decided": Count("id", filter=_ANSWERED & _APPROVAL),
        "denied": Count("id", filter=_DENIED),
        "expired": Count("id", filter=Q(status=Status.EXPIRED)),
        "cancelled": Count("id", filter=Q(status=Status.CANCELLED)),
        "longest": Max(_TOOK, filter=_ANSWERED),
    }


def _quantiles() -> dict[str, Any]:
    if connection.vendor != "postgresql":
        return {}
    made: dict[str, Any] = {"output_field": DurationField(), "filter": _ANSWERED}
    return {"p50": _Quantile(_TOOK, share=0.5, **made), "p95": _Quantile(_TOOK, share=0.95, **made)}


def _take(groups: Mapping[_Key, dict[str, Any]], rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        groups[row.pop("about"), row.pop("to")].update(row)


_COUNTED = ("asked", "open", "answered", "decided", "denied", "expired", "cancelled")


def _figures(about: str, to: str, row: Mapping[str, Any], present: datetime) -> Figures:
    oldest = row.get("oldest")
    return Figures(
        tool=about,
        to=to,
        **{name: row[name] for name in _COUNTED if name in row},
        answer_s_p50=_seconds(row.get("p50")),
        answer_s_p95=_seconds(row.get("p95")),
        answer_s_max=_seconds(row.get("longest")),
        oldest_open_s=None if oldest is None else max(0.0, (present - oldest).total_seconds()),
    )


def _seconds(span: timedelta | None) -> float | None:
    """A fake clock, or two that differ, may have answered before it was asked."""
    return None if span is None else max(0.0, span.total_seconds())
