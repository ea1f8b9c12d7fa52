"""The form of a decision: fields and buttons by the request's kind, and the answer that they give.

After a refusal the form still has the typed texts. A button that would ignore a typed text is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from django import forms
from django.utils.translation import gettext as _, gettext_lazy

from ravi_django.kernel.json_values import check_cost, check_storable
from ravi_django.kernel.visible import visible
from ravi_django.models import HumanRequest
from ravi_django.models.names import word
from ravi_django.pages.argument_fields import ABSENT, Argument, fields_of, needs_json
from ravi_django.pages.buttons import Button, buttons_of, choices_of
from ravi_django.pages.texts import why_not_now
from ravi_django.people.answers import MAX_TEXT, OUTCOMES
from ravi_django.people.top_ups import is_top_up

Kind = HumanRequest.Kind
_CHANGES = ("arg_", "arguments")  # names of the arguments' fields begin so


class DecisionForm(forms.Form):
    """`given()` returns the arguments of `answers.answer`, or None if the form has `errors`."""

    version = forms.RegexField(
        r"\A[0-9]{1,9}\Z",
        widget=forms.HiddenInput,
        error_messages={"required": gettext_lazy("The form has no version. Reload the page.")},
    )
    use_required_attribute = False  # each button needs other fields

    def __init__(self, asked: HumanRequest, data: Any = None, prefix: str | None = None) -> None:
        super().__init__(data, initial={"version": asked.version}, prefix=prefix)
        self.asked = asked
        self.top_up = is_top_up(asked)
        self.pressed = str(data.get("action", "")) if data is not None else ""
        self.arguments = fields_of(asked) if asked.kind == Kind.APPROVAL else []
        self.fields |= self._fields()
        for name, field in self.fields.items():
            field.widget.attrs.setdefault("aria-describedby", f"{self.add_prefix(name)}-note")

    # ------------------------------------------------------------------------------------------------ the fields

    def _fields(self) -> dict[str, forms.Field]:
        match self.asked.kind:
            case Kind.UNCERTAIN:
                fields: dict[str, forms.Field] = {
                    "result": _text(_("Result, if it happened"), 3, _("What the tool would have returned."))
                }
            case Kind.APPROVAL:
                fields = self._approval()
            case _:
                fields = self._answers()
        is_read = self.asked.kind == Kind.APPROVAL and not self.top_up
        why = _("Stored permanently with your name.") + (" " + _("The model reads it.") if is_read else "")
        return {**fields, "reason": _text(_("Reason"), 2, why)}

    def _approval(self) -> dict[str, forms.Field]:
        fields = {argument.field: argument.form_field() for argument in self.arguments}
        if needs_json(self.asked, self.arguments):
            label = _("Other arguments") if fields else _("Your arguments")
            rest = _text(label, 6, _("JSON. Press “Approve with changes” to use it."))
            rest.max_length, rest.validators = None, []  # the service checks the length
            rest.initial = pretty(self._rest())
            rest.widget.attrs |= {"class": "ravi-code", "spellcheck": "false"}
            fields["arguments"] = rest
        if self.top_up:
            return fields
        sticky = forms.BooleanField(
            label=_("Decide the same for this tool for the rest of this session"),
            required=False,
            help_text=_("Up to risk “%(risk)s”. Works with Approve and with Reject.")
            % {"risk": word(self.asked.risk or "safe")},
        )
        return {**fields, "sticky": sticky}

    def _rest(self) -> Any:
        """The call's arguments without a field of their own."""
        if not self.arguments:
            return self.asked.arguments
        named = {argument.name for argument in self.arguments}
        return {name: value for name, value in (self.asked.arguments or {}).items() if name not in named}

    def _answers(self) -> dict[str, forms.Field]:
        questions = self.asked.about.get("questions")
        if isinstance(questions, dict) and questions:
            self.keys = list(questions)
            return {f"value_{index}": _text(visible(str(asked)), 2) for index, asked in enumerate(questions.values())}
        if self.asked.choices and not self.asked.about.get("free_text", True):
            return {}
        label = _("Or enter your own answer") if self.asked.choices else _("Your answer")
        return {"text": _text(label, 4)}

    # ----------------------------------------------------------------------------------------------- the buttons

    @property
    def choices(self) -> list[Button]:
        return choices_of(self.asked)

    @property
    def buttons(self) -> list[Button]:
        unused = set() if "text" in self.fields or "value_0" in self.fields else {"answer"}  # the choices answer
        return [button for button in buttons_of(self.asked) if button.value not in unused]

    @property
    def first_buttons(self) -> list[Button]:
        return [button for button in self.buttons if not button.is_further]

    @property
    def further_buttons(self) -> list[Button]:
        return [button for button in self.buttons if button.is_further]

    @property
    def blocked(self) -> str:
        """Why no answer is accepted now."""
        return why_not_now(self.asked)

    @property
    def answers(self) -> list[forms.BoundField]:
        """The fields of the answer."""
        others = ("reason", "sticky", "version")
        return [bound for bound in self if bound.name not in others and not bound.name.startswith(_CHANGES)]

    @property
    def changes(self) -> list[forms.BoundField]:
        """The fields that change the arguments."""
        return [bound for bound in self if bound.name.startswith(_CHANGES)]

    @property
    def is_changed(self) -> bool:
        return self.is_bound and (
            self.pressed == "edit" or any(bound.errors or _differs(bound) for bound in self.changes)
        )

    # ------------------------------------------------------------------------------------------------- the answer

    def decision(self) -> dict[str, Any] | None:
        if not self.is_valid():
            return None
        decision = self._decision(self.pressed)
        if self.errors or decision is None:
            return None
        return {**decision, "reason": self._typed("reason"), "version": int(self.cleaned_data["version"])}

    def _decision(self, pressed: str) -> dict[str, Any] | None:
        if pressed.startswith("choose:"):
            return self._choice(pressed.removeprefix("choose:"))
        if pressed not in {button.value for button in self.buttons}:
            self.add_error(None, _("Nothing was decided. Press one of the buttons."))
            return None
        if pressed in OUTCOMES:
            return self._outcome(pressed)
        if self.asked.kind == Kind.APPROVAL:
            return self._approved(pressed)
        if "value_0" in self.fields:
            values = {key: self._typed(f"value_{index}") for index, key in enumerate(self.keys)}
            if pressed != "answer":  # the service refuses values that do not belong to the action
                return {"action": pressed, **({"values": values} if any(values.values()) else {})}
            for index, value in enumerate(values.values()):
                if not value.strip():
                    self.add_error(f"value_{index}", _("Answer each question, or skip or cancel the request."))
            return {"action": "answer", "values": values}
        return {"action": pressed, "text": self._typed("text")}

    def _choice(self, index: str) -> dict[str, Any] | None:
        choices = self.asked.choices or ()
        is_index = bool(self.choices) and index in map(str, range(len(choices)))
        if not is_index:
            self.add_error(None, _("Nothing was decided. Press one of the choices."))
            return None
        if self._typed("text").strip():
            self.add_error("text", _("You entered an answer and pressed a choice. Clear this field, or press Answer."))
            return None
        return {"action": "answer", "text": choices[int(index)]}

    def _outcome(self, outcome: str) -> dict[str, Any] | None:
        result = self._typed("result")
        if outcome != "happened" and result.strip():
            self.add_error("result", _("A result belongs to “It happened”. Clear this field, or press that button."))
            return None
        return {"action": "resolve", "outcome": outcome, "result": result if outcome == "happened" else None}

    def _approved(self, pressed: str) -> dict[str, Any] | None:
        decision: dict[str, Any] = {"action": pressed}
        if not self.top_up:
            decision["sticky"] = self.cleaned_data.get("sticky", False)
        if pressed not in ("approve", "edit"):
            return decision
        arguments = self._arguments()
        if self.errors:
            return None
        field = "arguments" if "arguments" in self.fields else None
        if pressed == "approve":
            if arguments != self.asked.arguments:
                label = next(button.label for button in self.buttons if button.value == "edit")
                self.add_error(
                    field, _("You changed this. Press “%(label)s”, or restore the original.") % {"label": label}
                )
            return decision
        if arguments == self.asked.arguments:
            self.add_error(field, _("Nothing was changed. Change something, or approve it as it is."))
        return {**decision, "arguments": arguments}

    def _arguments(self) -> Any:
        """The typed arguments; those that were not posted keep their values."""
        rest = self._other_arguments()
        named = {argument.name: self._argument(argument) for argument in self.arguments}
        if not named or self.errors:
            return rest
        if not isinstance(rest, dict):
            self.add_error("arguments", _("Enter a JSON object: {…}."))
            return None
        if twice := [name for name in rest if name in named]:
            self.add_error("arguments", _("%(name)s has its own field. Change it there.") % {"name": visible(twice[0])})
            return None
        return {name: value for name, value in {**named, **rest}.items() if value is not ABSENT}

    def _argument(self, argument: Argument) -> Any:
        if self.add_prefix(argument.field) not in self.data:
            return argument.original
        try:
            typed = self._typed(argument.field)
            return argument.read(typed if argument.shape.kind == "string" else typed.strip())
        except ValueError as error:
            self.add_error(argument.field, str(error))
            return None

    def _other_arguments(self) -> Any:
        if "arguments" not in self.fields or self.add_prefix("arguments") not in self.data:
            return self._rest()
        try:
            return read_json(self._typed("arguments"))
        except ValueError as error:
            self.add_error("arguments", _("Invalid JSON: %(error)s") % {"error": error})
            return None

    def _typed(self, name: str) -> str:
        return str(self.cleaned_data.get(name) or "").replace("\r\n", "\n")

    def refuse(self, field: str | None, message: str) -> None:
        """Show an error of the service at its field."""
        first = {"values": "value_0"}.get(field or "", field)
        self.add_error(first if first in self.fields else None, visible(message))

    def typed(self) -> list[tuple[str, str]]:
        """Labels and texts of the changed fields, so that they are not lost after a late answer."""
        changed = [bound for bound in self if not bound.is_hidden and bound.name != "sticky" and _differs(bound)]
        return [(str(bound.label), visible(_text_of(bound))) for bound in changed]


def now_at(form: forms.Form, version: int) -> None:
    """Set the form's version: the next button answers the version that the person sees now."""
    form.data = form.data.copy()  # type: ignore[attr-defined]
    form.data[form.add_prefix("version")] = str(version)  # type: ignore[index]


def _differs(bound: forms.BoundField) -> bool:
    value = str(bound.value() or "").replace("\r\n", "\n")
    return bool(value.strip()) and value != str(bound.initial or "")


def _text_of(bound: forms.BoundField) -> str:
    value = str(bound.value()).replace("\r\n", "\n")
    return str(dict(getattr(bound.field, "choices", ())).get(value, value))


def _text(label: str, rows: int, help_text: str = "") -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        strip=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea({"rows": rows, "cols": 80}),
        help_text=help_text,
    )


def pretty(arguments: Any) -> str:
    """JSON without hidden characters, with the same meaning."""
    return visible(json.dumps({} if arguments is None else arguments, indent=2, ensure_ascii=False))


def read_json(text: str) -> Any:
    """Strict JSON: no repeated key, no NaN. Raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
            raise ValueError(_("%(name)s appears twice") % {"name": repr(twice)})
        return values

    def never(name: str) -> Any:
        raise ValueError(_("%(name)s is not a valid number") % {"name": name})

    check_cost(text)
    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=never)
    except RecursionError:
        raise ValueError(_("it is nested too deeply")) from None
    check_storable(value)
    return value
