"""Form fields: an agent, lines, JSON, a table of variables, tools to select. None needs JavaScript."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django import access
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.json_values import read_json
from ravi_django.people import site_rules

BLANK_ROWS = 3
MAX_ROWS = 200
MAX_LINES = 65_536  # characters of all lines of a list


def text_line(**attributes: str) -> forms.TextInput:
    return forms.TextInput({"autocomplete": "off", "spellcheck": "false", **attributes})


def code_area(rows: int) -> forms.Textarea:
    return forms.Textarea({"rows": rows, "class": "ravi-code", "spellcheck": "false"})


class AgentField(forms.ChoiceField):
    """One of the agents that a user may see."""

    default_error_messages = {"invalid_choice": _("The agent %(value)s does not exist, or you may not choose it.")}

    def offer(self, user: Any, current: str) -> None:
        """`current` is offered even if it no longer exists."""
        addresses = sorted({*access.agents_seen(user), current} - {""})
        self.choices = [("", "---------"), *((address, address) for address in addresses)]


class LinesField(forms.CharField):
    """A list of texts, one a line. Never required."""

    def __init__(self, *, rows: int = 4, **options: Any) -> None:
        area = forms.Textarea(attrs={"rows": rows})
        super().__init__(widget=area, required=False, max_length=MAX_LINES, **options)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        return [line.strip() for line in str(super().clean(value)).splitlines() if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), "\n".join((data or "").splitlines()))


class ObjectField(forms.JSONField):
    """A JSON object, or None."""

    def __init__(self, *, rows: int = 4, **options: Any) -> None:
        super().__init__(widget=code_area(rows), required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str) or value in self.empty_values:
            return super().to_python(value)
        try:
            return read_json(value)
        except InvalidInputError as error:
            raise forms.ValidationError(str(error)) from None
        except ValueError:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)

    def clean(self, value: Any) -> Any:
        json_object = super().clean(value)
        if json_object is not None and not isinstance(json_object, dict):
            raise forms.ValidationError(gettext('Enter a JSON object like {"name": "value"}.'))
        return json_object or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(initial or None, data)


class VariablesWidget(forms.Widget):
    """A table with a row for each variable, and blank rows. Clearing the name removes a row."""

    template_name = "ravi/admin/agent_variables.html"
    use_fieldset = True
    COLUMNS = ("name", "default", "description", "sample")

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        blank: list[dict[str, Any]] = [{} for _ in range(BLANK_ROWS)]
        rows = [{"number": number, **row} for number, row in enumerate([*(value or []), *blank])]
        return super().get_context(name, value, attrs) | {"rows": rows}

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> list[dict[str, Any]]:
        rows = []
        for number in range(MAX_ROWS):
            if f"{name}-{number}-name" not in data:
                break
            row = {column: data.get(f"{name}-{number}-{column}", "").strip() for column in self.COLUMNS}
            if any(row.values()):
                rows.append({**row, "required": f"{name}-{number}-required" in data})
        return rows

    def value_omitted_from_data(self, data: Mapping[str, Any], files: Any, name: str) -> bool:
        return f"{name}-0-name" not in data

    def id_for_label(self, id_: str) -> str:
        return f"{id_}-0-name" if id_ else ""


class VariablesField(forms.Field):
    """Rows of {name, default, description, required, sample}; `required` is a bool, all else is text."""

    widget = VariablesWidget

    def clean(self, value: Any) -> list[dict[str, Any]]:
        seen = set()
        for row in value or []:
            if not row["name"]:
                raise forms.ValidationError(gettext("A variable has no name. Enter a name, or clear the whole row."))
            if row["name"] in seen:
                raise forms.ValidationError(gettext("%(name)s appears twice."), params={"name": row["name"]})
            seen.add(row["name"])
        return value or []

    def has_changed(self, initial: Any, data: Any) -> bool:
        return declared(initial or []) != declared(data or [])


def rows_of(variables: Any) -> list[dict[str, Any]]:
    """The table's rows for a spec's variables."""
    declarations = variables if isinstance(variables, dict) else {}
    return [
        {
            "name": name,
            "default": to_text(declaration.get("default")),
            "description": declaration.get("description", ""),
            "required": bool(declaration.get("required")),
            "sample": "",
        }
        for name, declaration in declarations.items()
        if isinstance(declaration, dict)
    ]


def declared(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A spec's variables from the table's rows."""
    variables = {}
    for row in rows:
        entry = {"description": row["description"], "required": row["required"] or None}
        if row["default"]:
            entry["default"] = from_text(row["default"])
        variables[row["name"]] = {key: value for key, value in entry.items() if value not in (None, "")}
    return variables


def samples(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["name"]: from_text(row["sample"]) for row in rows if row["sample"]}


def from_text(text: str) -> Any:
    """Valid JSON is read as such (3, true, ["a"], {"a": 1}, "quoted text"); everything else is text."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    if value is None or (isinstance(value, int | float) and json.dumps(value) != text):
        return text  # as numbers, 007 and 1.50 would lose digits
    return value


def to_text(value: Any) -> str:
    """The text that `from_text` reads the value from."""
    if value is None:
        return ""
    if isinstance(value, str) and from_text(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


class DescribedChoices(forms.CheckboxSelectMultiple):
    """Checkboxes, each with a note. `notes`: value → {"label", "risk", "effect", "text"}."""

    template_name = "ravi/admin/agent_choices.html"
    notes: Mapping[str, Mapping[str, str]] = {}
    empty_words: Any = _("None available.")
    label = ""

    def create_option(self, name: str, value: Any, *args: Any, **options: Any) -> dict[str, Any]:
        option = super().create_option(name, value, *args, **options)
        return option | {"note": self.notes.get(str(value), {"missing": True})}

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        context["widget"] |= {"empty_words": self.empty_words, "label": self.label}
        return context


class DescribedField(forms.MultipleChoiceField):
    """Several of the known values. A chosen value that is no longer known is still shown; validation refuses it."""

    widget = DescribedChoices

    def offer(
        self, notes: Mapping[str, Mapping[str, str]], chosen: Iterable[str], label: str, empty_words: str
    ) -> None:
        gone = [value for value in chosen if value not in notes]
        self.choices = [(value, value) for value in [*notes, *gone]]
        self.widget.notes = notes
        self.widget.label, self.widget.empty_words = label, empty_words


class ApproversField(forms.CharField):
    """A spec's `approvers`: an address, or JSON: addresses with times, or either by tool name, risk or "*"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=code_area(3), required=False, max_length=MAX_LINES, **options)

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        text = str(super().clean(value)).strip()
        if not text:
            return None
        try:
            parsed = Approvers.of(read_json(text) if text[0] in '{["' else text)
        except InvalidInputError as error:
            raise ValidationError(str(error)) from error
        except ValueError:
            raise ValidationError(gettext('Enter an address (group:finance) or JSON ({"pay": "staff"}).')) from None
        if gone := missing(parsed):
            raise ValidationError(
                gettext("No such user, group or permission: %(names)s. Create it first, or enter another address."),
                params={"names": ", ".join(gone)},
            )
        return parsed.to_json()

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
    if not site_rules.holders_are_known():  # a backend of the site may grant permissions that have no rows
        return names
    which = Q()
    for name in names:
        app, _, codename = name.partition(".")
        which |= Q(content_type__app_label=app, codename=codename)
    rows = Permission.objects.filter(which).values_list("content_type__app_label", "codename")
    return [f"{app}.{codename}" for app, codename in rows]


_KNOWN = {"user": _users, "group": _groups, "permission": _permissions}
