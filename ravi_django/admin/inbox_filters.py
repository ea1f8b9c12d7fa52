"""The inbox's filters. They use indexes and the values of the newest requests, never the distinct values of all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin import readers
from ravi_django.admin.base import ChoiceFilter
from ravi_django.kernel.visible import visible
from ravi_django.models import HumanRequest, first_id_of
from ravi_django.models.names import word

_OTHERS = [value for value in HumanRequest.Status.values if value != HumanRequest.Status.PENDING]

Requests = QuerySet[HumanRequest]


class StatusFilter(admin.SimpleListFilter):
    """Pending, unless another is chosen."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((value, word(value)) for value in _OTHERS), ("all", gettext("all"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": word("pending")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: Requests) -> Requests:
        if self.value() == "all":
            return queryset
        known = self.value() in HumanRequest.Status.values
        return queryset.filter(status=self.value() if known else HumanRequest.Status.PENDING)


class MineFilter(admin.SimpleListFilter):
    title = _("who can answer")
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", gettext("me")), ("no", gettext("only others"))]

    def queryset(self, request: HttpRequest, queryset: Requests) -> Requests:
        if self.value() not in ("yes", "no"):
            return queryset
        mine = readers.mine_among(request, queryset)
        return queryset.filter(pk__in=mine) if self.value() == "yes" else queryset.exclude(pk__in=mine)


class RiskFilter(ChoiceFilter):
    title = _("risk")
    parameter_name = "risk"
    labels = {risk: _(risk) for risk in ("safe", "high", "critical")}

    def condition(self, value: str) -> Q:
        return Q(risk=value)


class AgeFilter(ChoiceFilter):
    """By the ids, which begin with the time and are indexed."""

    title = _("age")
    parameter_name = "age"
    labels = {"1": _("over an hour"), "24": _("over a day"), "168": _("over a week")}  # by hours

    def condition(self, value: str) -> Q:
        return Q(id__lt=first_id_of(timezone.now() - timedelta(hours=int(value))))


class _NewestFilter(admin.SimpleListFilter):
    """The values of the newest requests that the person may see, and the chosen one."""

    field: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = {row[self.field] for row in _newest(request, model_admin)} - {""}
        chosen = request.GET.get(str(self.parameter_name))
        return [(value, visible(value)) for value in sorted(found | ({chosen} if chosen else set()))]

    def has_output(self) -> bool:
        return True  # also with the value "all" alone

    def queryset(self, request: HttpRequest, queryset: Requests) -> Requests:
        return queryset.filter(**{self.field: self.value()}) if self.value() else queryset


class ToolFilter(_NewestFilter):
    title = _("tool")
    parameter_name = "tool"
    field = "tool"


class AgentFilter(_NewestFilter):
    title = _("agent")
    parameter_name = "agent"
    field = "run__agent"


def _newest(request: HttpRequest, model_admin: Any) -> list[dict[str, Any]]:
    """One query for all filters of a page; none for the list of pending requests."""
    if request.GET.get("status", "pending") not in (*_OTHERS, "all"):
        return readers.glance(request)
    found: list[dict[str, Any]] | None = getattr(request, "_ravi_newest", None)
    if found is None:
        rows = model_admin.get_queryset(request).order_by("-id").values("tool", "run__agent")
        found = list(rows[: readers.NEWEST])
        request._ravi_newest = found  # type: ignore[attr-defined]
    return found
