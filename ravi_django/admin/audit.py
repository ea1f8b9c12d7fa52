"""The audit log, to look at: nobody adds to it, changes or deletes it here."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import show
from ravi_django.admin.base import InspectAdmin, id_range, users_named
from ravi_django.admin.runs import AgentFilter
from ravi_django.models import AuditRecord
from ravi_django.models.audit import decided_by

MOST = 1_000  # users whose records one search looks for


class SinceFilter(admin.SimpleListFilter):
    """By the ids, which begin with the time and are indexed."""

    title = _("time")
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", gettext("the last day")), ("7", gettext("the last 7 days")), ("30", gettext("the last 30 days"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRecord]) -> QuerySet[AuditRecord]:
        if self.value() not in ("1", "7", "30"):
            return queryset
        since = timezone.now() - timedelta(days=int(self.value() or 0))
        return queryset.filter(id__gte=UUID(int=int(since.timestamp() * 1000) << 80))


class EventFilter(admin.SimpleListFilter):
    """The kinds that there are, without looking for the distinct values of a big table."""

    title = _("event")
    parameter_name = "event"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(event, show.word(event)) for event in ("run", "model", "tool", "request")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRecord]) -> QuerySet[AuditRecord]:
        return queryset.filter(event=self.value()) if self.value() else queryset


@admin.register(AuditRecord)
class AuditRecordAdmin(InspectAdmin):
    list_display = ["when", "shown_event", "shown_name", "by", "who", "agent", "run_link"]
    list_display_links = ["when"]
    list_filter = [SinceFilter, EventFilter, AgentFilter]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["id"]  # see get_search_results
    search_help_text = _("The id of a run, or its first characters; or the user name of an owner, or of who decided.")
    readonly_fields = [*list_display, "session_link", "tenant", "shown_detail"]  # type: ignore[list-item]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditRecord]:
        return super().get_queryset(request).select_related("owner")  # None when the user was just deleted

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return list(self.readonly_fields)

    @admin.display(description=_("when"))
    def when(self, record: AuditRecord) -> str:
        return show.moment(record.created_at)

    @admin.display(description=_("event"))
    def shown_event(self, record: AuditRecord) -> str:
        return show.word(record.event)

    @admin.display(description=_("name"))
    def shown_name(self, record: AuditRecord) -> str:
        """Of a request, what was done to it; else the model or the tool."""
        return show.word(record.name) if record.event == "request" else record.name

    @admin.display(description=_("by"))
    def by(self, record: AuditRecord) -> str:
        return show.visible(record.by) or show.NONE

    @admin.display(description=_("for"))
    def who(self, record: AuditRecord) -> str:
        return str(record.owner) if record.owner else show.NONE

    @admin.display(description=_("run"))
    def run_link(self, record: AuditRecord) -> SafeString:
        """The run may be gone; its page says so then."""
        link = reverse("admin:ravi_run_change", args=[record.run_id])
        return format_html('<a href="{}">{}</a>', link, show.short_id(record.run_id))

    @admin.display(description=_("session"))
    def session_link(self, record: AuditRecord) -> SafeString:
        link = reverse("admin:ravi_session_change", args=[record.session_id])
        return format_html('<a href="{}">{}</a>', link, show.short_id(record.session_id))

    @admin.display(description=_("detail"))
    def shown_detail(self, record: AuditRecord) -> SafeString | str:
        shown = show.pretty(record.detail or None, None)
        return format_html('<pre class="ravi-pre">{}</pre>', shown["text"]) if shown else show.NONE

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRecord], search_term: str
    ) -> tuple[QuerySet[AuditRecord], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if bounds := id_range(term):
            return queryset.filter(run_id__range=bounds), False
        found = list(users_named(term)[: MOST + 1])
        if len(found) > MOST:
            words = gettext("More than %(most)s users match %(term)s: type more of the name.")
            self.message_user(request, words % {"most": MOST, "term": repr(term)}, messages.WARNING)
            return queryset.none(), False
        names = [term, *(user.get_username() for user in found)]  # the user may be gone
        return queryset.filter(Q(owner__in=found) | decided_by(names)), False
