"""The processes that drive runs, by their heartbeats."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, column
from ravi_django.conf import conf
from ravi_django.models import WorkerProcess
from ravi_django.pages import show
from ravi_django.runtime.db import clock


@admin.register(WorkerProcess)
class WorkerProcessAdmin(InspectAdmin):
    tenant = None
    list_display = ["name", "state", "runs", "release", "started_at", "seen"]
    list_display_links = None
    ordering = ["name"]
    state = column(
        _("state"),
        lambda worker: show.status("alive" if worker.age.total_seconds() < 3 * conf.HEARTBEAT_S else "late"),
    )
    seen = column(_("last seen"), lambda worker: gettext("%(age)s ago") % {"age": show.duration(worker.age)})

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkerProcess]:
        """`age` by the database's clock, which wrote the times."""
        return super().get_queryset(request).annotate(age=clock.age("seen_at"))  # type: ignore[no-any-return]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return redirect("admin:ravi_workerprocess_changelist")  # the list has everything
