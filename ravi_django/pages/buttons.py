"""The buttons of a request's page, by its kind, with their effects."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ravi_django.kernel.visible import visible
from ravi_django.models import HumanRequest
from ravi_django.people.answers import ACTIONS
from ravi_django.people.top_ups import is_top_up

Kind = HumanRequest.Kind


@dataclass(frozen=True, slots=True)
class Button:
    """value: posted as `action`. key: the browser's access key; with JavaScript the key alone moves to the button.
    what: the effect. is_further: shown after the others."""

    value: str
    label: str | Promise
    key: str
    what: str | Promise
    css: str = ""
    is_further: bool = False


_APPROVAL = {
    "approve": Button("approve", _("Approve"), "a", _("The tool is called with these arguments."), "default"),
    "deny": Button("deny", _("Reject"), "r", _("The tool is not called. The model reads your reason."), "ravi-deny"),
    "edit": Button("edit", _("Approve with changes"), "e", _("The tool is called with your arguments.")),
    "skip": Button(
        "skip", _("Skip"), "s", _("The tool is not called. The agent continues without it."), is_further=True
    ),
    "cancel": Button(
        "cancel",
        _("Cancel"),
        "c",
        _("The tool is not called. The agent learns that the request was cancelled."),
        is_further=True,
    ),
}
_TOP_UP = {
    "approve": Button(
        "approve",
        _("Approve these limits"),
        "a",
        _("All its runs continue with the suggested limits."),
        "default",
    ),
    "deny": Button("deny", _("Reject"), "r", _("The run ends because its budget is used up."), "ravi-deny"),
    "edit": Button("edit", _("Approve my limits"), "e", _("All its runs continue with the limits that you entered.")),
}
_QUESTION = {
    "answer": Button("answer", _("Answer"), "a", _("The agent continues with your answer."), "default"),
    "skip": Button("skip", _("Skip"), "s", _("The agent continues without an answer.")),
    "cancel": Button("cancel", _("Cancel"), "c", _("The agent learns that you cancelled the request.")),
}
_UNCERTAIN = {
    "happened": Button(
        "happened", _("It happened"), "h", _("The agent continues with the result that you enter."), "default"
    ),
    "run_again": Button("run_again", _("Run it again"), "r", _("It did not happen. The tool is called again.")),
    "fail": Button("fail", _("Fail the run"), "f", _("The run fails."), "ravi-deny"),
}


def buttons_of(asked: HumanRequest) -> list[Button]:
    """The buttons of the actions that are allowed for the request."""
    if asked.kind == Kind.UNCERTAIN:
        return list(_UNCERTAIN.values())
    known = _TOP_UP if is_top_up(asked) else _APPROVAL if asked.kind == Kind.APPROVAL else _QUESTION
    return [button for button in known.values() if button.value in ACTIONS[asked.kind]]


def choices_of(asked: HumanRequest) -> list[Button]:
    """A button for each choice."""
    if asked.kind not in (Kind.QUESTION, Kind.INPUT) or asked.about.get("questions"):
        return []
    return [
        Button(f"choose:{index}", visible(str(choice)), str(index + 1) if index < 9 else "", "")
        for index, choice in enumerate(asked.choices or ())
    ]
