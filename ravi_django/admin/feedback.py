"""What people think of answers, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, column
from ravi_django.models import Feedback
from ravi_django.pages import show


@admin.register(Feedback)
class FeedbackAdmin(InspectAdmin):
    tenant = "run__tenant"
    list_display = ["when", "score", "said", "agent", "user", "run_link"]
    list_filter = ["score"]
    list_select_related = ["run", "user"]
    ordering = ["-id"]
    readonly_fields = [*list_display]  # type: ignore[list-item]
    fields = readonly_fields  # type: ignore[assignment]
    when = column(_("when"), lambda row: show.moment(row.created_at))
    said = column(_("text"), lambda row: show.visible(row.text) or show.NONE)
    agent = column(_("agent"), lambda row: row.run.agent)
    run_link = column(_("run"), lambda row: show.link_to("run", row.run_id, show.short_id(row.run_id)))
