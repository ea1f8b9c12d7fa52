"""Texts about a request: its title, its address, its next step, its outcome. They have no hidden characters."""

from __future__ import annotations

import json
from typing import Any

from django.utils import timezone
from django.utils.translation import get_language, gettext as _, gettext_lazy, ngettext

from ravi_django.kernel.visible import visible
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.models.names import word
from ravi_django.pages import formats
from ravi_django.people.top_ups import is_top_up

LINE = 160  # characters
DONE = {
    "approve": gettext_lazy("approved"),
    "deny": gettext_lazy("rejected"),
    "edit": gettext_lazy("approved with changes"),
    "skip": gettext_lazy("skipped"),
    "cancel": gettext_lazy("cancelled"),
    "answer": gettext_lazy("answered"),
    "happened": gettext_lazy("it happened"),
    "run_again": gettext_lazy("run again"),
    "fail": gettext_lazy("failed"),
    "expired": gettext_lazy("expired"),
    "cancelled": gettext_lazy("cancelled"),
}


def script_texts() -> str:
    """The texts of `ravi/requests.js` in the reader's language, as JSON by the English text. Texts with a number have
    the forms for 1, 2 and 5. Empty for English."""
    texts = {
        "%s has answered this request.": _("%s has answered this request."),
        "This request has been closed.": _("This request has been closed."),
        "Show the outcome": _("Show the outcome"),
        "This request has changed since you opened it.": _("This request has changed since you opened it."),
        "Show the current version": _("Show the current version"),
        "Reload the list": _("Reload the list"),
    }
    counted = {
        "%s requests to answer": {n: ngettext("%s request to answer", "%s requests to answer", n) for n in (1, 2, 5)},
        "%s new requests.": {n: ngettext("%s new request.", "%s new requests.", n) for n in (1, 2, 5)},
    }
    if all(english == translated for english, translated in texts.items()):
        return ""
    return json.dumps({"language": get_language(), **texts, **counted}, ensure_ascii=False)


def title_of(row: HumanRequest) -> str:
    return visible(_title(row))


def _title(row: HumanRequest) -> str:
    match row.kind:
        case HumanRequest.Kind.APPROVAL if is_top_up(row):
            return _("Raise the budget?")
        case HumanRequest.Kind.APPROVAL:
            return _("May %(agent)s call %(tool)s?") % {"agent": row.run.agent, "tool": row.tool}
        case HumanRequest.Kind.UNCERTAIN:
            return _("Was %(tool)s executed?") % {"tool": row.tool}
        case HumanRequest.Kind.INPUT:
            return _("%(name)s needs input") % {"name": row.tool or row.run.agent}
        case _:
            return _("Question from %(agent)s") % {"agent": row.run.agent}


def one_line(row: HumanRequest) -> str:
    """The call's arguments, or the text of a request that is not about a call."""
    if row.kind == HumanRequest.Kind.APPROVAL and not is_top_up(row) and isinstance(row.arguments, dict):
        return _call(row.arguments)
    return formats.snippet(row.text, LINE)


def _call(arguments: Any) -> str:
    items = arguments.items() if isinstance(arguments, dict) else ()
    return formats.snippet(", ".join(f"{name}={value}" for name, value in items), LINE)


def name_of(row: HumanRequest) -> str:
    """The name of a decided request: the tool with the decided arguments, or the text."""
    if row.kind in (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT):
        return formats.snippet(row.text, LINE)
    answer = row.answer if isinstance(row.answer, dict) else {}
    arguments = _call(answer.get("arguments") or row.arguments)
    tool = _("more budget") if is_top_up(row) else visible(row.tool)
    return f"{tool} ({arguments})" if arguments else tool


def event_of(name: str, detail: dict[str, Any]) -> str:
    """An event of the audit log about a request: "approved send_invoice(amount=100)"."""
    answer: dict[str, Any] = detail.get("answer") or {}
    done = DONE.get(str(answer.get("outcome") or answer.get("action") or ""), word(name))
    arguments = _call(answer.get("arguments") or detail.get("arguments"))
    call = str(detail.get("tool") or "")
    return visible(f"{done} {call}({arguments})" if call and arguments else f"{done} {call}".strip())


def decision_of(row: HumanRequest) -> str:
    """The decision or the status, in a word or two."""
    answer = row.answer if isinstance(row.answer, dict) else {}
    return str(DONE.get(str(answer.get("outcome") or answer.get("action") or row.status), row.status))


def why_not_now(row: HumanRequest) -> str:
    """Why a pending request accepts nobody's answer now; empty if it does."""
    now = timezone.now()
    if row.run.status in TERMINAL:
        text = _("The run is already %(status)s. An answer would have no effect.")
        return text % {"status": word(row.run.status)}
    if row.expires_at is not None and row.expires_at <= now:
        text = _("The time to answer ended at %(at)s. The request will be closed.")
        return text % {"at": formats.moment(row.expires_at)}
    if row.not_before is not None and row.not_before > now:
        text = _("You can decide from %(at)s on. Until then, the worker may still be executing the call.")
        return text % {"at": formats.moment(row.not_before)}
    return ""


def who(row: HumanRequest) -> str:
    """The present address."""
    return address(row.to, row)


def address(to: str, row: HumanRequest) -> str:
    kind, name = visible(to).partition(":")[::2]
    match kind:
        case "owner":
            return visible(_("the run's owner, %(name)s") % {"name": row.owner}) if row.owner else _("staff")
        case "user":
            return name
        case "group":
            return _("group %(name)s") % {"name": name}
        case "permission":
            return _("everyone with the permission %(permission)s") % {"permission": name}
        case _:
            return _("staff")


def next_of(row: HumanRequest) -> str:
    """The next automatic step of a pending request, in a few words."""
    if row.escalates_at is not None:
        return _("escalates to %(next)s at %(at)s") % {"next": next_step(row), "at": formats.moment(row.escalates_at)}
    if row.expires_at is not None:
        return _("expires %(at)s") % {"at": formats.moment(row.expires_at)}
    return _("no time limit")


def next_step(row: HumanRequest) -> str:
    """The address of the next escalation."""
    if row.escalates_at is None:
        return ""
    step: dict[str, Any] = next(iter((row.steps or [])[row.level + 1 :]), {})
    return address(str(step.get("to", "")), row)


def steps_of(row: HumanRequest) -> list[dict[str, Any]]:
    """The addresses in their order: `who`, `within`, and `now` for the present one."""
    return [
        {
            "who": address(str(step.get("to", "")), row),
            "within": "" if not step.get("within") else formats.duration_s(step["within"]),
            "now": index == row.level and row.status == HumanRequest.Status.PENDING,
        }
        for index, step in enumerate(row.steps or [])
        if isinstance(step, dict)
    ]


def end_of(row: HumanRequest) -> str:
    """What happens if nobody answers in time."""
    if row.expires_at is None:
        return _("There is no time limit.")
    ends = {
        HumanRequest.Kind.APPROVAL: _("the request is rejected"),
        HumanRequest.Kind.UNCERTAIN: _("the request is closed without a decision"),
    }.get(HumanRequest.Kind(row.kind), _("the request is closed, and the agent continues without an answer"))
    return _("If nobody answers by %(at)s, %(end)s.") % {"at": formats.moment(row.expires_at), "end": ends}


def answered_by(row: HumanRequest) -> str:
    """The user's name, also after the user was deleted; the operator has none."""
    answer = row.answer if isinstance(row.answer, dict) else {}
    if row.answered_by is not None:
        return visible(str(row.answered_by))
    return visible(str(answer.get("by") or _("an operator"))) if answer else ""


def answer_text(answer: Any) -> str:
    """An answer as one line."""
    if not isinstance(answer, dict):
        return ""
    parts = {**(answer.get("values") or {}), **(answer.get("arguments") or {})}  # of several questions; new limits
    values = ", ".join(f"{name}: {value}" for name, value in parts.items())
    texts = [word(answer.get("outcome") or ""), answer.get("text"), values, answer.get("reason")]
    return visible(": ".join(str(part) for part in (word(answer.get("action") or ""), *texts) if part))
