"""The JSON of requests to people: what is asked, whom, what was decided, and what a decision may say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from ravi_django.models import HumanRequest
from ravi_django.runtime.people import answers, rights
from ravi_django.runtime.streams import hidden
from ravi_django.runtime.streams.shown import in_utc, request_shown
from ravi_django.services.fields import FlagField, IdField, NumberField, StrictSerializer, TextField, TimeField

NOT_SHOWN = ("metadata", "budget", "output", "error", "waiting_on")  # of the run that asks: they may be big
KEPT = ("action", "text", "values", "arguments", "outcome", "result", "sticky", "reason", "by", "instead_of")


class DecisionSerializer(serializers.Serializer[Any]):
    """What a person has decided; of the fields beside the first three only those that go with the action."""

    action = serializers.ChoiceField(choices=answers.EVERY_ACTION)
    reason = serializers.CharField()
    by = serializers.CharField(help_text="The user's name, which stays when the user goes; empty: the site's operator")
    instead_of = serializers.CharField(required=False, help_text="Who has delegated the decision")
    text = serializers.CharField(required=False)
    values = serializers.DictField(child=serializers.CharField(), required=False, help_text="By key")
    arguments = serializers.DictField(required=False, help_text="In place of those that were asked for")
    outcome = serializers.ChoiceField(choices=answers.OUTCOMES, required=False)
    result = serializers.JSONField(required=False, allow_null=True)
    sticky = serializers.BooleanField(required=False, help_text="Holds for the tool's next calls in the session too")


class RequestSerializer(serializers.Serializer[Any]):
    """Takes rows that `marked` has prepared."""

    id = IdField()
    run = IdField(help_text="The run that asks")
    root = IdField(help_text="The root of its tree")  # type: ignore[assignment]
    agent = serializers.CharField(help_text="type/key")
    kind = serializers.ChoiceField(choices=HumanRequest.Kind.choices)
    status = serializers.ChoiceField(choices=HumanRequest.Status.choices)
    text = serializers.CharField(help_text="What is asked: text, never HTML")
    choices = serializers.ListField(child=serializers.CharField(), allow_null=True)
    tool = serializers.CharField(help_text="Whose call it is about, or which asks; empty: the agent's code")
    arguments = serializers.DictField(allow_null=True, help_text="The call's; of a budget, the new limits suggested")
    risk = serializers.CharField(help_text="safe, high or critical; empty where it is not about a call")
    context = serializers.CharField(help_text="What one should know to answer")  # type: ignore[assignment]
    free_text = serializers.BooleanField(help_text="Whether an answer may be another than the choices")
    questions = serializers.DictField(
        child=serializers.CharField(), allow_null=True, help_text="Several at once, by key: answered with values"
    )
    to = serializers.CharField(help_text="The address that is asked now")
    may_answer = serializers.BooleanField(help_text="Whether an answer by the user would be taken now")
    actions = serializers.ListField(
        child=serializers.ChoiceField(choices=answers.EVERY_ACTION), help_text="What the user may do with it now"
    )
    created_at = TimeField()
    not_before = TimeField(allow_null=True, help_text="An answer before is refused")
    escalates_at = TimeField(allow_null=True, help_text="When the next address is asked instead")
    expires_at = TimeField(allow_null=True)
    answer = DecisionSerializer(allow_null=True)
    answered_by = serializers.CharField(allow_null=True, help_text="The user's name; null: nobody, or the operator")
    answered_at = TimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Rises with every change")
    hidden = serializers.BooleanField(required=False, help_text="True: its tool is visible to staff alone")

    def to_representation(self, row: Any) -> dict[str, Any]:
        """Written out: a list has up to 200 of these."""
        answer = row.answer if isinstance(row.answer, dict) else None
        shown = {
            **request_shown(row),
            "run": str(row.run_id),
            "root": str(row.run.tree_id),
            "agent": row.run.agent,
            "may_answer": row.may_answer,
            "actions": list(answers.actions_of(row)) if row.may_answer else [],
            "not_before": in_utc(row.not_before),
            "escalates_at": in_utc(row.escalates_at),
            "answer": answer and {name: answer[name] for name in KEPT if name in answer},
        }
        return hidden.request_shown(shown) if row.hides else shown


class RequestDetailSerializer(RequestSerializer):
    """With what a form for other arguments is made of; too long for a list."""

    description = serializers.CharField(help_text="Of the tool, as the model reads it")
    schema = serializers.DictField(allow_null=True, help_text="JSON Schema of the call's arguments, which edit takes")

    def to_representation(self, row: Any) -> dict[str, Any]:
        about = row.about
        schema = about.get("schema")
        return {
            **super().to_representation(row),
            "description": str(about.get("description", "")),
            "schema": schema if isinstance(schema, dict) else None,
        }


def marked(rows: Sequence[Any], user: Any) -> Sequence[Any]:
    """Told of each whether an answer by `user`, None for the site's operator, would count now: as many queries for all
    of them as for one."""
    pending = [row for row in rows if row.status == HumanRequest.Status.PENDING]
    theirs = rights.open_among(user, pending) if pending else set()
    if theirs:
        theirs = set(HumanRequest.objects.filter(rights.in_time(), id__in=theirs).values_list("id", flat=True))
    for row in rows:
        mark(row, user, row.id in theirs)
    return rows


def mark(row: Any, user: Any, may_answer: bool) -> None:
    """Set what goes by the reader."""
    row.may_answer, row.hides = may_answer, hidden.hides(row, user, may_answer)


class AnswerSerializer(StrictSerializer):
    action = serializers.ChoiceField(
        choices=answers.EVERY_ACTION, help_text="One of the request's actions: they go by what is asked"
    )
    text = TextField(required=False, allow_null=True, allow_blank=True, help_text="Of answer")
    values = serializers.DictField(
        child=TextField(allow_blank=True), required=False, allow_null=True, help_text="Of answer, for each question"
    )
    arguments = serializers.DictField(
        required=False, allow_null=True, help_text="Of edit: what the tool is called with; of a budget, its new limits"
    )
    outcome = serializers.ChoiceField(choices=answers.OUTCOMES, required=False, allow_null=True, help_text="Of resolve")
    result = serializers.JSONField(required=False, allow_null=True, help_text="Of resolve, when it has happened")
    reason = TextField(
        required=False, allow_null=True, allow_blank=True, help_text="With any; the model that is denied reads it"
    )
    sticky = FlagField(
        required=False, allow_null=True, help_text="With approve or deny: for this tool's next calls in the session too"
    )
    version = NumberField(
        required=False, allow_null=True, help_text="The one that was read: 409 when it has changed since"
    )


class ReassignSerializer(StrictSerializer):
    to = TextField(
        max_length=220,
        help_text="owner, staff, user:NAME, group:NAME or permission:app.codename, in place of the present",
    )
    reason = TextField(required=False, allow_null=True, allow_blank=True)
    version = NumberField(
        required=False, allow_null=True, help_text="The one that was read: 409 when it has changed since"
    )
