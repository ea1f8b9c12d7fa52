"""Task boards, read-only: only agents write them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, column, id_begins
from ravi_django.models import BoardTask
from ravi_django.pages import show


@admin.register(BoardTask)
class BoardTaskAdmin(InspectAdmin):
    tenant = "session__tenant"
    in_index = False
    list_display = ["task", "status_badge", "agent", "parent_agent", "conversation", "updated"]
    readonly_fields = ["task", "status_badge", "detail", "agent", "label", "parent_agent", "conversation", "run"]
    readonly_fields += ["created_at", "updated_at"]
    list_filter = ["status"]
    list_select_related = ["session"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["title"]
    search_help_text = _("Search titles, agent addresses, and session ids (or their first characters).")

    task = column(_("task"), lambda task: format_html("{}. {}", task.number, task.title))
    status_badge = column(_("status"), lambda task: show.status(task.status))
    conversation = column(_("conversation"), lambda task: show.link_to("session", task.session_id, task.session))
    updated = column(_("changed"), lambda task: show.moment(task.updated_at))

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "session_id") or Q(title__icontains=term) | Q(agent=term)
