"""What a person needs to know to decide, and what was decided: the context of a request's page."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

from ravi_django.admin import show
from ravi_django.admin.agents.versions import changes
from ravi_django.models import AuditRecord, HumanRequest
from ravi_django.pages.context import cost_of, outcome_of, questions_of, turns_of
from ravi_django.pages.words import (
    address,
    answer_words,
    answered_by,
    decision_of,
    end_of,
    next_step,
    steps_of,
    title_of,
    who,
)
from ravi_django.runtime.people.top_ups import is_top_up

TURNS = 12  # of the conversation, the last ones
HISTORY = 100  # records


def context_of(row: HumanRequest) -> dict[str, Any]:
    return {
        "title": title_of(row),
        "asked": row,
        "status": show.status(row.status),
        "who": who(row),
        "next": next_step(row),
        "end": end_of(row),
        "steps": steps_of(row),
        "is_pending": row.status == HumanRequest.Status.PENDING,
        "is_question": row.kind in (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT),
        "is_budget": is_top_up(row),
        "age": show.duration(timezone.now() - row.created_at),
        "about": show.visible(str(row.about.get("context") or "")),
        "questions": questions_of(row),
        "arguments": None if row.kind == HumanRequest.Kind.QUESTION else show.pretty(row.arguments, None),
        "tool": _tool(row),
        "cost": cost_of(row.run),
        "turns": turns_of(row, TURNS),
        "outcome": _outcome(row),
        "history": _history(row),
    }


def _tool(row: HumanRequest) -> dict[str, Any] | None:
    """What the tool says of itself, as it was when it was asked for."""
    schema: Any = row.about.get("schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    hints = []
    for name, field in (properties or {}).items() if isinstance(properties, dict) else ():
        told = field if isinstance(field, dict) else {}
        kind = told.get("type") or (_one_of(told["enum"]) if told.get("enum") else "")
        hints.append(
            {
                "name": show.visible(str(name)),
                "type": show.visible(gettext(" or ").join(map(str, kind)) if isinstance(kind, list) else str(kind)),
                "required": name in (schema.get("required") or ()),
                "description": show.visible(str(told.get("description") or "")),
            }
        )
    description = show.visible(str(row.about.get("description") or ""))
    return {"description": description, "hints": hints} if description or hints else None


def _one_of(values: Any) -> str:
    return gettext("one of %(values)s") % {"values": ", ".join(map(str, values))}


def _outcome(row: HumanRequest) -> dict[str, Any] | None:
    """With the difference where the arguments were changed."""
    found = outcome_of(row)
    return None if found is None else {**found, "changes": _changed(row.arguments, found["arguments"])}


def _changed(asked: Any, edited: Any) -> list[dict[str, Any]]:
    """As one document: names of arguments are shown as they are."""
    found = changes({"arguments": asked}, {"arguments": edited}) if isinstance(edited, dict) else []
    return [{**one, "lines": [(mark, show.visible(line)) for mark, line in one["lines"]]} for one in found]


def _history(row: HumanRequest) -> list[dict[str, Any]]:
    records = AuditRecord.objects.filter(run_id=row.run_id, event="request", detail__request=str(row.pk))
    return [_event(row, record) for record in records.order_by("id")[:HISTORY]]


def _event(row: HumanRequest, record: AuditRecord) -> dict[str, Any]:
    detail = record.detail if isinstance(record.detail, dict) else {}
    to = str(detail.get("to") or "")
    return {
        "at": record.created_at,
        "what": record.name,
        "by": show.visible(str(detail.get("by") or "")),
        "to": address(to, row) if to else "",
        "words": answer_words(detail.get("answer")) or show.visible(str(detail.get("reason") or "")),
    }


def lost_words(row: HumanRequest) -> str:
    """To who came too late: who won, and with what."""
    if row.status == HumanRequest.Status.PENDING:
        return gettext("It has changed since you opened it. Look again: what you typed is still here.")
    if row.status != HumanRequest.Status.ANSWERED:
        words = gettext("Yours was not recorded: this was %(status)s at %(when)s.")
        return words % {"status": show.word(row.status), "when": show.moment(row.answered_at)}
    said = {"name": answered_by(row), "when": show.moment(row.answered_at), "decision": decision_of(row)}
    return gettext("Yours was not recorded: %(name)s was first, at %(when)s: %(decision)s.") % said
