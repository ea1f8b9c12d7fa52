"""The JSON of requests to people and of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from ravi_django.live.streams import hidden
from ravi_django.live.streams.frames import in_utc, request_as_json
from ravi_django.models import HumanRequest
from ravi_django.people import answers, rights
from ravi_django.services.fields import (
    FlagField,
    IdField,
    NumberField,
    ObjectField,
    StrictSerializer,
    TextField,
    TextsField,
    TimeField,
    ValueField,
)

NOT_SHOWN = ("metadata", "budget", "output", "error", "waiting_on", "state", "client_tools")  # of the run; may be large
ANSWER_FIELDS = ("action", "text", "values", "arguments", "outcome", "result", "sticky", "reason", "by", "instead_of")


class DecisionSerializer(serializers.Serializer[Any]):
    """A person's decision. Optional fields depend on the action."""

    action = serializers.ChoiceField(choices=answers.EVERY_ACTION)
    reason = serializers.CharField()
    by = serializers.CharField(help_text="The user's name, also after the user was deleted; empty: the operator")
    instead_of = serializers.CharField(required=False, help_text="The user who has delegated the decision")
    text = serializers.CharField(required=False)
    values = serializers.DictField(child=serializers.CharField(), required=False, help_text="By key")
    arguments = serializers.DictField(required=False, help_text="Used instead of the requested ones")
    outcome = serializers.ChoiceField(choices=answers.OUTCOMES, required=False)
    result = ValueField(required=False, allow_null=True)
    sticky = serializers.BooleanField(required=False, help_text="Also for the tool's next calls in the session")


class RequestSerializer(serializers.Serializer[Any]):
    """For rows that `marked` has prepared."""

    id = IdField()
    run = IdField(help_text="The run that asks")
    root = IdField(help_text="The root of its tree")  # type: ignore[assignment]
    agent = serializers.CharField(help_text="type/key")
    kind = serializers.ChoiceField(choices=HumanRequest.Kind.choices)
    status = serializers.ChoiceField(choices=HumanRequest.Status.choices)
    text = serializers.CharField(help_text="The question: text, never HTML")
    choices = serializers.ListField(child=serializers.CharField(), allow_null=True)
    tool = serializers.CharField(help_text="The called tool, or the tool that asks; empty: the agent's code")
    arguments = serializers.DictField(allow_null=True, help_text="Of the call; for a budget, the suggested new limits")
    risk = serializers.CharField(help_text="safe, high or critical; empty if it is not about a call")
    context = serializers.CharField(help_text="Background for the decision")  # type: ignore[assignment]
    free_text = serializers.BooleanField(help_text="Whether an answer may differ from the choices")
    questions = serializers.DictField(
        child=serializers.CharField(), allow_null=True, help_text="Several at once, by key: answered with values"
    )
    to = serializers.CharField(help_text="The present address")
    may_answer = serializers.BooleanField(help_text="Whether the user's answer would be accepted now")
    actions = serializers.ListField(
        child=serializers.ChoiceField(choices=answers.EVERY_ACTION), help_text="The user's possible actions now"
    )
    created_at = TimeField()
    not_before = TimeField(allow_null=True, help_text="An earlier answer is refused")
    escalates_at = TimeField(allow_null=True, help_text="When it moves to the next address")
    expires_at = TimeField(allow_null=True)
    answer = DecisionSerializer(allow_null=True)
    answered_by = serializers.CharField(
        allow_null=True, help_text="The user's name; null: no answer, or the operator's"
    )
    answered_at = TimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Increases with every change")
    call_id = serializers.CharField(required=False, help_text="Of a client's tool: the model's id of the call")
    hidden = serializers.BooleanField(required=False, help_text="True: its tool is visible only to staff")

    def to_representation(self, row: Any) -> dict[str, Any]:
        """Faster than serializing field by field: a list has up to 200 requests."""
        answer = row.answer if isinstance(row.answer, dict) else None
        body = {
            **request_as_json(row),
            "run": str(row.run_id),
            "root": str(row.run.tree_id),
            "agent": row.run.agent,
            "may_answer": row.may_answer,
            "actions": list(answers.ACTIONS[row.kind]) if row.may_answer else [],
            "not_before": in_utc(row.not_before),
            "escalates_at": in_utc(row.escalates_at),
            "answer": answer and {name: answer[name] for name in ANSWER_FIELDS if name in answer},
        }
        return hidden.request_without_hidden(body) if row.hides else body


class RequestDetailSerializer(RequestSerializer):
    """Includes the tool's schema, which a form for changed arguments needs. It is too long for a list."""

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
    """Set on each row whether an answer by `user` (None: the operator) would count now. The number of queries does not
    depend on the number of rows."""
    pending = [row for row in rows if row.status == HumanRequest.Status.PENDING]
    theirs = rights.open_among(user, pending) if pending else set()
    if theirs:
        theirs = set(HumanRequest.objects.filter(rights.in_time(), id__in=theirs).values_list("id", flat=True))
    for row in rows:
        mark(row, user, row.id in theirs)
    return rows


def mark(row: Any, user: Any, may_answer: bool) -> None:
    """Set the attributes that depend on the reader."""
    row.may_answer, row.hides = may_answer, hidden.hides(row, user, may_answer)


class AnswerSerializer(StrictSerializer):
    action = serializers.ChoiceField(choices=answers.EVERY_ACTION, help_text="One of the request's `actions`")
    text = TextField(required=False, allow_null=True, allow_blank=True, help_text="Of answer")
    values = TextsField(required=False, allow_null=True, help_text="Of answer, for each question")
    arguments = ObjectField(
        required=False, allow_null=True, help_text="Of edit: the tool's new arguments; of a budget, its new limits"
    )
    outcome = serializers.ChoiceField(choices=answers.OUTCOMES, required=False, allow_null=True, help_text="Of resolve")
    result = ValueField(required=False, allow_null=True, help_text="Of resolve, when it has happened")
    reason = TextField(
        required=False, allow_null=True, allow_blank=True, help_text="Of any action; the model reads that of a denial"
    )
    sticky = FlagField(
        required=False, allow_null=True, help_text="Of approve or deny: also for this tool's next calls in the session"
    )
    version = NumberField(required=False, allow_null=True, help_text="The version that was read; 409 if it has changed")


class ReassignSerializer(StrictSerializer):
    to = TextField(
        max_length=220,
        help_text="owner, staff, user:NAME, group:NAME or permission:app.codename, instead of the present address",
    )
    reason = TextField(required=False, allow_null=True, allow_blank=True)
    version = NumberField(required=False, allow_null=True, help_text="The version that was read; 409 if it has changed")
