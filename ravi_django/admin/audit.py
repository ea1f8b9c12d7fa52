"""Read-only lists for operators: the audit log, and the worker processes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import ChoiceFilter, InspectAdmin, column, id_begins, users_named
from ravi_django.admin.runs import AgentFilter
from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.models import AuditRecord, WorkerProcess, first_id_of
from ravi_django.models.audit import decided_by
from ravi_django.pages import formats
from ravi_django.pages.texts import event_of

MOST = 1_000  # users whose records one search looks for


class SinceFilter(ChoiceFilter):
    """By the ids, which begin with the time and are indexed."""

    title = _("time")
    parameter_name = "since"
    labels = {"1": _("the last day"), "7": _("the last 7 days"), "30": _("the last 30 days")}

    def condition(self, value: str) -> Q:
        return Q(id__gte=first_id_of(timezone.now() - timedelta(days=int(value))))


class EventFilter(ChoiceFilter):
    """The distinct values of a big table take long to find: these are all kinds."""

    title = _("event")
    parameter_name = "event"
    labels = {event: _(event) for event in ("run", "model", "tool", "request")}

    def condition(self, value: str) -> Q:
        return Q(event=value)


@admin.register(AuditRecord)
class AuditRecordAdmin(InspectAdmin):
    list_display = ["when", "shown_event", "name_text", "by", "who", "agent", "run_link"]
    list_display_links = ["when"]
    list_filter = [SinceFilter, EventFilter, AgentFilter]
    list_select_related = ["owner"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["id"]  # see condition_of
    search_help_text = _("Search run ids (or their first characters), owners, and users who decided.")
    readonly_fields = ["when", "shown_event", "whole_name", *list_display[3:], "session_link", "tenant", "detail_html"]  # type: ignore[list-item]
    when = column(_("when"), lambda record: formats.moment(record.created_at))
    shown_event = column(_("event"), lambda record: formats.word(record.event))
    by = column(_("by"), lambda record: formats.visible(record.by) or formats.NONE)
    who = column(_("for"), lambda record: str(record.owner or formats.NONE))
    # The run may have been deleted; its page says so.
    run_link = column(_("run"), lambda record: formats.link_to("run", record.run_id, formats.short_id(record.run_id)))
    session_link = column(
        _("session"), lambda record: formats.link_to("session", record.session_id, formats.short_id(record.session_id))
    )

    @admin.display(description=_("name"))
    def name_text(self, record: AuditRecord) -> str:
        """What happened to a request, or to which call; else the name of the model or tool."""
        return event_of(record.name, record.detail) if record.event == "request" else record.name

    @admin.display(description=_("name"))
    def whole_name(self, record: AuditRecord) -> SafeString:
        return format_html('<div class="ravi-text">{}</div>', self.name_text(record))

    @admin.display(description=_("detail"))
    def detail_html(self, record: AuditRecord) -> SafeString | str:
        json_text = formats.pretty(record.detail or None, None)
        return format_html('<pre class="ravi-pre">{}</pre>', json_text["text"]) if json_text else formats.NONE

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        if ids := id_begins(term, "run_id"):
            return ids
        users = list(users_named(term)[: MOST + 1])
        if len(users) > MOST:
            message = gettext("More than %(most)s users match %(term)s. Enter more of the name.")
            self.message_user(request, message % {"most": MOST, "term": repr(term)}, messages.WARNING)
            return Q(pk__in=[])
        names = [term, *(user.get_username() for user in users)]  # the user may have been deleted
        return Q(owner__in=users) | decided_by(names)


@admin.register(WorkerProcess)
class WorkerProcessAdmin(InspectAdmin):
    tenant = None
    list_display = ["name", "state", "runs", "release", "started_at", "seen"]
    list_display_links = None
    ordering = ["name"]
    state = column(
        _("state"),
        lambda worker: formats.status("alive" if worker.age.total_seconds() < 3 * conf.HEARTBEAT_S else "late"),
    )
    seen = column(_("last seen"), lambda worker: gettext("%(age)s ago") % {"age": formats.duration(worker.age)})

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkerProcess]:
        """`age` by the database's clock, which wrote the times."""
        return super().get_queryset(request).annotate(age=clock.age("seen_at"))  # type: ignore[no-any-return]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return redirect("admin:ravi_workerprocess_changelist")  # the list has everything
