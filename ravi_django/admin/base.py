"""What the admins share: nobody adds, changes or deletes, and a page of our own shows the object."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.functional import cached_property

from ravi_django.conf import conf
from ravi_django.kernel import ForbiddenError
from ravi_django.models import HumanRequest
from ravi_django.pages.words import script_words
from ravi_django.runtime.people import links, site_rules

if TYPE_CHECKING or not apps.is_installed("unfold"):
    from django.contrib.admin import ModelAdmin
else:  # a theme that styles only the lists and forms of its own class
    from unfold.admin import ModelAdmin

CAP = 10_000  # rows that a list pages through; the search finds the others
MOST_SEARCHED = 200  # characters: Django makes a condition of each word


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than the cap: counting a big table takes longer than showing a page of it."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[:CAP].count() if hasattr(rows, "order_by") else super().count


# What a model has in the place of a plain widget.
_PLAIN: dict[type[forms.Widget], Any] = {
    forms.CheckboxInput: models.BooleanField,
    forms.NumberInput: models.BigIntegerField,
    forms.Select: partial(models.CharField, choices=[("", "")]),
    forms.Textarea: models.TextField,
    forms.TextInput: models.CharField,
}


class LiveAdmin(ModelAdmin):  # type: ignore[type-arg]
    """Lists, pages, searches and actions have the rows of the user's tenants. Fields that a form declares look as those
    of its model. The pages show how many requests wait for the user, where there is JavaScript and a socket."""

    tenant: str | None = "tenant"  # the lookup of a row's tenant; None: rows of this model belong to the whole site
    change_list_template = "ravi/admin/list.html"
    below: tuple[type[models.Model], ...] = ()  # models whose lists are reached from this one, not from the index

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"links": self.links(request), **(extra_context or {})})

    def links(self, request: HttpRequest) -> list[tuple[Any, str]]:
        """Name and address of each page that the list links to."""
        found = []
        for model in self.below:
            meta, site = model._meta, self.admin_site
            if site.is_registered(model) and site.get_model_admin(model).has_view_permission(request):
                address = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist", current_app=site.name)
                found.append((meta.verbose_name_plural, address))
        return found

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        theirs = tenants_seen(request)
        if theirs is None or self.tenant is None:
            return rows
        return rows.filter(self.of_tenants(rows, theirs))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, search_term[:MOST_SEARCHED])

    def of_tenants(self, rows: QuerySet[Any], tenants: Collection[str]) -> Q:
        """The condition that a row belongs to one of these tenants."""
        return Q(**{f"{self.tenant}__in": tenants})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any) -> Any:
        self.dress(request, context["adminform"].form)
        return super().render_change_form(request, context, *args, **options)

    def dress(self, request: HttpRequest, form: forms.BaseForm) -> None:
        """Show each field whose widget is a plain one of Django's with the widget that the theme has for its kind."""
        for field in form.fields.values():
            if (kind := _PLAIN.get(type(field.widget))) is None:
                continue
            widget, plain = self.formfield_for_dbfield(kind(), request).widget, field.widget  # type: ignore[union-attr]
            classes = f"{widget.attrs.get('class', '')} {plain.attrs.get('class', '')}".strip()
            widget.attrs |= {**plain.attrs, **({"class": classes} if classes else {})}
            widget.is_required, widget.is_localized = plain.is_required, plain.is_localized
            if isinstance(plain, forms.Select):
                widget.choices = plain.choices
            field.widget = widget

    @property
    def media(self) -> forms.Media:
        found = super().media
        if not self.admin_site.is_registered(HumanRequest):
            return found
        inbox = reverse("admin:ravi_humanrequest_changelist", current_app=self.admin_site.name)
        told = {"data-inbox": inbox, "data-socket": links.socket("requests"), "defer": True}
        if words := script_words():
            told["data-words"] = words
        script = forms.Script("ravi/requests.js", **told)
        return found + forms.Media(js=[script], css={"all": ["ravi/requests.css"]})  # type: ignore[list-item]


class InspectAdmin(LiveAdmin):
    """Read-only. `inspect` gives the context for `change_form_template`."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200
    actions: list[str] | None = []
    goes_along = False  # with the row that it belongs to, when whoever may do so deletes that
    in_index = True

    class Media:
        css = {"all": ["ravi/admin.css"]}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "GET" and any("\0" in value for _, values in request.GET.lists() for value in values):
            return redirect(f"{request.path}?{_without_nulls(request.GET).urlencode()}")  # no database takes it
        return super().changelist_view(request, extra_context)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.in_index and super().has_module_permission(request)

    def inspect(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        return {}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never by itself. Django asks about each row that would go with another, and refuses both otherwise."""
        return self.goes_along and obj is not None and self._is_elsewhere(request)

    def _is_elsewhere(self, request: HttpRequest) -> bool:
        asking = getattr(getattr(request.resolver_match, "func", None), "model_admin", None)
        return asking is not None and asking is not self

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return []

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id))
        context = {"title": str(obj), "subtitle": None}
        if obj is not None and self.has_view_permission(request, obj):
            context |= self.inspect(request, obj)
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})


def tenants_seen(request: HttpRequest) -> Collection[str] | None:
    """The tenants whose rows the user sees; None: all. RAVI["TENANT_OF"] is asked once a page."""
    if not hasattr(request, "_ravi_tenants"):
        theirs = None if conf.TENANT_OF is None else site_rules.tenants_of(request.user)
        request._ravi_tenants = theirs  # type: ignore[attr-defined]
    return request._ravi_tenants  # type: ignore[attr-defined,no-any-return]


def users_of(rows: QuerySet[Any], field: str, tenants: Collection[str]) -> list[Any]:
    """The keys of the users that `field` names in these rows and that belong to one of the tenants. RAVI["TENANT_OF"]
    is asked about each: for small tables."""
    users = get_user_model()._default_manager.filter(pk__in=rows.order_by().values(field))
    return [user.pk for user in users if _is_of(user, tenants)]


def may_name(by: Any, user: Any) -> bool:
    """Whether `by` may name `user` in a form: one of their tenants."""
    theirs = site_rules.tenants_of(by)
    return theirs is None or _is_of(user, theirs)


def _is_of(user: Any, tenants: Collection[str]) -> bool:
    theirs = site_rules.tenants_of(user)
    return theirs is None or not set(theirs).isdisjoint(tenants)


def tenant_for(user: Any) -> str:
    """The tenant of what somebody makes who may not choose one; 403 where it is not known at present."""
    try:
        return site_rules.tenant_for(user)
    except ForbiddenError as refusal:
        raise PermissionDenied(str(refusal)) from None


def _without_nulls(given: QueryDict) -> QueryDict:
    found = QueryDict(mutable=True)
    for name, values in given.lists():
        found.setlist(name.replace("\0", ""), [value.replace("\0", "") for value in values])
    return found


def page_of(request: HttpRequest, name: str, total: int, size: int) -> dict[str, Any]:
    """Where we are in a long list inside of a page: `?name=N`, from 1; `first` and `last` are item numbers."""
    pages = max(1, -(-total // size))
    text = request.GET.get(name, "1")
    number = min(max(int(text), 1), pages) if text.isascii() and text.isdigit() and len(text) < 10 else 1
    return {
        "name": name,
        "number": number,
        "pages": pages,
        "total": total,
        "first": (number - 1) * size + 1 if total else 0,
        "last": min(number * size, total),
        "previous": number - 1 if number > 1 else None,
        "next": number + 1 if number < pages else None,
    }


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """The ids that begin so."""
    digits = term.replace("-", "").lower()
    if not 6 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def users_named(term: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{f"{users.USERNAME_FIELD}__icontains": term})
