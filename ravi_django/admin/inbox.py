"""The inbox: the list of requests to people, and the page "Response times". `decisions` and `bulk` decide requests.

Staff see the requests that they may answer and, to read, those of their own runs. Users with `ravi.view_humanrequest`
read all of them, or those of their tenants when RAVI["TENANT_OF"] is set. That permission lets nobody answer more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin import readers
from ravi_django.admin.base import ChoiceFilter, InspectAdmin, id_begins, users_named
from ravi_django.admin.bulk import BulkDecisions
from ravi_django.admin.decisions import DecisionPages
from ravi_django.kernel.visible import visible
from ravi_django.models import HumanRequest, StickyDecision, first_id_of
from ravi_django.models.names import word
from ravi_django.pages import formats
from ravi_django.pages.context import first_message_text
from ravi_django.pages.texts import answered_by, next_of, one_line, who
from ravi_django.people import figures, mail
from ravi_django.people.figures import Figures

# The filters use indexes and the values of the newest requests, never the distinct values of all.
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
        answerable = readers.ids_to_answer(request, queryset)
        return queryset.filter(pk__in=answerable) if self.value() == "yes" else queryset.exclude(pk__in=answerable)


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
        values = {row[self.field] for row in _newest(request, model_admin)} - {""}
        chosen = request.GET.get(str(self.parameter_name))
        return [(value, visible(value)) for value in sorted(values | ({chosen} if chosen else set()))]

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
    newest: list[dict[str, Any]] | None = getattr(request, "_ravi_newest", None)
    if newest is None:
        rows = model_admin.get_queryset(request).order_by("-id").values("tool", "run__agent")
        newest = list(rows[: readers.NEWEST])
        request._ravi_newest = newest  # type: ignore[attr-defined]
    return newest


MOST_COUNTED = 100  # counted up to here
COUNTED_PAGES = ("index", "app_list", "ravi_humanrequest_changelist")


def pending(request: HttpRequest) -> int:
    """How many pending requests the user may answer, at most MOST_COUNTED. Counted once a page."""
    return min(MOST_COUNTED, sum(bool(row["mine"]) for row in readers.glance(request)))


def is_counted_on(request: HttpRequest) -> bool:
    return getattr(request.resolver_match, "url_name", None) in COUNTED_PAGES


def count_text(count: int) -> str:
    return f"{MOST_COUNTED - 1}+" if count >= MOST_COUNTED else str(count)


def add_to(site: AdminSite) -> None:
    """Add the number of requests that the user may answer, and the link to the dashboard, to the site's lists of apps,
    which stock and themed admins show alike. A second call changes nothing."""
    if getattr(site, "_ravi_counts", False):
        return
    get_app_list = site.get_app_list

    def counted(request: HttpRequest, *args: Any, **options: Any) -> list[Any]:
        apps = get_app_list(request, *args, **options)
        for app in apps:
            if app["app_label"] == HumanRequest._meta.app_label and request.user.has_perm("ravi.view_run"):
                app["models"][:0] = _dashboard()
        for app in apps if is_counted_on(request) else ():
            for model in app["models"]:
                if model.get("model") is HumanRequest and (count := pending(request)):
                    model["name"] = f"{model['name']} ({count_text(count)})"
        return apps

    site.get_app_list = counted  # type: ignore[method-assign]
    site._ravi_counts = True  # type: ignore[attr-defined]


def _dashboard() -> list[dict[str, Any]]:
    """The dashboard in the form of a model; nothing without the app's URLs."""
    try:
        address = mail.path_to("dashboard")
    except NoReverseMatch:
        return []
    name, may = gettext("Dashboard"), {"add": False, "change": False, "delete": False, "view": True}
    row = {"name": name, "object_name": "Dashboard", "admin_url": address, "add_url": None, "perms": may}
    return [{**row, "view_only": True}]


SPANS = {"1": _("24 hours"), "7": _("7 days"), "30": _("30 days"), "90": _("90 days")}  # of days
DEFAULT_SPAN = "30"


def figures_view(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """For users who may read all requests. Raises PermissionDenied."""
    if not request.user.has_perm("ravi.view_humanrequest"):
        raise PermissionDenied
    chosen = request.GET.get("days", DEFAULT_SPAN)
    days = chosen if chosen in SPANS else DEFAULT_SPAN
    groups = figures.figures(timezone.now() - timedelta(days=int(days)), figures.tenants_for(request.user))
    context = {
        **model_admin.admin_site.each_context(request),
        "title": gettext("Response times"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "spans": [(value, label, value == days) for value, label in SPANS.items()],
        "rows": [_figures_row(one) for one in groups],
        "open": sum(one.open for one in groups),
        "answered": sum(one.answered for one in groups),
        "expired": sum(one.expired for one in groups),
        "oldest": _span(max((one.oldest_open_s for one in groups if one.oldest_open_s is not None), default=None)),
        "cut": len(groups) >= figures.GROUPS,
    }
    request.current_app = model_admin.admin_site.name  # type: ignore[attr-defined]
    return TemplateResponse(request, "ravi/admin/figures.html", context)


def _figures_row(one: Figures) -> dict[str, Any]:
    return {
        "figures": one,
        "about": formats.word(one.tool) if one.tool in HumanRequest.Kind.values else one.tool,
        "denied": formats.NONE if one.denied_share is None else f"{one.denied_share:.0%}",
        "p50": _span(one.answer_s_p50),
        "p95": _span(one.answer_s_p95),
        "longest": _span(one.answer_s_max),
        "oldest": _span(one.oldest_open_s),
    }


def _span(seconds: float | None) -> str:
    return formats.NONE if seconds is None else formats.duration(timedelta(seconds=seconds))


@admin.register(HumanRequest)
class HumanRequestAdmin(BulkDecisions, DecisionPages, InspectAdmin):
    change_list_template = "ravi/admin/inbox.html"
    below = (StickyDecision,)
    change_form_template = "ravi/admin/request.html"
    list_display = ["asked", "asked_of", "age"]
    list_display_links = ["asked"]
    list_filter = [StatusFilter, MineFilter, "kind", RiskFilter, ToolFilter, AgentFilter, AgeFilter]
    list_select_related = ["run", "owner", "answered_by"]
    ordering = ["-id"]
    sortable_by = ["age"]
    search_fields = ["id"]  # see condition_of
    search_help_text = _("Search ids of requests and runs (or their first characters), texts, tools, and owners.")
    actions = ["approve_selected", "deny_selected"]

    class Media:
        css = {"all": ["ravi/admin.css", "ravi/agent.css", "ravi/requests.css"]}

    def __init__(self, model: Any, admin_site: Any) -> None:
        super().__init__(model, admin_site)
        add_to(admin_site)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None:
            return readers.readable(request).filter(pk=obj.pk).exists()
        seen: bool | None = getattr(request, "_ravi_sees_requests", None)
        if seen is None:  # Django asks several times a page, on every page of the admin
            glanced = is_counted_on(request) and readers.glance(request)
            seen = readers.reads_all(request) or bool(glanced) or readers.readable(request).exists()
            request._ravi_sees_requests = seen  # type: ignore[attr-defined]
        return seen

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """For the actions of the list. `people/rights.py` decides for each request."""
        return pending(request) > 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[HumanRequest]:
        ordered: QuerySet[HumanRequest] = readers.readable(request).order_by(*self.get_ordering(request))
        text = first_message_text(Coalesce(OuterRef("run__root_id"), OuterRef("run_id")))
        return ordered.select_related("run", "owner", "answered_by").annotate(first_message_text=text)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        waiting = pending(request)
        text = gettext("%(count)s to answer") % {"count": count_text(waiting)}
        text = text if waiting else gettext("No requests are waiting for you")
        context = {"title": gettext("Approvals & questions"), "subtitle": text, "shown_at": timezone.now().isoformat()}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def links(self, request: HttpRequest) -> list[tuple[Any, str]]:
        figures = reverse("admin:ravi_humanrequest_figures", current_app=self.admin_site.name)
        pages = [(gettext("Response times"), figures)] if readers.reads_all(request) else []
        return [*pages, *super().links(request)]

    @admin.display(description=_("request"))
    def asked(self, row: HumanRequest) -> SafeString:
        tool = format_html(" <code>{}</code>", formats.visible(row.tool)) if row.tool else ""
        of_risk = '<span class="ravi-kind ravi-risk-{}">{}</span> '
        risk = format_html(of_risk, row.risk, formats.word(row.risk)) if row.risk else ""
        return format_html(
            '<span class="ravi-kind">{}</span>{} <span class="ravi-asked">{}</span>'
            '<br><span class="ravi-quiet">{}{}{}</span>',
            formats.word(row.kind),
            tool,
            one_line(row),
            risk,
            gettext("%(agent)s, for %(owner)s")
            % {"agent": row.run.agent, "owner": formats.visible(str(row.owner or gettext("the system")))},
            format_html(": “{}”", formats.snippet(row.first_message_text)) if row.first_message_text else "",  # type: ignore[attr-defined]
        )

    @admin.display(description=_("assigned to, next step"))
    def asked_of(self, row: HumanRequest) -> SafeString:
        if row.status == HumanRequest.Status.PENDING:
            return format_html('{}<br><span class="ravi-quiet">{}</span>', who(row), next_of(row))
        return format_html("{} {}", formats.status(row.status), answered_by(row) or "")

    @admin.display(description=_("age"), ordering="id")
    def age(self, row: HumanRequest) -> SafeString:
        since = formats.duration(timezone.now() - row.created_at)
        return format_html('<span title="{}">{}</span>', formats.moment(row.created_at), since)

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        matches = Q(text__icontains=term) | Q(tool__icontains=term)
        return matches | Q(owner__in=users_named(term)) | id_begins(term, "id", "run_id", "run__root_id")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(lambda request: figures_view(request, self))
        return [path("figures/", view, name="ravi_humanrequest_figures"), *super().get_urls()]
