"""What a run has asked of people, for the run's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.utils.safestring import SafeString

from ravi_django.admin import show
from ravi_django.models import HumanRequest, Run

REQUESTS = 50


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, ready for the template."""

    request: HumanRequest
    status: SafeString
    context: str
    arguments: str  # of the tool's call
    choices: str
    answer: str  # what a person did, with their words
    run: Run | None  # who asked, where it is a run below


def of_run(run: Run) -> list[Asked]:
    """The newest first; a root has those of its whole tree."""
    asked = HumanRequest.objects.filter(Q(run=run) | Q(run__root=run)).select_related("answered_by", "run")
    return [_asked(request, run) for request in asked.order_by("-id")[:REQUESTS]]


def _asked(request: HumanRequest, shown_on: Run) -> Asked:
    question = request.kind == HumanRequest.Kind.QUESTION  # no tool's call, also where a tool has asked it
    return Asked(
        request=request,
        status=show.status(request.status),
        context=str(request.about.get("context", "")),
        arguments="" if question else show.as_text(request.arguments),
        choices=" | ".join(map(str, request.choices or ())),
        answer=_answer(request.answer),
        run=None if request.run_id == shown_on.id else request.run,
    )


def _answer(answer: Any) -> str:
    if not isinstance(answer, dict):
        return ""
    parts = {**(answer.get("values") or {}), **(answer.get("arguments") or {})}  # of several questions; new limits
    told = ", ".join(f"{name}: {value}" for name, value in parts.items())
    shown = [answer.get("outcome"), answer.get("text"), told, answer.get("reason")]
    return ": ".join(str(part) for part in (answer.get("action"), *shown) if part)
