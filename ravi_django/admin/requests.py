"""What a run has asked of people, for the run's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def of_run(run: Run) -> list[Asked]:
    """The newest first."""
    rows = HumanRequest.objects.filter(run=run).select_related("answered_by").order_by("-id")[:REQUESTS]
    return [_asked(request) for request in rows]


def _asked(request: HumanRequest) -> Asked:
    arguments = request.arguments if isinstance(request.arguments, dict) else {}
    question = request.kind == HumanRequest.Kind.QUESTION
    return Asked(
        request=request,
        status=show.status(request.status),
        context=str(arguments.get("context", "")) if question else show.as_text(arguments),
        choices=" | ".join(map(str, request.choices or ())),
        answer=_answer(request.answer),
    )


def _answer(answer: Any) -> str:
    if not isinstance(answer, dict):
        return ""
    shown = [answer.get(name) for name in ("outcome", "text", "reason")]
    return ": ".join(str(part) for part in (answer.get("action"), *shown) if part)
