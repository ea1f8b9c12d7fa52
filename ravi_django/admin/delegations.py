"""Delegations, which people make for themselves, and sticky decisions, which can only be revoked.

Every member of staff may let another person answer in their place, and end that. Delegations of other people take
`ravi.add_delegation`, `change_delegation` or `delete_delegation`; those of superusers are for superusers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import InspectAdmin, LiveAdmin, column, may_name, users_of
from ravi_django.models import Delegation, HumanRequest, StickyDecision
from ravi_django.pages import formats
from ravi_django.people import rights, sticky
from ravi_django.people.site_rules import active_users
from ravi_django.users import has


class UserNameField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """An active user by name: a list of all users may be long."""

    widget = forms.TextInput
    default_error_messages = {"invalid_choice": _("No active user has this name, or you may not choose them.")}

    def __init__(self, **options: Any) -> None:
        model: Any = get_user_model()
        super().__init__(queryset=None, to_field_name=model.USERNAME_FIELD, **options)

    def __deepcopy__(self, memo: Any) -> UserNameField:
        """Read the users for each form, not at import."""
        copied: UserNameField = super().__deepcopy__(memo)
        copied.queryset = active_users()
        return copied


class DelegationForm(forms.ModelForm):  # type: ignore[type-arg]
    """Only users who may choose `user` have that field."""

    user = UserNameField(label=_("User"), help_text=_("The user whose requests the delegate may answer"))
    delegate = UserNameField(
        label=_("Delegate"),
        help_text=_("Answers for the user. Only a delegate who is staff answers requests to staff or to a permission."),
    )
    by: Any  # the user who fills it in

    class Meta:
        model = Delegation
        fields = ("user", "delegate", "since", "until", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "since" in self.fields:
            self.fields["since"].required = False
            self.fields["since"].help_text = gettext("Empty: starts now")

    def clean_user(self) -> Any:
        """Only superusers may choose another superuser."""
        user = self.cleaned_data["user"]
        if has(user, "is_superuser") and user != self.by and not has(self.by, "is_superuser"):
            raise forms.ValidationError(UserNameField.default_error_messages["invalid_choice"], code="invalid_choice")
        return user

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in ("user", "delegate"):
            if data.get(name) is not None and not may_name(self.by, data[name]):
                self.add_error(name, UserNameField.default_error_messages["invalid_choice"])
        if self.instance.pk is None and "user" not in self.fields:
            self.instance.user = self.by
        user = data.get("user") or (self.instance.user if self.instance.user_id else None)
        if user is not None and user == data.get("delegate"):
            self.add_error("delegate", gettext("Choose somebody other than the user."))
        elif user is not None and data.get("delegate") and not rights.have_a_tenant(data["delegate"], user):
            text = gettext("%(delegate)s can answer no request of %(user)s: they have no tenant in common.")
            self.add_error("delegate", text % {"delegate": data["delegate"], "user": user})
        data["since"] = data.get("since") or timezone.now()
        if data.get("until") and data["until"] <= data["since"]:
            self.add_error("until", gettext("The end must be after the start."))
        return data


@admin.register(Delegation)
class DelegationAdmin(LiveAdmin):
    form = DelegationForm
    list_display = ["user", "delegate", "since", "until", "holds_now", "reason"]
    list_display_links = ["user", "delegate"]
    list_select_related = ["user", "delegate"]
    ordering = ["-id"]
    sortable_by = ()
    list_per_page = 50
    actions = None

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_staff(request)

    def has_view_permission(self, request: HttpRequest, obj: Delegation | None = None) -> bool:
        return self._may(request, obj, super().has_view_permission(request, obj), sees=True)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_staff(request)

    def has_change_permission(self, request: HttpRequest, obj: Delegation | None = None) -> bool:
        return self._may(request, obj, super().has_change_permission(request, obj))

    def has_delete_permission(self, request: HttpRequest, obj: Delegation | None = None) -> bool:
        return self._may(request, obj, super().has_delete_permission(request, obj))

    def _may(self, request: HttpRequest, obj: Delegation | None, permitted: bool, *, sees: bool = False) -> bool:
        if not _is_staff(request):
            return False
        if obj is None or obj.user_id == request.user.pk or has(request.user, "is_superuser"):
            return True
        return permitted and (sees or not has(obj.user, "is_superuser"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delegation]:
        rows = super().get_queryset(request)
        if super().has_view_permission(request) or super().has_change_permission(request):
            return rows
        return rows.filter(Q(user=request.user.pk) | Q(delegate=request.user.pk))

    def of_tenants(self, rows: QuerySet[Any], tenants: Collection[str]) -> Q:
        return Q(user__in=users_of(rows, "user", tenants))

    def get_fields(self, request: HttpRequest, obj: Delegation | None = None) -> Any:
        return ["user", "delegate", "since", "until", "reason"]

    def get_readonly_fields(self, request: HttpRequest, obj: Delegation | None = None) -> list[str]:
        """A delegation keeps its user and its delegate: end it, and make another."""
        if obj is not None:
            return ["user", "delegate"]
        return [] if super().has_add_permission(request) else ["user"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"user": request.user, **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Delegation, form: Any, change: bool) -> None:
        if not change:
            obj.created_by = request.user  # type: ignore[assignment]
        super().save_model(request, obj, form, change)
        if not (has(obj.delegate, "is_staff") or has(obj.delegate, "is_superuser")):
            text = gettext("Not staff: %(delegate)s can never answer requests to staff or to a permission.")
            messages.warning(request, text % {"delegate": obj.delegate})

    @admin.display(description=_("active"), boolean=True)
    def holds_now(self, delegation: Delegation) -> bool:
        now = timezone.now()
        return delegation.since <= now and (delegation.until is None or now < delegation.until)


@admin.register(StickyDecision)
class StickyDecisionAdmin(InspectAdmin):
    """Users see and revoke their own decisions. `ravi.view_stickydecision` shows all of them;
    `ravi.change_stickydecision` also lets a user revoke them."""

    list_display = ["action", "tool", "agent", "shown_risk", "who", "created_at", "revoked_at"]
    list_display_links = ["action", "tool"]
    list_select_related = ["decided_by"]
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["tool", "agent", "decided_by_name"]
    actions = ["revoke"]
    tenant = "session__tenant"
    in_index = False
    readonly_fields = [field.name for field in StickyDecision._meta.concrete_fields if field.name != "risk"]
    readonly_fields += ["shown_risk"]
    shown_risk = column(_("risk"), lambda decision: formats.word(decision.risk))
    who = column(_("decided by"), lambda decision: decision.decided_by_name or formats.NONE)

    def has_view_permission(self, request: HttpRequest, obj: StickyDecision | None = None) -> bool:
        if obj is not None:
            return self._all(request) or obj.decided_by_id == request.user.pk
        return self._all(request) or self._sees_inbox(request) or self._decided_by(request).exists()

    def _sees_inbox(self, request: HttpRequest) -> bool:
        """Most pages have looked this up before: then it takes no query."""
        inbox = self.admin_site._registry.get(HumanRequest)
        return inbox is not None and inbox.has_view_permission(request)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)  # `revoke` checks each one

    def get_queryset(self, request: HttpRequest) -> QuerySet[StickyDecision]:
        return super().get_queryset(request) if self._all(request) else self._decided_by(request).order_by("-id")

    def _all(self, request: HttpRequest) -> bool:
        return super().has_view_permission(request) or request.user.has_perm("ravi.change_stickydecision")

    def _decided_by(self, request: HttpRequest) -> QuerySet[StickyDecision]:
        rows: QuerySet[StickyDecision] = super().get_queryset(request).filter(decided_by=request.user.pk)
        return rows if _is_staff(request) else rows.none()

    @admin.action(description=_("Revoke selected decisions"), permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[StickyDecision]) -> None:
        revocable = sticky.revocable(request.user).filter(pk__in=queryset.values("pk"))
        revoked = sticky.revoke(list(revocable), by=request.user)
        for decision in revoked:
            self.log_change(request, decision, f"Revoked: {decision.action} {decision.tool}")
        message = gettext("%(count)s revoked. These tools ask for approval again.") % {"count": len(revoked)}
        if left := queryset.count() - len(revoked):
            message += " " + gettext("%(count)s unchanged: already revoked, or made by others.") % {"count": left}
        self.message_user(request, message, messages.SUCCESS if revoked else messages.WARNING)


def _is_staff(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_staff)
