"""Daily budgets of users and tenants, which staff edit, and the accounts of all budgets, read-only."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, LiveAdmin, column, may_name, users_of
from ravi_django.admin.delegations import UserNameField
from ravi_django.models import BudgetAccount, DailyBudget
from ravi_django.people import site_rules

LIMITS = ("max_tokens", "max_cost_usd", "max_turns")


class DailyBudgetForm(forms.ModelForm):  # type: ignore[type-arg]
    owner = UserNameField(label=_("Owner"), required=False, help_text=_("Empty for the budget of a whole tenant"))
    by: Any  # the user who fills it in

    class Meta:
        model = DailyBudget
        fields = ["owner", "tenant", *LIMITS]
        help_texts = {"max_cost_usd": _("US dollars")}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.owner is not None:
            owner = self.instance.owner
            self.initial["owner"] = owner.get_username()
            field: Any = self.fields["owner"]
            field.queryset |= get_user_model()._default_manager.filter(pk=owner.pk)  # inactive since

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("owner") and data.get("tenant"):
            self.add_error("tenant", gettext("Choose a user or a tenant, not both."))
        theirs = site_rules.tenants_of(self.by)
        if data.get("owner") and not may_name(self.by, data["owner"]):
            self.add_error("owner", UserNameField.default_error_messages["invalid_choice"])
        elif not data.get("owner") and theirs is not None and data.get("tenant", "") not in theirs:
            names = ", ".join(sorted(theirs)) or gettext("you have none")
            self.add_error("tenant", gettext("Choose one of your tenants: %(names)s.") % {"names": names})
        for name in LIMITS:
            if (value := data.get(name)) is not None and value < 0:
                self.add_error(name, gettext("0 or more. Empty: no limit."))
        return data


@admin.register(DailyBudget)
class DailyBudgetAdmin(LiveAdmin):
    """An edit takes effect at every worker's next heartbeat."""

    below = (BudgetAccount,)
    form = DailyBudgetForm
    list_display = ["__str__", *LIMITS]
    list_select_related = ["owner"]
    search_fields = ["tenant"]
    list_per_page = 50
    actions = None

    class Media:
        css = {"all": ["ravi/admin.css"]}

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return [f"owner__{get_user_model().USERNAME_FIELD}", *self.search_fields]

    def of_tenants(self, rows: QuerySet[Any], tenants: Collection[str]) -> Q:
        return Q(owner=None, tenant__in=tenants) | Q(owner__in=users_of(rows, "owner", tenants))


@admin.register(BudgetAccount)
class BudgetAccountAdmin(InspectAdmin):
    in_index = False
    list_display = ["key", "tokens", "cost", "turns"]
    list_display_links = ["key"]
    search_fields = ["key__startswith"]
    ordering = ["key"]
    readonly_fields = [field.name for field in BudgetAccount._meta.concrete_fields]
    tokens = column(_("tokens"), lambda account: _used(account, "tokens", account.max_tokens))
    cost = column(_("US dollars"), lambda account: _used(account, "cost", account.max_cost))
    turns = column(_("maximum model calls"), lambda account: _used(account, "turns", account.max_turns))

    def of_tenants(self, rows: QuerySet[Any], tenants: Collection[str]) -> Q:
        """The accounts of tenants' days. Those of users and trees name no tenant: only superusers see them."""
        return reduce(or_, (Q(key__startswith=f"tenant:{tenant}:") for tenant in tenants), Q(pk__in=[]))


def _used(account: BudgetAccount, what: str, limit: Any) -> str:
    """`spent + reserved of limit`."""
    spent, reserved = getattr(account, f"spent_{what}"), getattr(account, f"reserved_{what}")
    if what == "cost":
        spent, reserved, limit = (
            None if value is None else f"{value.normalize():f}" for value in (spent, reserved, limit)
        )
    held = f" + {reserved}" if reserved not in (0, "0") else ""
    used = f"{spent}{held}"
    return used if limit is None else gettext("%(used)s of %(limit)s") % {"used": used, "limit": limit}
