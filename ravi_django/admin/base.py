"""Base classes of the admin's pages: rows of the user's tenants, read-only pages, columns, filters, searches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Warning, register
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import get_resolver, reverse
from django.utils.functional import cached_property

from ravi_django.conf import conf
from ravi_django.kernel import ForbiddenError
from ravi_django.models import HumanRequest, Run
from ravi_django.pages.texts import script_texts
from ravi_django.people import mail, site_rules
from ravi_django.users import has

if TYPE_CHECKING or not apps.is_installed("unfold"):
    from django.contrib.admin import ModelAdmin
else:  # Unfold styles only the lists and forms of its own class
    from unfold.admin import ModelAdmin

CAP = 10_000  # rows that a list pages through; the search finds the others
MOST_SEARCHED = 200  # characters: Django makes a condition of each word
SUPERUSERS = ("owner", "tenant")  # fields that only superusers choose: runs are made in the owner's name


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Stops counting at CAP: counting a big table takes longer than showing a page of it."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[:CAP].count() if hasattr(rows, "order_by") else super().count


# The model field whose widget a theme shows instead of Django's plain one.
_PLAIN: dict[type[forms.Widget], Any] = {
    forms.CheckboxInput: models.BooleanField,
    forms.NumberInput: models.BigIntegerField,
    forms.Select: partial(models.CharField, choices=[("", "")]),
    forms.Textarea: models.TextField,
    forms.TextInput: models.CharField,
}


class LiveAdmin(ModelAdmin):  # type: ignore[type-arg]
    """Lists, pages, searches and actions contain the rows of the user's tenants. A theme styles also the fields that a
    form declares. With JavaScript and a socket, every page shows how many requests wait for the user."""

    tenant: str | None = "tenant"  # the lookup of a row's tenant; None: rows of this model belong to the whole site
    list_select_related: ClassVar[list[str] | tuple[str, ...]] = ()
    change_list_template = "ravi/admin/list.html"
    below: tuple[type[models.Model], ...] = ()  # models whose lists are reached from this one, not from the index

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "GET" and any("\0" in value for _, values in request.GET.lists() for value in values):
            return redirect(f"{request.path}?{_without_nulls(request.GET).urlencode()}")  # databases refuse NUL
        return super().changelist_view(request, {"links": self.links(request), **(extra_context or {})})

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """The form has `by`, the user who fills it in, and `previewing`: a preview saves nothing."""
        form: Any = super().get_form(request, obj, change=change, **options)
        form.by = request.user
        form.previewing = request.method == "POST" and "_preview" in request.POST
        return form

    def links(self, request: HttpRequest) -> list[tuple[Any, str]]:
        """Name and address of each page that the list links to."""
        pages = []
        for model in self.below:
            meta, site = model._meta, self.admin_site
            if site.is_registered(model) and site.get_model_admin(model).has_view_permission(request):
                address = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist", current_app=site.name)
                pages.append((meta.verbose_name_plural, address))
        return pages

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        if self.list_select_related:  # on an object's page too
            rows = rows.select_related(*self.list_select_related)
        theirs = tenants_seen(request)
        if theirs is None or self.tenant is None:
            return rows
        return rows.filter(self.of_tenants(rows, theirs))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By `condition_of` the whole term; else Django's search for each word of it in `search_fields`."""
        term = search_term.strip()
        condition = self.condition_of(request, term) if term else None
        if condition is not None:
            return queryset.filter(condition), False
        return super().get_search_results(request, queryset, search_term[:MOST_SEARCHED])

    def condition_of(self, request: HttpRequest, term: str) -> Q | None:
        """The condition of a search, for an admin with a search of its own."""
        return None

    def of_tenants(self, rows: QuerySet[Any], tenants: Collection[str]) -> Q:
        """The condition that a row belongs to one of these tenants."""
        return Q(**{f"{self.tenant}__in": tenants})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any) -> Any:
        self.dress(request, context["adminform"].form)
        return super().render_change_form(request, context, *args, **options)

    def dress(self, request: HttpRequest, form: forms.BaseForm) -> None:
        """Give each field with a plain widget of Django the theme's widget for its kind."""
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
        media = super().media
        if not self.admin_site.is_registered(HumanRequest):
            return media
        inbox = reverse("admin:ravi_humanrequest_changelist", current_app=self.admin_site.name)
        attributes = {"data-inbox": inbox, "data-socket": mail.socket("requests"), "defer": True}
        if texts := script_texts():
            attributes["data-words"] = texts
        script = forms.Script("ravi/requests.js", **attributes)
        return media + forms.Media(js=[script], css={"all": ["ravi/requests.css"]})  # type: ignore[list-item]


class InspectAdmin(LiveAdmin):
    """Read-only. `inspect` gives the context for `change_form_template`."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200
    actions: list[str] | None = []
    goes_along = False  # whether a row is deleted together with the row that it belongs to
    in_index = True

    class Media:
        css = {"all": ["ravi/admin.css"]}

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.in_index and super().has_module_permission(request)

    def inspect(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        return {}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never on a page of its own. Django asks this for each row that is deleted together with another."""
        asking = getattr(getattr(request.resolver_match, "func", None), "model_admin", None)
        return self.goes_along and obj is not None and asking not in (None, self)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return list(self.readonly_fields)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id))
        context = {"title": str(obj), "subtitle": None}
        if obj is not None and self.has_view_permission(request, obj):
            context |= self.inspect(request, obj)
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})


class OwnedAdmin(LiveAdmin):
    """Rows that run agents as their owner: their owner and superusers edit and delete them, one at a time."""

    list_select_related = ["owner"]
    show_full_result_count = False
    list_per_page = 50

    class Media:
        css = {"all": ["ravi/admin.css", "ravi/agent.css"]}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and is_own(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and is_own(request, obj)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """`action_location` is Django's from 6.1 on."""
        where = {} if action_location is None else {"action_location": action_location}
        return {name: one for name, one in super().get_actions(request, **where).items() if name != "delete_selected"}


class OwnedForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of such a row. Only superusers choose its owner and tenant; it needs a field `agent`."""

    by: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        is_superuser = has(self.by, "is_superuser")
        if self.instance._state.adding:
            self.instance.owner = self.by
            self.instance.tenant = "" if is_superuser else tenant_for(self.by)
        self.initial["owner"] = self.instance.owner
        for name in () if is_superuser else SUPERUSERS:  # the form has its declared fields whatever the admin lists
            self.fields.pop(name, None)
        if "agent" in self.fields:
            self.fields["agent"].offer(self.by, self.instance.agent)  # type: ignore[attr-defined]


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with fixed values. An unknown value filters nothing."""

    labels: dict[str, Any]  # by value

    def condition(self, value: str) -> Q:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(self.labels.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(self.condition(value)) if value in self.labels else queryset


def column(description: Any, value: Callable[[Any], Any], **options: Any) -> Any:
    """A column of a list, or a field of a page: `value` of the row."""
    return staticmethod(admin.display(lambda row: value(row), description=description, **options))


def is_own(request: HttpRequest, row: Any) -> bool:
    """Whether the user runs this row's agent, or is a superuser. None stands for any row."""
    is_owner = row is None or (row.owner_id is not None and row.owner_id == request.user.pk)
    return is_owner or has(request.user, "is_superuser")


def tenants_seen(request: HttpRequest) -> Collection[str] | None:
    """The tenants whose rows the user sees; None: all. Calls RAVI["TENANT_OF"] once a page."""
    if not hasattr(request, "_ravi_tenants"):
        theirs = None if conf.TENANT_OF is None else site_rules.tenants_of(request.user)
        request._ravi_tenants = theirs  # type: ignore[attr-defined]
    return request._ravi_tenants  # type: ignore[attr-defined,no-any-return]


def users_of(rows: QuerySet[Any], field: str, tenants: Collection[str]) -> list[Any]:
    """The keys of the users that `field` names in these rows and that belong to one of the tenants. Calls
    RAVI["TENANT_OF"] for each user: for small tables."""
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
    """The tenant of a row that `user` makes and for which they may not choose one. Raises PermissionDenied."""
    try:
        return site_rules.tenant_for(user)
    except ForbiddenError as refusal:
        raise PermissionDenied(str(refusal)) from None


def _without_nulls(query: QueryDict) -> QueryDict:
    cleaned = QueryDict(mutable=True)
    for name, values in query.lists():
        cleaned.setlist(name.replace("\0", ""), [value.replace("\0", "") for value in values])
    return cleaned


def page_of(request: HttpRequest, name: str, total: int, size: int) -> dict[str, Any]:
    """The page `?name=N` of a long list inside a page; `first` and `last` are item numbers, from 1."""
    page = Paginator(range(total), size).get_page(request.GET.get(name))
    return {"name": name, "page": page, "total": total, "first": page.start_index(), "last": page.end_index()}


def id_begins(term: str, *names: str) -> Q:
    """The condition that one of these ids begins with the term; an empty one when no id begins so."""
    digits = term.replace("-", "").lower()
    if not 6 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return Q()
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return reduce(or_, (Q(**{f"{name}__gte": first, f"{name}__lte": last}) for name in names))


def users_named(term: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{f"{users.USERNAME_FIELD}__icontains": term})


def register_on(site: AdminSite) -> None:
    """Register the app's models with `site` too. A second call changes nothing."""
    for model, model_admin in list(admin.site._registry.items()):
        if model._meta.app_label == Run._meta.app_label and not site.is_registered(model):
            site.register(model, type(model_admin))


@register("ravi")
def check_mounted(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    mounted = list(_mounted(get_resolver().url_patterns))
    if not mounted or any(site.is_registered(Run) for site in mounted):
        return []
    names = ", ".join(sorted({repr(site.name) for site in mounted}))
    hint = "In an admin.py: from ravi_django.admin import register_on; register_on(your_site)."
    return [Warning(f"The mounted admin site has no models of ravi_django: {names}.", hint=hint, id="ravi.W031")]


def _mounted(patterns: Any) -> Iterator[AdminSite]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _mounted(pattern.url_patterns)
        elif site := getattr(pattern.callback, "admin_site", None):
            yield site
