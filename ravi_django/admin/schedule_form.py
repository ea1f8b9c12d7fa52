"""The form of a schedule, checked as the Python API checks, and what it would do: its next ticks."""

from __future__ import annotations

from copy import copy
from datetime import datetime
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from ravi_django import access
from ravi_django.admin import show
from ravi_django.admin.agents.fields import AgentField, ObjectField
from ravi_django.admin.base import tenant_for
from ravi_django.admin.delegations import UserNameField
from ravi_django.kernel import ForbiddenError, InvalidInputError, NotFoundError, Priority
from ravi_django.models import Schedule, Session
from ravi_django.runtime.db import clock
from ravi_django.runtime.schedules import schedules, timetable
from ravi_django.users import has

SHOWN = 5  # ticks of a preview
SUPERUSERS = ("owner", "tenant")  # whoever chose these would have runs made in the name of others


def _line(**attrs: str) -> forms.TextInput:
    return forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", **attrs})


def _text(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows})


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """`by` fills it in. With `previewing` it is never valid: nothing is saved."""

    by: Any
    previewing = False

    agent = AgentField(label=_("Agent"))
    input = forms.CharField(label=_("Input"), widget=_text(4), strip=False, help_text=_("What each run is given."))
    session = forms.ModelChoiceField(
        Session.objects.none(), required=False, label=_("Session"), widget=_line(),
        help_text=_("The id of one of the owner's conversations, in which the runs go on. Empty: a new one for each."),
        error_messages={"invalid_choice": _("There is no such session of yours.")},
    )  # fmt: skip
    cron = forms.CharField(
        required=False, max_length=timetable.LENGTH, label=_("Cron"), widget=_line(),
        help_text=_("minute hour day month weekday: 30 2 * * MON-FRI. Leave it empty for an interval."),
    )  # fmt: skip
    every_s = forms.IntegerField(
        required=False, label=_("Interval in seconds"), help_text=_("Between two runs, in place of cron.")
    )
    timezone = forms.CharField(
        required=False, max_length=64, label=_("Time zone"), widget=_line(),
        help_text=_("Of cron's times, like Europe/Berlin. Empty: the site's."),
    )  # fmt: skip
    jitter_s = forms.IntegerField(
        initial=0, label=_("Random delay in seconds"), help_text=_("Each run is up to so many seconds late.")
    )
    catch_up = forms.ChoiceField(
        initial=Schedule.CatchUp.ONE, label=_("After a downtime"),
        choices=[
            ("one", _("one run for all that was missed")),
            ("skip", _("no run for what was missed")),
            ("all", _("a run for each that was missed")),
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
        help_text=_('JSON, given to each run: {"variables": {…}} for an agent with variables.'),
    )
    owner = UserNameField(
        label=_("Owner"),
        required=False,
        help_text=_("In whose name the runs are made. Empty: the system's. For superusers to choose."),
    )

    class Meta:
        model = Schedule
        fields = ["name", *(name for name in schedules.EDITED if name != "name")]
        help_texts = {"starts_at": _("No run before it; intervals are counted from it. Empty: from now on.")}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance._state.adding:
            self.instance.owner = self.by
            self.instance.tenant = "" if has(self.by, "is_superuser") else tenant_for(self.by)
            self.initial.setdefault("owner", self.by.get_username())
        elif self.instance.owner is not None:
            self.initial["owner"] = self.instance.owner.get_username()
        if not has(self.by, "is_superuser"):  # a field that is declared here is there whatever the admin lists
            for name in SUPERUSERS:
                self.fields.pop(name, None)
        if "agent" in self.fields:
            self.fields["agent"].offer(self.by, self.instance.agent)  # type: ignore[attr-defined]
        if "session" in self.fields:
            self.fields["session"].queryset = Session.objects.for_user(self.by)  # type: ignore[attr-defined]

    def clean_metadata(self) -> Any:
        return self.cleaned_data["metadata"] or {}

    def clean(self) -> dict[str, Any]:
        """Before the constraints of the database, which name no field."""
        given = super().clean() or {}
        if self.errors:
            return given
        row = copy(self.instance)
        for name, value in given.items():
            setattr(row, name, value)
        try:
            schedules.check(row)
            schedules.check_name(row)
        except (InvalidInputError, NotFoundError) as error:
            self.add_error(error.field if error.field in self.fields else None, show.visible(str(error)))
        else:
            self._check_rights(row)
        return given

    def _check_rights(self, row: Schedule) -> None:
        """Its owner's to run the agent, which each tick asks again; and to choose the priority, of who chooses it."""
        try:
            schedules.check_owner(row)
        except ForbiddenError as error:
            self.add_error("agent", show.visible(str(error)))
        if "priority" in self.changed_data:
            try:
                access.check_priority(self.by, Priority[row.priority.upper()])
            except ForbiddenError as error:
                self.add_error("priority", str(error))

    def is_valid(self) -> bool:
        return super().is_valid() and not self.previewing


def preview_of(row: Schedule) -> list[dict[str, str]]:
    """The next ticks by the site's clock and by the schedule's; none of a rule that is not one."""
    try:
        return [both_clocks(row, at) for at in schedules.next_ticks(row, SHOWN)]
    except InvalidInputError:
        return []


def both_clocks(row: Schedule, at: datetime | None) -> dict[str, str]:
    """`site`, and `own` where the schedule has a zone of its own."""
    shown = {"site": show.moment(at), "own": ""}
    if at is not None and row.cron and row.timezone:
        try:
            own = clock.written(at, timetable.zone_of(row.timezone))
        except InvalidInputError:
            return shown
        shown["own"] = f"{own} {show.visible(row.timezone)}"
    return shown
