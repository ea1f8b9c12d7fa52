"""Sources, which staff make and edit, and their items.

Users who are not superusers edit and delete only sources that run as themselves. The secret of a webhook is shown once,
in the answer to the request that made it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _, pgettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables

from ravi_django.admin.agents.fields import AgentField, code_area
from ravi_django.admin.base import SUPERUSERS, InspectAdmin, OwnedAdmin, OwnedForm, column
from ravi_django.admin.delegations import UserNameField
from ravi_django.kernel import ForbiddenError
from ravi_django.models import Source, SourceItem
from ravi_django.pages import formats
from ravi_django.runs import background_tasks
from ravi_django.users import has
from ravi_django.wings.feeds.schedules import schedules
from ravi_django.wings.feeds.sources import adding, webhooks
from ravi_django.wings.feeds.sources.items import MOVED, STATE

FIELDS = ["name", "kind", "location", "agent", "signal", "every_s", "options", "enabled", "owner", "tenant"]
LOCATION = _(
    "Feed: its URL. Adapter: its registered name. Webhook: leave it empty; its URL and secret are created here."
)
OPTIONS = _(
    'JSON. All: {"edits": true} also delivers edits, {"metadata": {…}} goes to the runs. '
    'Webhook: {"id", "title", "text", "url": paths}. Do not enter keys '
    "or passwords."
)
STATUS = ["hook", "secret_state", "error_html", "checked_at", "next_poll", "failures", "moved_from", "home_link"]
POLL_AGAIN = {"location", "kind", "options", "agent", "enabled", "owner"}  # a change of these polls at once


class SourceForm(OwnedForm):
    agent = AgentField(label=_("Agent"), help_text=_("The agent that gets new items."))
    owner = UserNameField(label=_("Owner"), required=False, help_text=_("Owner of the runs. Empty: the system"))

    class Meta:
        model = Source
        fields = FIELDS
        labels = {"every_s": _("Seconds between polls")}
        help_texts = {"location": LOCATION, "options": OPTIONS, "every_s": _("At least 60 for a feed.")}
        widgets = {
            "location": forms.TextInput({"spellcheck": "false"}),
            "options": code_area(6),
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._written = adding.written(self.instance.options)
        if isinstance(self.instance.options, dict):
            self.initial["options"] = adding.typed(self.instance.options)
        if "options" in self.fields:
            self.fields["options"].show_hidden_initial = False  # the row has the initial value

    def clean_options(self) -> dict[str, Any]:
        """The typed options, and those that the poller has written."""
        typed = self.cleaned_data["options"] or {}
        if not isinstance(typed, dict):
            raise forms.ValidationError(gettext('Enter a JSON object like {"edits": true}.'))
        return {**adding.typed(typed), **self._written}

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        for field, fault in adding.errors_of(self.instance):
            self.add_error(field if field in self.fields else None, fault)
        if not self.errors and {"agent", "owner"}.intersection(self.changed_data):
            try:
                schedules.check_owner(self.instance)
            except ForbiddenError as error:
                self.add_error("agent", formats.visible(str(error)))


@admin.register(Source)
class SourceAdmin(OwnedAdmin):
    below = (SourceItem,)
    form = SourceForm
    change_form_template = "ravi/admin/source.html"
    list_display = ["name", "kind", "agent", "owner", "enabled", "state", "checked_at", "next_poll"]
    list_filter = ["kind", "enabled"]
    search_fields = ["name", "location", "agent"]
    ordering = ["-id"]
    show_facets = admin.ShowFacets.NEVER
    actions = ["poll_now", "enable", "disable"]

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[str], list[str]]:
        """Its items are deleted too: they are counted, not listed."""
        count = SourceItem.objects.filter(source__in=list(objs)).count()
        named = [gettext("Source: %(name)s") % {"name": source} for source in objs]
        items = gettext("Items: %(count)s") % {"count": count}
        return [*named, items], {gettext("sources"): len(named), gettext("items"): count}, set(), []

    def get_fieldsets(self, request: HttpRequest, obj: Source | None = None) -> Any:
        hidden = () if has(request.user, "is_superuser") else SUPERUSERS
        chosen = [name for name in FIELDS if name not in hidden]
        if obj is not None and not self.has_change_permission(request, obj):
            chosen = [name for name in FIELDS if name != "options"] + ["options_html"]
        return [(None, {"fields": chosen}), *([(_("State"), {"fields": STATUS})] if obj is not None else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Source | None = None) -> list[str]:
        return [] if obj is None else ["kind", *STATUS, "options_html"]

    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: bool) -> None:
        """Save only the typed fields: a poll may be writing the rest of the row now."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        changed = set(form.changed_data)
        row = Source.objects.select_for_update(no_key=True, of=("self",)).get(pk=obj.pk)
        written = adding.written(row.options)
        fields = {name for name in form.cleaned_data if name in FIELDS}
        if "location" in changed:
            obj.etag = obj.modified = ""
            obj.polling_until = None  # so that a poll of the old location, which is running, writes nothing
            fields |= {"etag", "modified", "polling_until"}
            written = {name: value for name, value in written.items() if name not in (STATE, MOVED)}
        obj.options = {**adding.typed(obj.options), **written}
        if changed & POLL_AGAIN:
            obj.next_at, obj.failures, obj.error = None, 0, ""
            fields |= {"next_at", "failures", "error"}
        if changed & {"owner", "tenant"}:  # the session belongs to the previous owner
            obj.home = None
            fields.add("home")
        Source.objects.filter(pk=obj.pk).update(**{name: getattr(obj, name) for name in fields})

    def response_add(self, request: HttpRequest, obj: Source, post_url_continue: str | None = None) -> HttpResponse:
        if obj.kind == Source.Kind.WEBHOOK and self.has_change_permission(request, obj):
            return redirect("admin:ravi_source_secret", obj.pk)
        return super().response_add(request, obj, post_url_continue)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.secret_view)
        return [path("<uuid:id>/secret/", view, name="ravi_source_secret"), *super().get_urls()]

    @method_decorator(never_cache)
    @method_decorator(sensitive_variables("secret"))
    def secret_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        """GET shows how many secrets there are and changes nothing; POST makes one and shows it in its answer only."""
        source = self.get_object(request, str(id))
        if source is None or source.kind != Source.Kind.WEBHOOK:
            raise Http404
        if not self.has_change_permission(request, source):
            raise PermissionDenied
        secret = ""
        if request.method == "POST" and "forget" in request.POST:
            if webhooks.forget_old_secret(source):
                self.log_change(request, source, "Revoked the old secret.")
                self.message_user(request, gettext("The old secret is no longer valid."), messages.SUCCESS)
            return redirect("admin:ravi_source_change", source.pk)
        if request.method == "POST":
            secret = webhooks.make_secret(source)
            self.log_change(request, source, "Created a new secret.")
            source.refresh_from_db()
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Secret of %(name)s") % {"name": formats.visible(source.name)},
            "opts": self.opts,
            "original": source,
            "address": request.build_absolute_uri(webhooks.path_of(source)),
            "secret": secret,
            "valid": _valid(source),
        }
        return TemplateResponse(request, "ravi/admin/source_secret.html", context)

    @admin.action(description=_("Poll selected sources now"), permissions=["change"])
    def poll_now(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        rows, others = self._changeable(request, queryset)
        due = [row for row in rows if row.enabled and row.kind in adding.POLLED]
        Source.objects.filter(pk__in=[row.pk for row in due]).update(next_at=None)
        background_tasks.hint_on_commit("ravi.poll_sources")
        why = gettext("%(count)s unchanged: disabled, not polled, or owned by others.")
        self._report(
            request, due, len(rows) - len(due) + others, "Polling requested.", gettext("%(count)s to be polled."), why
        )

    @admin.action(description=_("Enable selected sources"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        self._switch(request, queryset, True)

    @admin.action(description=_("Disable selected sources"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        self._switch(request, queryset, False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Source], enabled: bool) -> None:
        changeable, others = self._changeable(request, queryset)
        rows = [row for row in changeable if row.enabled is not enabled]
        reset = {"next_at": None, "failures": 0, "error": ""} if enabled else {}
        Source.objects.filter(pk__in=[row.pk for row in rows]).update(enabled=enabled, **reset)
        why = gettext("%(count)s unchanged: already so, or owned by others.")
        message = gettext("%(count)s enabled.") if enabled else gettext("%(count)s disabled.")
        done = "Enabled." if enabled else "Disabled."
        self._report(request, rows, len(changeable) - len(rows) + others, done, message, why)

    def _changeable(self, request: HttpRequest, queryset: QuerySet[Source]) -> tuple[list[Source], int]:
        rows = list(queryset.select_related("owner"))
        changeable = [row for row in rows if self.has_change_permission(request, row)]
        return changeable, len(rows) - len(changeable)

    def _report(self, request: HttpRequest, rows: list[Source], left: int, done: str, message: str, why: str) -> None:
        """`done` goes into the rows' history; the user reads `message` and `why`."""
        for row in rows:
            self.log_change(request, row, done)
        message = message % {"count": len(rows)} + (" " + why % {"count": left} if left else "")
        self.message_user(request, message, messages.SUCCESS if rows else messages.WARNING)

    @admin.display(description=_("state"))
    def state(self, source: Source) -> SafeString | str:
        if not source.enabled:
            return gettext("off")
        if source.error:
            status = formats.status("failed" if source.failures else "late")
            whole, brief = formats.visible(source.error), formats.snippet(source.error, 60)
            return format_html('{} <span title="{}">{}</span>', status, whole, brief)
        return gettext("ok") if source.checked_at else gettext("new")

    @admin.display(description=_("next poll"))
    def next_poll(self, source: Source) -> str:
        if not source.enabled or source.kind not in adding.POLLED:
            return formats.NONE
        return formats.moment(source.next_at) if source.next_at else gettext("immediately")

    @admin.display(description=_("webhook URL"))
    def hook(self, source: Source) -> SafeString | str:
        address = webhooks.path_of(source) if source.kind == Source.Kind.WEBHOOK else ""
        return format_html("<code>{}</code>", address) if address else formats.NONE

    @admin.display(description=_("secret"))
    def secret_state(self, source: Source) -> SafeString | str:
        if source.kind != Source.Kind.WEBHOOK:
            return formats.NONE
        known = (gettext("none: posts are rejected"), pgettext("a secret", "one"), gettext("two, the old and the new"))
        address = reverse("admin:ravi_source_secret", args=[source.pk])
        link = gettext("create or revoke a secret")
        return format_html('{} · <a href="{}">{}</a>', known[_valid(source)], address, link)

    @admin.display(description=_("error"))
    def error_html(self, source: Source) -> SafeString | str:
        error = formats.visible(source.error)
        return format_html('<pre class="ravi-pre">{}</pre>', error) if error else formats.NONE

    @admin.display(description=_("options"))
    def options_html(self, source: Source) -> SafeString:
        typed = adding.typed(source.options)
        return format_html('<pre class="ravi-pre">{}</pre>', (formats.pretty(typed, None) or {"text": ""})["text"])

    @admin.display(description=_("moved from"))
    def moved_from(self, source: Source) -> str:
        return formats.visible(str(adding.written(source.options).get(MOVED) or "")) or formats.NONE

    @admin.display(description=_("conversation"))
    def home_link(self, source: Source) -> SafeString | str:
        return formats.link_to("session", source.home_id, source.home_id) if source.home_id else formats.NONE


@admin.register(SourceItem)
class SourceItemAdmin(InspectAdmin):
    in_index = False
    tenant = "source__tenant"
    list_display = ["shown_title", "source", "address", "revision", "seen_at", "changed_at"]
    list_display_links = ["shown_title"]
    list_select_related = ["source"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["title", "source__name"]
    goes_along = True  # with its source
    readonly_fields = [*list_display, "identity", "digest"]  # type: ignore[list-item]
    shown_title = column(_("title"), lambda item: formats.snippet(item.title) or item.identity[:12])

    @admin.display(description=_("address"))
    def address(self, item: SourceItem) -> SafeString | str:
        """The item chooses this text: it becomes a link only for http and https, and sends no referrer."""
        if not item.url.lower().startswith(("http://", "https://")):
            return formats.snippet(item.url) or formats.NONE
        link = '<a href="{}" rel="noopener noreferrer nofollow" target="_blank">{}</a>'
        return format_html(link, item.url, formats.snippet(item.url, 80))


def _valid(source: Source) -> int:
    return len([secret for secret in source.secret.split(",") if secret])
