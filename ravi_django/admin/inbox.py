"""The inbox: what people are asked, and by `decisions` and `bulk` where they decide it.

Staff see what they may answer and, to read, what their own runs ask of others. Who has `ravi.view_humanrequest` reads
all, of their tenants where RAVI["TENANT_OF"] says which those are, and answers no more than they could without it.
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
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import badge, inbox_filters, readers, show
from ravi_django.admin.base import InspectAdmin, id_range, users_named
from ravi_django.admin.bulk import BulkDecisions
from ravi_django.admin.decisions import DecisionPages
from ravi_django.admin.figures import figures_view
from ravi_django.models import HumanRequest, StickyDecision
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
    search_fields = ["id"]  # see get_search_results
    search_help_text = _(
        "The id of a request or of a run, or its first characters; words of the text; a tool; an owner's user name."
    )
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
        if seen is None:  # asked several times a page, on every page of the admin
            seen = readers.reads_all(request) or self._sees_some(request)
            request._ravi_sees_requests = seen  # type: ignore[attr-defined]
        return seen

    def _sees_some(self, request: HttpRequest) -> bool:
        if badge.is_told_on(request) and readers.glance(request):
            return True
        return readers.readable(request).exists()

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """For the actions on the list. Who may answer which request is the rule in `people/rights.py`, one by one."""
        return badge.pending(request) > 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[HumanRequest]:
        ordered: QuerySet[HumanRequest] = readers.readable(request).order_by(*self.get_ordering(request))
        return ordered.select_related("run", "owner", "answered_by")

    # ------------------------------------------------------------------------------------------------- the list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        waiting = badge.pending(request)
        words = gettext("%(count)s to answer") % {"count": badge.shown(waiting)}
        words = words if waiting else gettext("Nothing waits for you")
        context = {"title": gettext("Approvals & questions"), "subtitle": words, "shown_at": timezone.now().isoformat()}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def links(self, request: HttpRequest) -> list[tuple[Any, str]]:
        figures = reverse("admin:ravi_humanrequest_figures", current_app=self.admin_site.name)
        mine = [(gettext("Response times"), figures)] if readers.reads_all(request) else []
        return [*mine, *super().links(request)]

    @admin.display(description=_("what is asked"))
    def asked(self, row: HumanRequest) -> SafeString:
        tool = format_html(" <code>{}</code>", show.visible(row.tool)) if row.tool else ""
        risk = (
            format_html('<span class="ravi-kind ravi-risk-{}">{}</span> ', row.risk, show.word(row.risk))
            if row.risk
            else ""
        )
        return format_html(
            '<span class="ravi-kind">{}</span>{} <span class="ravi-asked">{}</span>'
            '<br><span class="ravi-quiet">{}{}</span>',
            show.word(row.kind),
            tool,
            one_line(row),
            risk,
            gettext("%(agent)s, for %(owner)s")
            % {"agent": row.run.agent, "owner": show.visible(str(row.owner or gettext("nobody")))},
        )

    @admin.display(description=_("asked of, what is next"))
    def asked_of(self, row: HumanRequest) -> SafeString:
        if row.status == HumanRequest.Status.PENDING:
            return format_html('{}<br><span class="ravi-quiet">{}</span>', who(row), next_of(row))
        return format_html("{} {}", show.status(row.status), answered_by(row) or "")

    @admin.display(description=_("age"), ordering="id")
    def age(self, row: HumanRequest) -> SafeString:
        since = show.duration(timezone.now() - row.created_at)
        return format_html('<span title="{}">{}</span>', show.moment(row.created_at), since)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[HumanRequest], search_term: str
    ) -> tuple[QuerySet[HumanRequest], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(text__icontains=term) | Q(tool__icontains=term) | Q(owner__in=users_named(term))
        if bounds := id_range(term):
            found |= Q(id__range=bounds) | Q(run_id__gte=bounds[0], run_id__lte=bounds[1])
        return queryset.filter(found), False

    # -------------------------------------------------------------------------------------------------- figures

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(lambda request: figures_view(request, self))
        return [path("figures/", view, name="ravi_humanrequest_figures"), *super().get_urls()]
