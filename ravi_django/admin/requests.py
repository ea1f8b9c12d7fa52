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
    choices: str
    answer: str  # what a person did, with their words
    run: Run | None  # who asked, where it is a run below


def of_run(run: Run) -> list[Asked]:
    """The newest first; a root has those of its whole tree."""
    asked = HumanRequest.objects.filter(Q(run=run) | Q(run__root=run)).select_related("answered_by", "run")
    return [_asked(request, run) for request in asked.order_by("-id")[:REQUESTS]]


def _asked(request: HumanRequest, shown_on: Run) -> Asked:
    arguments = request.arguments if isinstance(request.arguments, dict) else {}
    question = request.kind == HumanRequest.Kind.QUESTION
    return Asked(
        request=request,
        status=show.status(request.status),
        context=str(arguments.get("context", "")) if question else show.as_text(arguments),
        choices=" | ".join(map(str, request.choices or ())),
        answer=_answer(request.answer),
        run=None if request.run_id == shown_on.id else request.run,
    )


def _answer(answer: Any) -> str:
    if not isinstance(answer, dict):
        return ""
    shown = [answer.get(name) for name in ("outcome", "text", "reason")]
    return ": ".join(str(part) for part in (answer.get("action"), *shown) if part)
