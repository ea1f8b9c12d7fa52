"""Schedules: who may edit them has runs made, in their own name. Only superusers do so in the name of others, or of
nobody; an operator who may change schedules can switch any of them off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import show
from ravi_django.admin.base import CappedPaginator, LiveAdmin
from ravi_django.admin.runs import AgentFilter
from ravi_django.admin.schedule_form import SUPERUSERS, ScheduleForm, both_clocks, preview_of
from ravi_django.kernel import KernelError
from ravi_django.models import Schedule, ScheduleTick
from ravi_django.runtime.schedules import schedules
from ravi_django.users import has

RECENT = 50  # ticks on a schedule's page

FIELDSETS: list[Any] = [
    (None, {"fields": ["name", "agent", "input", "session", "enabled"]}),
    (_("When"), {"fields": ["cron", "timezone", "every_s", "starts_at", "jitter_s", "catch_up"]}),
    (_("Its runs"), {"fields": ["owner", "tenant", "priority", "budget", "metadata"]}),
]


@admin.register(Schedule)
class ScheduleAdmin(LiveAdmin):
    form = ScheduleForm
    change_form_template = "ravi/admin/schedule.html"
    list_display = ["name", "agent", "rule", "next_run", "last_run", "whose", "enabled"]
    list_filter = ["enabled", AgentFilter]
    list_select_related = ["owner"]
    search_fields = ["name", "agent"]
    ordering = ["name", "id"]
    sortable_by = ()
    actions = ["enable", "disable", "run_now"]
    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50

    class Media:
        css = {"all": ["ravi/admin.css", "ravi/agent.css"]}

    # -------------------------------------------------------------------------------------------- who may what

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or _is_own(request, obj))

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or _is_own(request, obj))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}

    # ------------------------------------------------------------------------------------------------ the form

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[str], list[str]]:
        """Its ticks go with it, however many: they are counted, not shown."""
        names = [gettext("Schedule: %(name)s") % {"name": show.visible(row.name)} for row in objs]
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

    def get_form(self, request: HttpRequest, obj: Schedule | None = None, change: bool = False, **options: Any) -> Any:
        form = super().get_form(request, obj, change=change, **options)
        form.by = request.user  # type: ignore[attr-defined]
        form.previewing = request.method == "POST" and "_preview" in request.POST  # type: ignore[attr-defined]
        return form

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        schedules.keep(obj)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Schedule | None = None, **options: Any
    ) -> HttpResponse:
        form = context["adminform"].form
        row = form.instance if isinstance(form, ScheduleForm) else obj
        context["show_preview"] = obj is None or self.has_change_permission(request, obj)
        context["previewing"] = getattr(form, "previewing", False)
        context["next_ticks"] = [] if row is None else preview_of(row)
        if obj is not None:
            found = ScheduleTick.objects.filter(schedule=obj).select_related("run").order_by("-at")[:RECENT]
            context["recent"] = [(tick, both_clocks(obj, tick.at), _outcome(tick.run, tick.error)) for tick in found]
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------- columns

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        last = ScheduleTick.objects.filter(schedule=OuterRef("pk"), error="").order_by("-at")  # those that ran
        return super().get_queryset(request).annotate(  # type: ignore[no-any-return]
            ran_at=Subquery(last.values("at")[:1]), last_run_id=Subquery(last.values("run_id")[:1]),
            last_status=Subquery(last.values("run__status")[:1]),
        )  # fmt: skip

    @admin.display(description=_("when"))
    def rule(self, row: Schedule) -> str:
        if row.every_s is not None:
            return gettext("every %(time)s") % {"time": show.duration_s(row.every_s)}
        return show.visible(f"{row.cron} {row.timezone}".strip())

    @admin.display(description=_("next run"))
    def next_run(self, row: Schedule) -> SafeString | str:
        return _times(row, row.next_at) if row.enabled else show.NONE

    @admin.display(description=_("last run"))
    def last_run(self, row: Any) -> SafeString:
        """Of the last tick that has one. A later tick without one is named by itself."""
        how = show.link_to("run", row.last_run_id, show.status(row.last_status)) if row.last_run_id else ""
        ran = format_html("{}<br>{}", _times(row, row.ran_at), how)
        if not row.error and row.last_at == row.ran_at:
            return ran
        fault = format_html('<span title="{}">{}</span>', show.snippet(row.error, 400), show.status("failed"))
        none = gettext("no run:")
        return format_html("{}<br>{} {} {}", ran, none, _times(row, row.last_at), fault if row.error else "")

    @admin.display(description=_("owner"))
    def whose(self, row: Schedule) -> str:
        return str(row.owner) if row.owner else gettext("the system")

    # ------------------------------------------------------------------------------------------------- actions

    @admin.action(description=_("Enable selected"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._each(request, _own(request, queryset), lambda row: schedules.enable(row) and "Enabled.")

    @admin.action(description=_("Disable selected"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._each(request, queryset, lambda row: schedules.disable(row) and "Disabled.")

    @admin.action(description=_("Run now"), permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        if request.POST.get("select_across") == "1":
            words = gettext("Run a page at a time, please: what you have seen.")
            self.message_user(request, words, messages.ERROR)
            return
        self._each(request, _own(request, queryset), lambda row: f"Run now: {schedules.run_now(row).id}.")

    def _each(self, request: HttpRequest, rows: QuerySet[Schedule], act: Callable[[Schedule], Any]) -> None:
        done = 0
        for row in rows.select_related("owner", "session"):
            try:
                words = act(row)
            except KernelError as error:
                self.message_user(request, show.visible(f"{row}: {error}"), messages.ERROR)
                continue
            self.log_change(request, row, words)
            done += 1
            if words.startswith("Run"):
                run_id = words.removeprefix("Run now: ").removesuffix(".")
                told = format_html(
                    "{}: {}", show.visible(row.name), show.link_to("run", run_id, gettext("a run was submitted"))
                )
                self.message_user(request, told, messages.SUCCESS)
        left = len(request.POST.getlist("_selected_action")) - done
        if left > 0:
            self.message_user(request, gettext("Left as they are: %(count)s.") % {"count": left}, messages.WARNING)
        elif done:
            self.message_user(request, gettext("Done: %(count)s.") % {"count": done}, messages.SUCCESS)


def _is_own(request: HttpRequest, row: Schedule) -> bool:
    return has(request.user, "is_superuser") or (row.owner_id is not None and row.owner_id == request.user.pk)


def _own(request: HttpRequest, rows: QuerySet[Schedule]) -> QuerySet[Schedule]:
    return rows if has(request.user, "is_superuser") else rows.filter(owner=request.user.pk)


def _times(row: Schedule, at: Any) -> SafeString | str:
    shown = both_clocks(row, at)
    if not shown["own"]:
        return shown["site"]
    return format_html('{}<br><span class="ravi-quiet">{}</span>', shown["site"], shown["own"])


def _outcome(run: Any, error: str) -> SafeString | str:
    if run is not None:
        return show.link_to("run", run.pk, show.status(run.status))
    return show.visible(error) or show.NONE
