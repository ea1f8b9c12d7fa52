"""Runs: a list that stays fast with many rows, and a page that shows what a run did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _, gettext_noop, ngettext

from ravi_django import access
from ravi_django.admin import journal, readers, tree
from ravi_django.admin.base import ChoiceFilter, InspectAdmin, column, id_begins, page_of, users_named
from ravi_django.kernel import ConflictError, KernelError
from ravi_django.kernel.visible import visible
from ravi_django.models import Agent, HumanRequest, InboxMessage, JournalEntry, Run, Turn
from ravi_django.pages import show
from ravi_django.pages.context import first_words
from ravi_django.pages.run_actions import actions_of, payload_of
from ravi_django.pages.words import answer_words
from ravi_django.runtime.catalog.registry import known_addresses
from ravi_django.runtime.lifecycle.endings import cancel
from ravi_django.runtime.lifecycle.fork import fork_once
from ravi_django.runtime.lifecycle.retry import retry
from ravi_django.runtime.people.signal_answers import send as send_signal

ENTRIES = 100  # journal entries a page
TURNS = 50  # of the run's own turns; its session's page has all
REQUESTS = 50


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


class ForkForm(forms.Form):
    after_seq = forms.IntegerField(label=_("Fork after entry"), min_value=1)


class SignalForm(forms.Form):
    name = forms.CharField(
        label=_("Signal"), max_length=200, widget=forms.TextInput({"list": "ravi-signals", "autocomplete": "off"})
    )
    payload = forms.CharField(label=_("Payload: JSON or text"), required=False)


@admin.register(Run)
class RunAdmin(InspectAdmin):
    change_form_template = "ravi/admin/run.html"
    list_display = ["run", "status_badge", "owner", "created_and_duration", "tokens_and_cost"]
    list_filter = ["status", PlaceFilter, AgentFilter]
    list_select_related = ["owner", "session", "root", "parent"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["id"]  # see condition_of
    search_help_text = _("Search ids of runs and sessions (or their first characters), and owners.")
    actions = ["cancel_runs"]

    # ------------------------------------------------------------------------------------------------ the list

    @admin.display(description=_("agent and run"))
    def run(self, run: Run) -> SafeString:
        words = show.snippet(run.first_words or "")  # type: ignore[attr-defined]
        return format_html('{} {}<span class="ravi-asked">{}</span>', run.agent, show.short_id(run.id), words)

    status_badge = column(_("status"), lambda run: show.status(run.status))

    @admin.display(description=_("created, duration"))
    def created_and_duration(self, run: Run) -> SafeString:
        took = show.between(run.started_at, run.finished_at or timezone.now())
        if run.start_at is not None:
            took = gettext("starts at %(time)s") % {"time": show.moment(run.start_at)}
        return _two_lines(show.moment(run.created_at), took)

    @admin.display(description=_("tokens in → out, cost"))
    def tokens_and_cost(self, run: Run) -> SafeString:
        return _two_lines(show.tokens(run.input_tokens, run.output_tokens), _cost(run))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).annotate(first_words=first_words(OuterRef("id")))  # type: ignore[no-any-return]

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "id", "session_id") or Q(owner__in=users_named(term))

    # ------------------------------------------------------------------------------------------------- one run

    def inspect(self, request: HttpRequest, run: Run) -> dict[str, Any]:
        page = page_of(request, "journal", run.next_seq - 1, ENTRIES)  # seq has no gaps: nothing to count
        entries = JournalEntry.objects.filter(run=run, seq__range=(page["first"], page["last"])).order_by("seq")
        turns = list(Turn.objects.filter(run=run).select_related("entry").order_by("index")[: TURNS + 1])
        message = InboxMessage.objects.filter(run=run).order_by("id").values_list("body", flat=True).first()
        return {
            "title": run.agent,
            "run": run,
            "status": show.status(run.status),
            "duration": show.between(run.started_at, run.finished_at or timezone.now()),
            "waited": show.between(run.created_at, run.started_at),
            "tokens": show.tokens(run.input_tokens, run.output_tokens, run.cached_tokens),
            "cost": _cost(run),
            "input": _input(message),
            "output": show.pretty(run.output, 20_000),
            "error": run.error if isinstance(run.error, dict) else None,
            "diff": _diff(run.error),
            "lines": journal.timeline_of(list(entries)),
            "page": page,
            "turns": [(turn, show.blocks(turn.blocks)) for turn in turns[:TURNS]],
            "more_turns": len(turns) > TURNS,
            "tree": tree.of_run(run),
            "agent_version": _version(run),
            "requests": _requests(run, request),
            "facts": _facts(run),
            "may": actions_of(request.user, run) if self.has_cancel_permission(request) else None,
            "viewer": _viewer(request, run),
            "fork": self._dressed(request, ForkForm(initial={"after_seq": run.next_seq - 1})),
            "signal": self._dressed(request, SignalForm()),
        }

    # ------------------------------------------------------------------------------------------------- cancel

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("ravi.change_run")

    @admin.action(description=_("Cancel selected runs"), permissions=["cancel"])
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        if request.POST.get("select_across") == "1":
            self.message_user(request, gettext("Cancel runs one page at a time."), messages.ERROR)
            return
        done = sum(self._cancel(request, run) for run in queryset)
        if done:
            words = ngettext("Cancellation requested: %(count)s run.", "Cancellation requested: %(count)s runs.", done)
            self.message_user(request, words % {"count": done}, messages.SUCCESS)
        if ended := len(queryset) - done:
            words = ngettext("Already ended: %(count)s run.", "Already ended: %(count)s runs.", ended)
            self.message_user(request, words % {"count": ended}, messages.WARNING)

    def _cancel(self, request: HttpRequest, run: Run) -> bool:
        try:
            _cancel(request, run)
        except ConflictError:
            return False
        self.log_change(request, run, "Cancellation requested.")
        return True

    def _dressed(self, request: HttpRequest, form: forms.Form) -> forms.Form:
        self.dress(request, form)
        return form

    def act_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """The buttons on a run's page: the services of the REST API, with their rights."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        run = self.get_object(request, object_id)
        if run is None:
            raise Http404
        try:
            shown = _ACTIONS[action](request, run)
        except KernelError as error:
            self.message_user(request, visible(str(error)), messages.ERROR)
            return redirect("admin:ravi_run_change", run.pk)
        self.log_change(request, run, _DONE[action])
        self.message_user(request, gettext(_DONE[action]), messages.SUCCESS)
        return redirect("admin:ravi_run_change", shown.pk)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.act_view)
        return [
            *(path(f"<path:object_id>/{name}/", view, {"action": name}, f"ravi_run_{name}") for name in _ACTIONS),
            *super().get_urls(),
        ]


def _cancel(request: HttpRequest, run: Run) -> Run:
    try:
        cancel(run.id, "cancelled in the admin")
    except ConflictError:
        raise ConflictError(gettext("The run had already ended.")) from None
    return run


def _retry(request: HttpRequest, run: Run) -> Run:
    access.continue_run(request.user, run)
    return retry(run.id)


def _fork(request: HttpRequest, run: Run) -> Run:
    access.find(request.user, run.agent, None if run.parent_id else run.session_id)
    after = request.POST.get("after_seq", "")
    seq = int(after) if after.isascii() and after.isdigit() and len(after) < 18 else 0
    return fork_once(run.id, seq, user=request.user)[0]


def _signal(request: HttpRequest, run: Run) -> Run:
    send_signal(run, request.POST.get("name", ""), payload_of(request.POST.get("payload", "")), by=request.user)
    return run


_ACTIONS: dict[str, Callable[[HttpRequest, Run], Run]] = {
    "cancel": _cancel,
    "retry": _retry,
    "fork": _fork,
    "signal": _signal,
}
_DONE = {
    "cancel": gettext_noop("Cancellation requested."),
    "retry": gettext_noop("Retried."),
    "fork": gettext_noop("Forked."),
    "signal": gettext_noop("Signal sent."),
}


def _viewer(request: HttpRequest, run: Run) -> str:
    """The run's own page, for users who may open it."""
    try:
        return reverse("ravi:run-page", args=[run.id]) if run.is_for(request.user) else ""
    except NoReverseMatch:
        return ""


def _two_lines(first: str, second: str) -> SafeString:
    lesser = "" if second == show.NONE else second
    return format_html('{}<br><span class="ravi-quiet">{}</span>', first, lesser)


def _cost(run: Run) -> str:
    """Empty for a run that called no model."""
    called = run.input_tokens or run.output_tokens or run.cost_unknown
    return show.money(run.cost, unknown=run.cost_unknown) if called else show.NONE


def _input(message: Any) -> list[dict[str, Any]]:
    """The content of the run's first message."""
    if not isinstance(message, dict):
        return []
    payload = message.get("payload") or {}
    if payload.get("kind") == "chat":
        return show.blocks((payload.get("message") or {}).get("content"))
    return [{"kind": "other", "label": str(payload.get("kind", "")), "shown": show.pretty(payload)}]


def _diff(error: Any) -> dict[str, Any] | None:
    """The recorded and the present request of a call, when the code no longer matches the journal."""
    diff = error.get("diff") if isinstance(error, dict) else None
    if not isinstance(diff, dict):
        return None
    return {
        "path": diff.get("path", ""),
        "seq": diff.get("seq"),
        "recorded": show.pretty(diff.get("recorded")),
        "asked": show.pretty(diff.get("asked")),
    }


def _version(run: Run) -> SafeString | str:
    """The version of the agent's spec that the run uses; empty for an agent in code."""
    if run.agent_version is None:
        return ""
    agent = Agent.objects.filter(address=run.agent).values_list("pk", flat=True).first()
    words = gettext("version %(number)s") % {"number": run.agent_version}
    if agent is None:
        return gettext("%(version)s (agent deleted)") % {"version": words}
    address = reverse("admin:ravi_agent_version", args=[agent, run.agent_version])
    return format_html('<a href="{}">{}</a>', address, words)


def _requests(run: Run, page: HttpRequest) -> list[dict[str, Any]]:
    """Requests of the run that the user may read, newest first; a root has those of its whole tree."""
    rows = readers.readable(page).filter(Q(run=run) | Q(run__root=run)).select_related("answered_by", "run")
    return [
        {
            "request": row,
            "status": show.status(row.status),
            "context": show.visible(str(row.about.get("context", ""))),
            "arguments": "" if row.kind == HumanRequest.Kind.QUESTION else show.as_text(row.arguments),
            "choices": show.visible(" | ".join(map(str, row.choices or ()))),
            "answer": answer_words(row.answer),
            "run": None if row.run_id == run.id else row.run,
        }
        for row in rows.order_by("-id")[:REQUESTS]
    ]


def _facts(run: Run) -> list[tuple[str, Any]]:
    """Details for operators."""
    cancelled = run.cancel_requested_at and f"{show.moment(run.cancel_requested_at)} · {run.cancel_reason}"
    facts = [
        (gettext("Priority"), run.get_priority_display()),
        (gettext("Tenant"), run.tenant),
        (gettext("Deadline"), run.deadline),
        (gettext("Budget"), show.as_text(run.budget)),
        (gettext("Metadata"), show.as_text(run.metadata)),
        (gettext("Waiting for"), show.as_text(run.waiting_on if run.status == "suspended" else run.waits_for)),
        (gettext("Not before"), run.wake_at),
        (gettext("Cancellation requested"), cancelled),
        (gettext("Leased by"), run.lease_owner),
        (gettext("Lease ends"), run.lease_expires_at),
        (gettext("Lease epoch"), run.lease_epoch),
        (gettext("Retries of this step"), run.attempts or None),
        (gettext("Crashes"), run.crashes or None),
        (gettext("Times found by the sweep"), run.hints or None),
        (gettext("Generation"), run.generation or None),
        (gettext("Release"), run.release),
        (gettext("Stream published"), run.published_at),
    ]
    return [(name, value) for name, value in facts if value not in (None, "")]
