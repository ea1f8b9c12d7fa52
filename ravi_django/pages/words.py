"""A request in words: what is asked in a line, of whom, what comes next, and what was decided. Nothing is hidden in
them."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from ravi_django.kernel.visible import visible
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.pages import show
from ravi_django.runtime.store import TOP_UP

LINE = 160  # characters
DONE = {
    "approve": "approved",
    "deny": "denied",
    "edit": "approved with changes",
    "skip": "skipped",
    "cancel": "called off",
    "answer": "answered",
    "happened": "it happened",
    "run_again": "run again",
    "fail": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}


def is_top_up(row: HumanRequest) -> bool:
    return row.kind == HumanRequest.Kind.APPROVAL and row.tool == TOP_UP


def title_of(row: HumanRequest) -> str:
    return visible(_title(row))


def _title(row: HumanRequest) -> str:
    match row.kind:
        case HumanRequest.Kind.APPROVAL if is_top_up(row):
            return "More budget?"
        case HumanRequest.Kind.APPROVAL:
            return f"May {row.run.agent} call {row.tool}?"
        case HumanRequest.Kind.UNCERTAIN:
            return f"What became of {row.tool}?"
        case HumanRequest.Kind.INPUT:
            return f"{row.tool or row.run.agent} needs an input"
        case _:
            return f"{row.run.agent} asks"


def one_line(row: HumanRequest) -> str:
    """The call's arguments where a call is asked about, else the text."""
    if row.kind == HumanRequest.Kind.APPROVAL and not is_top_up(row) and isinstance(row.arguments, dict):
        return _call(row.arguments)
    return show.snippet(row.text, LINE)


def _call(arguments: Any) -> str:
    found = arguments.items() if isinstance(arguments, dict) else ()
    return show.snippet(", ".join(f"{name}={value}" for name, value in found), LINE)


def name_of(row: HumanRequest) -> str:
    """Which one, to who has just decided it: a call with its arguments, those that it is made with now, else the
    text."""
    if row.kind in (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT):
        return show.snippet(row.text, LINE)
    answer = row.answer if isinstance(row.answer, dict) else {}
    arguments = _call(answer.get("arguments") or row.arguments)
    tool = "more budget" if is_top_up(row) else visible(row.tool)
    return f"{tool} ({arguments})" if arguments else tool


def decision_of(row: HumanRequest) -> str:
    """What was decided, or became of it, in a word or two."""
    answer = row.answer if isinstance(row.answer, dict) else {}
    return DONE.get(str(answer.get("outcome") or answer.get("action") or row.status), str(row.status))


def why_not_now(row: HumanRequest) -> str:
    """Why no answer to a pending request is taken at present, whoever gives it; empty when one is."""
    now = timezone.now()
    if row.run.status in TERMINAL:
        return f"The run is {row.run.status} already: nobody would read the answer."
    if row.expires_at is not None and row.expires_at <= now:
        return f"The time for this was over at {show.moment(row.expires_at)}: it is being closed."
    if row.not_before is not None and row.not_before > now:
        return (
            f"It can be decided from {show.moment(row.not_before)} on: until then the worker that began it may still "
            "be at it."
        )
    return ""


def who(row: HumanRequest) -> str:
    """Whom it is addressed to now."""
    return address(row.to, row)


def address(to: str, row: HumanRequest) -> str:
    kind, _, name = visible(to).partition(":")
    match kind:
        case "owner":
            return visible(f"the run's owner, {row.owner}") if row.owner else "staff"
        case "user":
            return name
        case "group":
            return f"group {name}"
        case "permission":
            return f"whoever may {name}"
        case _:
            return "staff"


def next_of(row: HumanRequest) -> str:
    """The next thing that happens to a pending request by itself, in a few words."""
    if row.escalates_at is not None:
        return f"asks {next_step(row)} at {show.moment(row.escalates_at)}"
    if row.expires_at is not None:
        return f"expires {show.moment(row.expires_at)}"
    return "waits"


def next_step(row: HumanRequest) -> str:
    """Whom it goes to when its present step's time is over."""
    return address(_step(row, row.level + 1), row) if row.escalates_at is not None else ""


def steps_of(row: HumanRequest) -> list[dict[str, Any]]:
    """All who are asked in their order: `who`, `within`, and whether they are asked now."""
    return [
        {
            "who": address(str(step.get("to", "")), row),
            "within": "" if not step.get("within") else show.duration_s(step["within"]),
            "now": place == row.level and row.status == HumanRequest.Status.PENDING,
        }
        for place, step in enumerate(row.steps or [])
        if isinstance(step, dict)
    ]


def end_of(row: HumanRequest) -> str:
    """What comes of it when nobody answers."""
    if row.expires_at is None:
        return "If nobody answers, it waits."
    ends = {
        HumanRequest.Kind.APPROVAL: "it is denied",
        HumanRequest.Kind.UNCERTAIN: "it is closed undecided",
    }.get(HumanRequest.Kind(row.kind), "it is closed, and the agent goes on without an answer")
    return f"If nobody answers until {show.moment(row.expires_at)}: {ends}."


def _step(row: HumanRequest, place: int) -> str:
    steps = row.steps or []
    return str(steps[place].get("to", "")) if 0 <= place < len(steps) else ""


def answered_by(row: HumanRequest) -> str:
    """The name stays when the user goes; the site's own operator has none."""
    answer = row.answer if isinstance(row.answer, dict) else {}
    if row.answered_by is not None:
        return visible(str(row.answered_by))
    return visible(str(answer.get("by") or "an operator")) if answer else ""


def answer_words(answer: Any) -> str:
    """What a person did, with their words."""
    if not isinstance(answer, dict):
        return ""
    parts = {**(answer.get("values") or {}), **(answer.get("arguments") or {})}  # of several questions; new limits
    told = ", ".join(f"{name}: {value}" for name, value in parts.items())
    shown = [answer.get("outcome"), answer.get("text"), told, answer.get("reason")]
    return visible(": ".join(str(part) for part in (answer.get("action"), *shown) if part))
