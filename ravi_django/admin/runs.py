"""Runs: a list that stays fast with many rows. The page of a run is the app's own, see `ui.runs`; on a site without
it the admin shows the fields of the row and of its last journal entries."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy as _, ngettext

from ravi_django import access
from ravi_django.admin.base import ChoiceFilter, InspectAdmin, column, id_begins, users_named
from ravi_django.kernel import ConflictError, KernelError
from ravi_django.kernel.visible import visible
from ravi_django.models import Agent, JournalEntry, Run
from ravi_django.pages import formats
from ravi_django.pages.context import first_message_text
from ravi_django.people import mail
from ravi_django.runs.catalog.registry import known_addresses
from ravi_django.runs.lifecycle.endings import cancel
from ravi_django.runs.lifecycle.retry import retry

MOST = 200  # runs of one action
MESSAGES = 5  # errors that an action shows
ENTRIES = 200  # of a journal


class AgentFilter(admin.SimpleListFilter):
    """The agents of the catalogue: the distinct values of a big table take long to find."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        known = {*Agent.objects.values_list("address", flat=True), *known_addresses()}
        return [(address, address) for address in sorted(known)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        return queryset.filter(agent=self.value()) if self.value() else queryset


class PlaceFilter(ChoiceFilter):
    """Roots are conversations; teams make many children."""

    title = _("position in the tree")
    parameter_name = "place"
    labels = {"root": _("root runs"), "child": _("child runs")}

    def condition(self, value: str) -> Q:
        return Q(parent__isnull=value == "root")


@admin.register(Run)
class RunAdmin(InspectAdmin):
    list_display = ["run", "status_badge", "owner", "created_and_duration", "tokens_and_cost"]
    list_filter = ["status", PlaceFilter, AgentFilter]
    list_select_related = ["owner", "session", "root", "parent"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["id"]  # see condition_of
    search_help_text = _("Search ids of runs and sessions (or their first characters), and owners.")
    actions = ["cancel_runs", "retry_runs"]
    readonly_fields = [*(field.name for field in Run._meta.fields), "entries"]

    # ------------------------------------------------------------------------------------------------ the list

    @admin.display(description=_("agent and run"))
    def run(self, run: Run) -> SafeString:
        text = formats.snippet(run.first_message_text or "")  # type: ignore[attr-defined]
        return format_html('{} {}<span class="ravi-asked">{}</span>', run.agent, formats.short_id(run.id), text)

    status_badge = column(_("status"), lambda run: formats.status(run.status))

    @admin.display(description=_("created, duration"))
    def created_and_duration(self, run: Run) -> SafeString:
        took = formats.between(run.started_at, run.finished_at or timezone.now())
        if run.start_at is not None:
            took = gettext("starts at %(time)s") % {"time": formats.moment(run.start_at)}
        return _two_lines(formats.moment(run.created_at), took)

    @admin.display(description=_("tokens in → out, cost"))
    def tokens_and_cost(self, run: Run) -> SafeString:
        return _two_lines(formats.tokens(run.input_tokens, run.output_tokens), _cost(run))

    @admin.display(description=_("journal entries"))
    def entries(self, run: Run) -> SafeString:
        """The newest first."""
        rows = list(JournalEntry.objects.filter(run=run).order_by("-seq")[:ENTRIES])
        details = "<details><summary>{}</summary><pre>{}</pre></details>"
        return format_html_join("", details, ((row, _fields(row)) for row in rows))

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **options: Any) -> HttpResponse:
        run = self.get_object(request, unquote(object_id))
        if request.method == "GET" and run is not None and self.has_view_permission(request, run):
            with suppress(NoReverseMatch):
                return redirect(mail.path_to("run-page", id=run.pk))
        return super().change_view(request, object_id, *args, **options)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).annotate(first_message_text=first_message_text(OuterRef("id")))  # type: ignore[no-any-return]

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "id", "session_id") or Q(owner__in=users_named(term))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("ravi.change_run")

    @admin.action(description=_("Cancel selected runs"), permissions=["cancel"])
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        if request.POST.get("select_across") == "1":
            self.message_user(request, gettext("Cancel runs one page at a time."), messages.ERROR)
            return
        done = sum(self._cancel(request, run) for run in queryset)
        if done:
            message = ngettext(
                "Cancellation requested: %(count)s run.", "Cancellation requested: %(count)s runs.", done
            )
            self.message_user(request, message % {"count": done}, messages.SUCCESS)
        if ended := len(queryset) - done:
            message = ngettext("Already ended: %(count)s run.", "Already ended: %(count)s runs.", ended)
            self.message_user(request, message % {"count": ended}, messages.WARNING)

    @admin.action(description=_("Retry selected failed and blocked runs"), permissions=["cancel"])
    def retry_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        done, refusals = 0, []
        for run in queryset[:MOST]:
            try:
                access.continue_run(request.user, run)
                retry(run.id)
            except KernelError as error:
                refusals.append(visible(str(error)))
                continue
            self.log_change(request, run, "Retried.")
            done += 1
        if done:
            message = ngettext("Retried: %(count)s run.", "Retried: %(count)s runs.", done)
            self.message_user(request, message % {"count": done}, messages.SUCCESS)
        for refusal in refusals[:MESSAGES]:
            self.message_user(request, refusal, messages.ERROR)

    def _cancel(self, request: HttpRequest, run: Run) -> bool:
        try:
            cancel(run.id, "cancelled in the admin")
        except ConflictError:
            return False
        self.log_change(request, run, "Cancellation requested.")
        return True


def _two_lines(first: str, second: str) -> SafeString:
    lesser = "" if second == formats.NONE else second
    return format_html('{}<br><span class="ravi-quiet">{}</span>', first, lesser)


def _fields(entry: JournalEntry) -> str:
    values = ((field.verbose_name, getattr(entry, field.attname)) for field in entry._meta.concrete_fields)
    return "\n".join(
        f"{capfirst(name)}: {formats.as_text(_json(value))}" for name, value in values if value is not None
    )


def _json(value: Any) -> Any:
    return value if isinstance(value, dict | list) else str(value)


def _cost(run: Run) -> str:
    """Empty for a run that called no model."""
    called = run.input_tokens or run.output_tokens or run.cost_unknown
    return formats.money(run.cost, unknown=run.cost_unknown) if called else formats.NONE
