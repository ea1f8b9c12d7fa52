"""Conversations, as they were held."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import show
from ravi_django.admin.base import InspectAdmin, id_range, page_of, users_named
from ravi_django.models import BoardTask, Run, Session, Turn
from ravi_django.runtime.teams import board

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
    search_fields = ["id"]
    search_help_text = _("The id of a session, or its first characters; an owner's user name; or words of the title.")

    @admin.display(description=_("session"))
    def short_id(self, session: Session) -> SafeString:
        return show.short_id(session.id)

    @admin.display(description=_("title"))
    def shown_title(self, session: Session) -> str:
        return session.title or show.NONE

    @admin.display(description=_("created"))
    def created(self, session: Session) -> str:
        return show.moment(session.created_at)

    @admin.display(description=_("last spoken to"))
    def updated(self, session: Session) -> str:
        return show.moment(session.updated_at)

    @admin.display(description=_("turns"))
    def turns(self, session: Session) -> int:
        return session.next_position  # positions have no gaps: nothing to count

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Session], search_term: str
    ) -> tuple[QuerySet[Session], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if bounds := id_range(term):
            return queryset.filter(id__range=bounds), False
        return queryset.filter(Q(owner__in=users_named(term)) | Q(title__icontains=term)), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        return super().get_queryset(request).select_related("owner")

    def inspect(self, request: HttpRequest, session: Session) -> dict[str, Any]:
        page = page_of(request, "turns", session.next_position, TURNS)
        turns = Turn.objects.filter(session=session, position__range=(page["first"] - 1, page["last"] - 1))
        runs = Run.objects.filter(session=session).order_by("-id")
        return {
            "title": session.title or gettext("Conversation"),
            "session": session,
            "page": page,
            "turns": [(turn, show.blocks(turn.content, 20_000)) for turn in turns.order_by("position")],
            "tasks": [(task, show.status(task.status)) for task in _tasks(session)],
            "runs": [(run, show.status(run.status)) for run in runs.only("id", "agent", "status", "created_at")[:RUNS]],
        }


def _tasks(session: Session) -> QuerySet[BoardTask]:
    """The whole board: it is bounded."""
    return BoardTask.objects.filter(session=board.thread_of(session)).order_by("agent", "number")
