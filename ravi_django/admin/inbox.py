"""The inbox: the list of requests to people. They are decided in `decisions` and `bulk`.

Staff see the requests that they may answer and, to read, those of their own runs. Users with `ravi.view_humanrequest`
read all of them, or those of their tenants when RAVI["TENANT_OF"] is set. That permission lets nobody answer more.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin import badge, inbox_filters, readers
from ravi_django.admin.base import InspectAdmin, id_begins, users_named
from ravi_django.admin.bulk import BulkDecisions
from ravi_django.admin.decisions import DecisionPages
from ravi_django.admin.figures import figures_view
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.pages import show
from ravi_django.pages.words import answered_by, next_of, one_line, who


@admin.register(HumanRequest)
class HumanRequestAdmin(BulkDecisions, DecisionPages, InspectAdmin):
    change_list_template = "ravi/admin/inbox.html"
    below = (StickyDecision,)
    change_form_template = "ravi/admin/request.html"
    list_display = ["asked", "asked_of", "age"]
    list_display_links = ["asked"]
    list_filter = [
        inbox_filters.StatusFilter,
        inbox_filters.MineFilter,
        "kind",
        inbox_filters.RiskFilter,
        inbox_filters.ToolFilter,
        inbox_filters.AgentFilter,
        inbox_filters.AgeFilter,
    ]
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
        badge.add_to(admin_site)

    # -------------------------------------------------------------------------------------------- who sees what

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None:
            return readers.readable(request).filter(pk=obj.pk).exists()
        seen: bool | None = getattr(request, "_ravi_sees_requests", None)
        if seen is None:  # Django asks several times a page, on every page of the admin
            glanced = badge.is_counted_on(request) and readers.glance(request)
            seen = readers.reads_all(request) or bool(glanced) or readers.readable(request).exists()
            request._ravi_sees_requests = seen  # type: ignore[attr-defined]
        return seen

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """For the actions of the list. `people/rights.py` decides for each request."""
        return badge.pending(request) > 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[HumanRequest]:
        ordered: QuerySet[HumanRequest] = readers.readable(request).order_by(*self.get_ordering(request))
        return ordered.select_related("run", "owner", "answered_by")

    # ------------------------------------------------------------------------------------------------- the list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        waiting = badge.pending(request)
        words = gettext("%(count)s to answer") % {"count": badge.shown(waiting)}
        words = words if waiting else gettext("No requests are waiting for you")
        context = {"title": gettext("Approvals & questions"), "subtitle": words, "shown_at": timezone.now().isoformat()}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def links(self, request: HttpRequest) -> list[tuple[Any, str]]:
        figures = reverse("admin:ravi_humanrequest_figures", current_app=self.admin_site.name)
        mine = [(gettext("Response times"), figures)] if readers.reads_all(request) else []
        return [*mine, *super().links(request)]

    @admin.display(description=_("request"))
    def asked(self, row: HumanRequest) -> SafeString:
        tool = format_html(" <code>{}</code>", show.visible(row.tool)) if row.tool else ""
        of_risk = '<span class="ravi-kind ravi-risk-{}">{}</span> '
        risk = format_html(of_risk, row.risk, show.word(row.risk)) if row.risk else ""
        return format_html(
            '<span class="ravi-kind">{}</span>{} <span class="ravi-asked">{}</span>'
            '<br><span class="ravi-quiet">{}{}</span>',
            show.word(row.kind),
            tool,
            one_line(row),
            risk,
            gettext("%(agent)s, for %(owner)s")
            % {"agent": row.run.agent, "owner": show.visible(str(row.owner or gettext("the system")))},
        )

    @admin.display(description=_("assigned to, next step"))
    def asked_of(self, row: HumanRequest) -> SafeString:
        if row.status == HumanRequest.Status.PENDING:
            return format_html('{}<br><span class="ravi-quiet">{}</span>', who(row), next_of(row))
        return format_html("{} {}", show.status(row.status), answered_by(row) or "")

    @admin.display(description=_("age"), ordering="id")
    def age(self, row: HumanRequest) -> SafeString:
        since = show.duration(timezone.now() - row.created_at)
        return format_html('<span title="{}">{}</span>', show.moment(row.created_at), since)

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        words = Q(text__icontains=term) | Q(tool__icontains=term)
        return words | Q(owner__in=users_named(term)) | id_begins(term, "id", "run_id")

    # -------------------------------------------------------------------------------------------------- figures

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(lambda request: figures_view(request, self))
        return [path("figures/", view, name="ravi_humanrequest_figures"), *super().get_urls()]
