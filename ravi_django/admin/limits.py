"""The rate limits of models: what each account takes, what waits, and a pause."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.formats import date_format
from django.utils.timezone import localtime, now
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import LiveAdmin, column
from ravi_django.calls.model import model_limits
from ravi_django.models import ModelLimit

FIELDS = ["requests_per_min", "tokens_per_min", "at_once", "paused_until"]


class ModelLimitForm(forms.ModelForm):  # type: ignore[type-arg]
    by: Any  # the user who fills it in

    class Meta:
        model = ModelLimit
        fields = FIELDS

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in FIELDS[:3]:
            if (value := data.get(name)) is not None and value <= 0:
                self.add_error(name, gettext("Above 0. Empty: no limit of your own."))
        if "paused_until" in self.changed_data:
            until = data.get("paused_until")
            self.instance.next_at = self.instance.refusing_since = None
            self.instance.paused_by = self.by.get_username() if until is not None and until > now() else ""
        return data


def _limit(row: ModelLimit) -> str:
    """The requests a minute, and where the number comes from."""
    if row.requests_per_min:
        return gettext("%(count)g a minute, set here") % {"count": row.requests_per_min}
    if count := model_limits.settings_of(row).get("requests_per_min"):
        return gettext("%(count)g a minute, by the settings") % {"count": count}
    return gettext("%(count)g a minute, learned") % {"count": round(row.learned_per_min)} if row.learned_per_min else ""


def _paused(row: ModelLimit) -> str:
    if row.paused_until is None or row.paused_until <= now():
        return ""
    until = date_format(localtime(row.paused_until), "DATETIME_FORMAT")
    if row.paused_by:
        return gettext("by %(user)s until %(until)s") % {"user": row.paused_by, "until": until}
    return gettext("by the provider until %(until)s") % {"until": until}


@admin.register(ModelLimit)
class ModelLimitAdmin(LiveAdmin):
    """An edit takes effect at the next heartbeat of each worker. Needs the permission `ravi.manage_model_limits`."""

    form = ModelLimitForm
    fields = (*FIELDS,)
    list_display = ["name", "tenant", "limit", "waiting", "refused", "paused"]
    search_fields = ["name", "tenant"]
    list_per_page = 50
    actions = None
    limit = column(_("limit"), _limit)
    paused = column(_("paused"), _paused)

    def save_model(self, request: HttpRequest, obj: ModelLimit, form: Any, change: bool) -> None:
        """Writes no column that a worker has changed meanwhile."""
        more = ["paused_by", "next_at", "refusing_since"] if "paused_until" in form.changed_data else []
        obj.save(update_fields=[*form.changed_data, *more])

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: ModelLimit | None = None) -> bool:
        return self.has_change_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: ModelLimit | None = None) -> bool:
        return request.user.has_perm("ravi.manage_model_limits")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ModelLimit | None = None) -> bool:
        return False
