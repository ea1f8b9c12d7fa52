"""Task boards, to look at: agents alone write them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import show
from ravi_django.admin.base import InspectAdmin, id_range
from ravi_django.models import BoardTask

FIELDS = ["task", "status_badge", "detail", "agent", "label", "parent_agent", "conversation", "run"]
FIELDS += ["created_at", "updated_at"]


@admin.register(BoardTask)
class BoardTaskAdmin(InspectAdmin):
    tenant = "session__tenant"
    in_index = False
    list_display = ["task", "status_badge", "agent", "parent_agent", "conversation", "updated"]
    list_filter = ["status"]
    list_select_related = ["session"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["title"]
    search_help_text = _("Words of the title; an agent's address; the id of a session, or its first characters.")

    @admin.display(description=_("task"))
    def task(self, task: BoardTask) -> SafeString:
        return format_html("{}. {}", task.number, task.title)

    @admin.display(description=_("status"))
    def status_badge(self, task: BoardTask) -> SafeString:
        return show.status(task.status)

    @admin.display(description=_("conversation"))
    def conversation(self, task: BoardTask) -> SafeString:
        return show.link_to("session", task.session_id, task.session)

    @admin.display(description=_("changed"))
    def updated(self, task: BoardTask) -> str:
        return show.moment(task.updated_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[BoardTask], search_term: str
    ) -> tuple[QuerySet[BoardTask], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if bounds := id_range(term):
            return queryset.filter(session_id__gte=bounds[0], session_id__lte=bounds[1]), False
        return queryset.filter(Q(title__icontains=term) | Q(agent=term)), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[BoardTask]:
        return super().get_queryset(request).select_related("session")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return FIELDS

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return FIELDS
