"""The form field for the approvers of an agent's risky tools; it checks that they exist."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils.translation import gettext

from ravi_django.admin.agents.fields import code_area
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.json_values import read_json
from ravi_django.runtime.people import addressees


class ApproversField(forms.CharField):
    """A spec's `approvers`: an address, or JSON: addresses with times, or either by tool name, risk or "*"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=code_area(3), required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        text = str(super().clean(value)).strip()
        if not text:
            return None
        try:
            found = Approvers.of(read_json(text) if text[0] in '{["' else text)
        except InvalidInputError as error:
            raise ValidationError(str(error)) from error
        except ValueError:
            raise ValidationError(gettext('Enter an address (group:finance) or JSON ({"pay": "staff"}).')) from None
        if gone := missing(found):
            raise ValidationError(
                gettext("No such user, group or permission: %(names)s. Create it first, or enter another address."),
                params={"names": ", ".join(gone)},
            )
        return found.to_json()

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (self.prepare_value(initial) or "") != "\n".join((data or "").splitlines()).strip()


def missing(approvers: Approvers) -> list[str]:
    """The addresses that name a user, group or permission that does not exist. At most three queries."""
    everybody = [*approvers.named.values(), *filter(None, [approvers.rest])]
    asked = list(dict.fromkeys(step.to for to in everybody for step in to.steps))
    named = {kind: {one.partition(":")[2] for one in asked if one.startswith(f"{kind}:")} for kind in _KNOWN}
    known = {f"{kind}:{name}" for kind, names in named.items() if names for name in _KNOWN[kind](names)}
    return [one for one in asked if one.partition(":")[0] in named and one not in known]


def _users(names: set[str]) -> Iterable[str]:
    model: Any = get_user_model()
    field = model.USERNAME_FIELD
    with suppress(ValueError, ValidationError):  # no valid name for this site's user model
        rows = model._default_manager.filter(**{f"{field}__in": names})
        return [str(name) for name in rows.values_list(field, flat=True)]
    return []


def _groups(names: set[str]) -> Iterable[str]:
    return Group.objects.filter(name__in=names).values_list("name", flat=True)


def _permissions(names: set[str]) -> Iterable[str]:
    if not addressees.holders_are_known():  # a backend of the site may grant permissions that have no rows
        return names
    which = Q()
    for name in names:
        app, _, codename = name.partition(".")
        which |= Q(content_type__app_label=app, codename=codename)
    rows = Permission.objects.filter(which).values_list("content_type__app_label", "codename")
    return [f"{app}.{codename}" for app, codename in rows]


_KNOWN = {"user": _users, "group": _groups, "permission": _permissions}
