"""What a run has asked of people, for the run's page."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from ravi_django.admin import readers, show
from ravi_django.models import HumanRequest, Run
from ravi_django.pages.words import answer_words

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


def of_run(run: Run, page: HttpRequest) -> list[Asked]:
    """Those that the user may read, the newest first; a root has those of its whole tree."""
    rows = readers.readable(page).filter(Q(run=run) | Q(run__root=run)).select_related("answered_by", "run")
    return [_asked(request, run) for request in rows.order_by("-id")[:REQUESTS]]


def _asked(request: HumanRequest, shown_on: Run) -> Asked:
    question = request.kind == HumanRequest.Kind.QUESTION  # no tool's call, also where a tool has asked it
    return Asked(
        request=request,
        status=show.status(request.status),
        context=show.visible(str(request.about.get("context", ""))),
        arguments="" if question else show.as_text(request.arguments),
        choices=show.visible(" | ".join(map(str, request.choices or ()))),
        answer=answer_words(request.answer),
        run=None if request.run_id == shown_on.id else request.run,
    )
