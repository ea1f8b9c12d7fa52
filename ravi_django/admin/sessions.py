"""Sessions: conversations with their turns, tasks and runs; task boards; feedback. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, column, id_begins, page_of, users_named
from ravi_django.models import BoardTask, Feedback, Run, Session, Turn
from ravi_django.pages import formats
from ravi_django.runs.teams import board

TURNS = 100  # a page
RUNS = 50


@admin.register(Session)
class SessionAdmin(InspectAdmin):
    below = (BoardTask,)
    change_form_template = "ravi/admin/session.html"
    list_display = ["short_id", "shown_title", "agent", "owner", "turns", "created", "updated"]
    list_display_links = ["short_id", "shown_title"]
    list_select_related = ["owner"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["id"]  # see condition_of
    search_help_text = _("Search session ids (or their first characters), owners, names, and titles.")

    short_id = column(_("session"), lambda session: formats.short_id(session.id))
    shown_title = column(_("title"), lambda session: session.title or formats.NONE)
    created = column(_("created"), lambda session: formats.moment(session.created_at))
    updated = column(_("last agent"), lambda session: formats.moment(session.updated_at))
    turns = column(_("turns"), lambda session: session.next_position)  # positions have no gaps

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "id") or Q(owner__in=users_named(term)) | Q(title__icontains=term) | Q(name=term)

    def inspect(self, request: HttpRequest, session: Session) -> dict[str, Any]:
        page = page_of(request, "turns", session.next_position, TURNS)
        turns = Turn.objects.filter(session=session, position__range=(page["first"] - 1, page["last"] - 1))
        turns = turns.select_related("entry").order_by("position")
        tasks = BoardTask.objects.filter(session=board.thread_of(session)).order_by("agent", "number")  # it is bounded
        runs = Run.objects.filter(session=session).order_by("-id")
        return {
            "title": session.title or gettext("Conversation"),
            "session": session,
            "page": page,
            "turns": [(turn, formats.blocks(turn.blocks, 20_000)) for turn in turns],
            "tasks": [(task, formats.status(task.status)) for task in tasks],
            "runs": [
                (run, formats.status(run.status)) for run in runs.only("id", "agent", "status", "created_at")[:RUNS]
            ],
        }


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
    status_badge = column(_("status"), lambda task: formats.status(task.status))
    conversation = column(_("conversation"), lambda task: formats.link_to("session", task.session_id, task.session))
    updated = column(_("changed"), lambda task: formats.moment(task.updated_at))

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "session_id") or Q(title__icontains=term) | Q(agent=term)


@admin.register(Feedback)
class FeedbackAdmin(InspectAdmin):
    tenant = "run__tenant"
    list_display = ["when", "score", "comment", "agent", "user", "run_link"]
    list_filter = ["score"]
    list_select_related = ["run", "user"]
    ordering = ["-id"]
    readonly_fields = [*list_display]  # type: ignore[list-item]
    fields = readonly_fields  # type: ignore[assignment]
    when = column(_("when"), lambda row: formats.moment(row.created_at))
    comment = column(_("text"), lambda row: formats.visible(row.text) or formats.NONE)
    agent = column(_("agent"), lambda row: row.run.agent)
    run_link = column(_("run"), lambda row: formats.link_to("run", row.run_id, formats.short_id(row.run_id)))
