"""Form fields for the plain arguments of a tool call, made from the tool's JSON schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from ravi_django.kernel.visible import hides, visible
from ravi_django.models import HumanRequest

MOST = 30  # fields; the other arguments are edited as JSON
OPTIONS = 100  # of an enum
DIGITS = 60  # characters of a number
LINE = 80  # characters of a text that has one line
ABSENT: Any = object()  # no such argument

_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True)
class Shape:
    """kind: string, number, integer, boolean or enum."""

    kind: str
    options: tuple[Any, ...] = ()
    takes_none: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. original: its value in the call, or ABSENT."""

    field: str
    name: str
    shape: Shape
    help: str
    is_required: bool
    original: Any

    @property
    def initial(self) -> str:
        if self.original is ABSENT or self.original is None:
            return ""
        if self.shape.kind == "enum":
            return str(_option_index(self.original, self.shape.options))
        return self.original if isinstance(self.original, str) else json.dumps(self.original)

    @property
    def may_be_empty(self) -> bool:
        return not self.is_required or self.shape.takes_none or self.shape.kind == "string"

    def form_field(self) -> forms.Field:
        options: Any = {"label": visible(self.name), "initial": self.initial, "help_text": self.help, "required": False}
        if self.shape.kind in ("enum", "boolean"):
            return forms.ChoiceField(choices=self._choices(), **options)
        if self.shape.kind == "string":
            is_long = "\n" in self.initial or len(self.initial) > LINE
            widget = forms.Textarea(attrs={"rows": 3, "cols": 80}) if is_long else forms.TextInput(attrs={"size": 60})
            return forms.CharField(strip=False, widget=widget, **options)
        mode = "numeric" if self.shape.kind == "integer" else "decimal"
        widget = forms.TextInput(attrs={"size": 20, "inputmode": mode, "class": "ravi-number"})
        return forms.CharField(max_length=DIGITS, widget=widget, **options)

    def read(self, typed: str) -> Any:
        """The value of the typed text. Raises ValueError with a message for the person."""
        if typed == self.initial:
            return self.original
        if typed == "" and (self.shape.kind != "string" or self.original is ABSENT or self.original is None):
            return self._nothing()
        match self.shape.kind:
            case "string":
                return typed
            case "boolean":
                return typed == "true"
            case "enum":
                return self.shape.options[int(typed)]
            case "integer":
                if not _INTEGER.match(typed):
                    raise ValueError(_("Enter a whole number, digits only."))
                return int(typed)
            case _:
                return _number(typed)

    def _nothing(self) -> Any:
        if self.shape.takes_none and (self.is_required or self.original is not ABSENT):
            return None
        if not self.is_required:
            return ABSENT
        messages = {"number": _("Enter a number."), "integer": _("Enter a whole number.")}
        raise ValueError(messages.get(self.shape.kind, _("Choose an option.")))

    def _choices(self) -> list[tuple[str, str]]:
        if self.shape.kind == "boolean":
            options = [("true", _("yes")), ("false", _("no"))]
        else:
            options = [
                (str(index), visible(option if isinstance(option, str) else json.dumps(option)))
                for index, option in enumerate(self.shape.options)
                if option is not None
            ]
        return [("", _("not given")), *options] if self.may_be_empty or self.initial == "" else options


def fields_of(asked: HumanRequest) -> list[Argument]:
    """The schema's plain arguments whose value in the call a field can hold unchanged."""
    if not isinstance(asked.arguments, Mapping):
        return []
    schema, properties = _schema_of(asked)
    required = schema.get("required")
    fields: list[Argument] = []
    for index, (name, declared) in enumerate(properties.items()):
        shape, original = _shape(declared), asked.arguments.get(name, ABSENT)
        if shape is not None and _fits(shape, original) and len(fields) < MOST:
            help_text = visible(str(declared.get("description") or ""))
            is_required = isinstance(required, list) and name in required
            fields.append(Argument(f"arg_{index}", name, shape, help_text, is_required, original))
    return fields


def needs_json(asked: HumanRequest, fields: list[Argument]) -> bool:
    """Whether there is an argument without a field."""
    _, properties = _schema_of(asked)
    known = {*(asked.arguments or {}), *properties}
    return not fields or bool(known - {argument.name for argument in fields})


def _schema_of(asked: HumanRequest) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The schema of the arguments and its properties; empty for anything else than a JSON schema."""
    schema: Any = asked.about.get("schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return (schema, properties) if isinstance(properties, Mapping) else ({}, {})


def _shape(declared: Any) -> Shape | None:
    if not isinstance(declared, Mapping):
        return None
    some = declared.get("anyOf")
    if isinstance(some, list) and "type" not in declared and "enum" not in declared:
        others = [one for one in some if one != _NULL]
        shape = _shape(others[0]) if len(others) == 1 and len(some) == 2 else None
        return None if shape is None else Shape(shape.kind, shape.options, takes_none=True)
    options = declared.get("enum")
    if isinstance(options, list):
        is_plain = 0 < len(options) <= OPTIONS and all(
            one is None or isinstance(one, str | int | float) for one in options
        )
        return Shape("enum", tuple(options), None in options) if is_plain else None
    kinds = declared.get("type")
    several = kinds if isinstance(kinds, list) else [kinds]
    plain = [kind for kind in several if kind != "null"]
    if len(plain) != 1 or plain[0] not in ("string", "number", "integer", "boolean"):
        return None
    return Shape(str(plain[0]), (), "null" in several)


def _fits(shape: Shape, original: Any) -> bool:
    if original is ABSENT or (original is None and shape.takes_none):
        return True
    match shape.kind:
        case "string":
            return isinstance(original, str) and not hides(original)
        case "boolean":
            return isinstance(original, bool)
        case "enum":
            return original is not None and _option_index(original, shape.options) >= 0
        case "integer":
            return isinstance(original, int) and not isinstance(original, bool) and abs(original) < 10**DIGITS // 10
        case _:
            is_number = isinstance(original, int | float) and not isinstance(original, bool)
            return is_number and (not isinstance(original, int) or abs(original) < 10**DIGITS // 10)


def _option_index(original: Any, options: tuple[Any, ...]) -> int:
    """Its index among the options, by type too: True is not 1. -1 if it is none of them."""
    return next((n for n, one in enumerate(options) if type(one) is type(original) and one == original), -1)


def _number(typed: str) -> int | float:
    if _INTEGER.match(typed):
        return int(typed)
    if not _NUMBER.match(typed) or not math.isfinite(float(typed)):
        raise ValueError(_("Enter a number like 1250.00."))
    return float(typed)
