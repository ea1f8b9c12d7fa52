"""Schedules: users who may edit them have runs made in their own name. Only superusers make them for other users or for
the system. An operator who may change schedules can disable any of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django import access
from ravi_django.admin.agents.fields import AgentField, ObjectField, text_line
from ravi_django.admin.base import SUPERUSERS, CappedPaginator, OwnedAdmin, OwnedForm, column
from ravi_django.admin.delegations import UserNameField
from ravi_django.admin.runs import AgentFilter
from ravi_django.engine.db import clock
from ravi_django.kernel import ForbiddenError, InvalidInputError, KernelError, NotFoundError, Priority
from ravi_django.models import Schedule, ScheduleTick, Session
from ravi_django.pages import formats
from ravi_django.users import has
from ravi_django.wings.feeds.schedules import schedules, timetable

RECENT = 50  # ticks on a schedule's page
COMING = 5  # ticks of a preview

FIELDSETS: list[Any] = [
    (None, {"fields": ["name", "agent", "input", "session", "enabled"]}),
    (_("When"), {"fields": ["cron", "timezone", "every_s", "starts_at", "jitter_s", "catch_up"]}),
    (_("Options of the runs"), {"fields": ["owner", "tenant", "priority", "budget", "metadata"]}),
]


class ScheduleForm(OwnedForm):
    """Checked as the Python API checks. A preview is never valid: it saves nothing."""

    previewing = False

    agent = AgentField(label=_("Agent"))
    input = forms.CharField(
        label=_("Input"), widget=forms.Textarea({"rows": 4}), strip=False, help_text=_("The input of each run.")
    )
    session = forms.ModelChoiceField(
        Session.objects.none(), required=False, label=_("Session"), widget=text_line(),
        help_text=_("Id of one of the owner's sessions, for all runs. Empty: a new session for each run."),
        error_messages={"invalid_choice": _("No such session. Enter the id of one of your own sessions.")},
    )  # fmt: skip
    cron = forms.CharField(
        required=False, max_length=timetable.LENGTH, label=_("Cron"), widget=text_line(),
        help_text=_("minute hour day month weekday, like 30 2 * * MON-FRI. Leave it empty to use an interval."),
    )  # fmt: skip
    every_s = forms.IntegerField(
        required=False, label=_("Interval in seconds"), help_text=_("Time between two runs, instead of cron.")
    )
    timezone = forms.CharField(
        required=False, max_length=64, label=_("Time zone"), widget=text_line(),
        help_text=_("For cron, like Europe/Berlin. Empty: the site's time zone."),
    )  # fmt: skip
    jitter_s = forms.IntegerField(
        initial=0, label=_("Random delay in seconds"), help_text=_("Each run starts up to this many seconds late.")
    )
    catch_up = forms.ChoiceField(
        initial=Schedule.CatchUp.ONE, label=_("After a downtime"),
        choices=[
            ("one", _("one run for all missed times")),
            ("skip", _("no run for missed times")),
            ("all", _("one run for each missed time")),
        ],
    )  # fmt: skip
    priority = forms.ChoiceField(
        initial="normal",
        label=_("Priority"),
        choices=[(one.name.lower(), _(one.name.lower())) for one in sorted(Priority)],
    )
    budget = ObjectField(rows=2, label=_("Budget"), help_text=_('JSON, like {"max_turns": 20}.'))
    metadata = ObjectField(
        label=_("Metadata"),
        rows=2,
        help_text=_('JSON for each run. For an agent with variables: {"variables": {…}}.'),
    )
    owner = UserNameField(
        label=_("Owner"),
        required=False,
        help_text=_("The owner of the runs. Empty: the system. Only superusers can choose it."),
    )

    class Meta:
        model = Schedule
        fields = ["name", *(name for name in schedules.EDITED if name != "name")]
        help_texts = {"starts_at": _("No run starts before this time. Intervals count from it. Empty: now.")}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "session" in self.fields:
            self.fields["session"].queryset = Session.objects.for_user(self.by)  # type: ignore[attr-defined]

    def clean_metadata(self) -> Any:
        return self.cleaned_data["metadata"] or {}

    def clean(self) -> dict[str, Any]:
        """Before the constraints of the database, which name no field."""
        data = super().clean() or {}
        if self.errors:
            return data
        row = copy(self.instance)
        for name, value in data.items():
            setattr(row, name, value)
        try:
            schedules.check(row)
            schedules.check_name(row)
        except (InvalidInputError, NotFoundError) as error:
            self.add_error(error.field if error.field in self.fields else None, formats.visible(str(error)))
        else:
            self._check_rights(row)
        return data

    def _check_rights(self, row: Schedule) -> None:
        """Whether the owner may run the agent, which each tick checks again, and the user may choose the priority."""
        try:
            schedules.check_owner(row)
        except ForbiddenError as error:
            self.add_error("agent", formats.visible(str(error)))
        if "priority" in self.changed_data:
            try:
                access.check_priority(self.by, Priority[row.priority.upper()])
            except ForbiddenError as error:
                self.add_error("priority", str(error))

    def is_valid(self) -> bool:
        return super().is_valid() and not self.previewing


@admin.register(Schedule)
class ScheduleAdmin(OwnedAdmin):
    form = ScheduleForm
    change_form_template = "ravi/admin/schedule.html"
    list_display = ["name", "agent", "rule", "next_run", "last_run", "owner_text", "enabled"]
    list_filter = ["enabled", AgentFilter]
    search_fields = ["name", "agent"]
    ordering = ["name", "id"]
    sortable_by = ()
    actions = ["enable", "disable", "run_now"]
    paginator = CappedPaginator

    # ------------------------------------------------------------------------------------------------ the form

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[str], list[str]]:
        """Its ticks are deleted too: they are counted, not listed."""
        names = [gettext("Schedule: %(name)s") % {"name": formats.visible(row.name)} for row in objs]
        ticks = ScheduleTick.objects.filter(schedule__in=objs).count()
        refused = {gettext("schedule")} if any(not self.has_delete_permission(request, row) for row in objs) else set()
        return names, {gettext("schedules"): len(names), gettext("ticks"): ticks}, refused, []

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        if has(request.user, "is_superuser") or (obj is not None and not self.has_change_permission(request, obj)):
            return FIELDSETS
        return [
            (title, {**more, "fields": [name for name in more["fields"] if name not in SUPERUSERS]})
            for title, more in FIELDSETS
        ]

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        schedules.save_checked(obj)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Schedule | None = None, **options: Any
    ) -> HttpResponse:
        form = context["adminform"].form
        row = form.instance if isinstance(form, ScheduleForm) else obj
        context["show_preview"] = obj is None or self.has_change_permission(request, obj)
        context["previewing"] = getattr(form, "previewing", False)
        context["next_ticks"] = [] if row is None else preview_of(row)
        if obj is not None:
            ticks = ScheduleTick.objects.filter(schedule=obj).select_related("run").order_by("-at")[:RECENT]
            context["recent"] = [(tick, both_clocks(obj, tick.at), _outcome(tick.run, tick.error)) for tick in ticks]
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------- columns

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        last = ScheduleTick.objects.filter(schedule=OuterRef("pk"), error="").order_by("-at")  # those that ran
        return super().get_queryset(request).annotate(  # type: ignore[no-any-return]
            ran_at=Subquery(last.values("at")[:1]), last_run_id=Subquery(last.values("run_id")[:1]),
            last_status=Subquery(last.values("run__status")[:1]),
        )  # fmt: skip

    owner_text = column(_("owner"), lambda row: str(row.owner or gettext("the system")))

    @admin.display(description=_("when"))
    def rule(self, row: Schedule) -> str:
        if row.every_s is not None:
            return gettext("every %(time)s") % {"time": formats.duration_s(row.every_s)}
        return formats.visible(f"{row.cron} {row.timezone}".strip())

    @admin.display(description=_("next run"))
    def next_run(self, row: Schedule) -> SafeString | str:
        return _times(row, row.next_at) if row.enabled else formats.NONE

    @admin.display(description=_("last run"))
    def last_run(self, row: Any) -> SafeString:
        """The last tick with a run, and a later tick without one."""
        how = formats.link_to("run", row.last_run_id, formats.status(row.last_status)) if row.last_run_id else ""
        ran = format_html("{}<br>{}", _times(row, row.ran_at), how)
        if not row.error and row.last_at == row.ran_at:
            return ran
        fault = format_html('<span title="{}">{}</span>', formats.snippet(row.error, 400), formats.status("failed"))
        none = gettext("no run:")
        return format_html("{}<br>{} {} {}", ran, none, _times(row, row.last_at), fault if row.error else "")

    # ------------------------------------------------------------------------------------------------- actions

    @admin.action(description=_("Enable selected"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._each(request, _changeable(request, queryset), lambda row: schedules.enable(row) and "Enabled.")

    @admin.action(description=_("Disable selected"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._each(request, queryset, lambda row: schedules.disable(row) and "Disabled.")

    @admin.action(description=_("Run now"), permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        if request.POST.get("select_across") == "1":
            message = gettext("Run schedules one page at a time.")
            self.message_user(request, message, messages.ERROR)
            return
        self._each(request, _changeable(request, queryset), lambda row: f"Run now: {schedules.run_now(row).id}.")

    def _each(self, request: HttpRequest, rows: QuerySet[Schedule], act: Callable[[Schedule], Any]) -> None:
        done = 0
        for row in rows.select_related("owner", "session"):
            try:
                change = act(row)
            except KernelError as error:
                self.message_user(request, formats.visible(f"{row}: {error}"), messages.ERROR)
                continue
            self.log_change(request, row, change)
            done += 1
            if change.startswith("Run"):
                run_id = change.removeprefix("Run now: ").removesuffix(".")
                link = formats.link_to("run", run_id, gettext("a run was submitted"))
                self.message_user(request, format_html("{}: {}", formats.visible(row.name), link), messages.SUCCESS)
        left = len(request.POST.getlist("_selected_action")) - done
        if left > 0:
            self.message_user(request, gettext("Unchanged: %(count)s.") % {"count": left}, messages.WARNING)
        elif done:
            self.message_user(request, gettext("Done: %(count)s.") % {"count": done}, messages.SUCCESS)


def _changeable(request: HttpRequest, rows: QuerySet[Schedule]) -> QuerySet[Schedule]:
    return rows if has(request.user, "is_superuser") else rows.filter(owner=request.user.pk)


def _times(row: Schedule, at: Any) -> SafeString | str:
    times = both_clocks(row, at)
    if not times["own"]:
        return times["site"]
    return format_html('{}<br><span class="ravi-quiet">{}</span>', times["site"], times["own"])


def _outcome(run: Any, error: str) -> SafeString | str:
    if run is not None:
        return formats.link_to("run", run.pk, formats.status(run.status))
    return formats.visible(error) or formats.NONE


def preview_of(row: Schedule) -> list[dict[str, str]]:
    """The next ticks in the site's time zone and in the schedule's; none for an invalid rule."""
    try:
        return [both_clocks(row, at) for at in schedules.next_ticks(row, COMING)]
    except InvalidInputError:
        return []


def both_clocks(row: Schedule, at: datetime | None) -> dict[str, str]:
    """`site`, and `own` if the schedule has a time zone of its own."""
    times = {"site": formats.moment(at), "own": ""}
    if at is not None and row.cron and row.timezone:
        try:
            local = clock.written(at, timetable.zone_of(row.timezone))
        except InvalidInputError:
            return times
        times["own"] = f"{local} {formats.visible(row.timezone)}"
    return times
