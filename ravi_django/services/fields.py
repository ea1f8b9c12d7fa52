"""Strict serializer fields. They convert nothing: a number is not a text, `true` is not a number."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from itertools import islice
from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from pydantic import ValidationError as PydanticValidationError
from rest_framework import ISO_8601, serializers
from rest_framework.exceptions import ErrorDetail

from ravi_django import access
from ravi_django.agents.tools.client_tool import MAX_TOOLS, NAME, checked_tools
from ravi_django.kernel import AgentId, ExecutionBudget, InvalidInputError, Priority, TopicId
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.content import FROM_CLIENTS
from ravi_django.kernel.identity import ADDRESS
from ravi_django.runs.catalog.registry import near_key

MAX_UNKNOWN = 50  # unknown fields that an error names
MAX_TEXTS = 1000  # of an answer, one for each question
_OBJECT = {"type": "object", "additionalProperties": {}}
ANY = {  # JSON, also null: without types a generated client has an unknown
    "oneOf": [_OBJECT, {"type": "array", "items": {}}, *({"type": name} for name in ("string", "number", "boolean"))],
    "nullable": True,
}


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses unknown fields."""

    def to_internal_value(self, data: Any) -> Any:
        names = data if isinstance(data, dict) else ()
        known = ", ".join(self.fields) or "none"
        errors: Any = {
            str(name): [ErrorDetail(f"unknown field; known are: {known}{did_you_mean(name, self.fields)}", "unknown")]
            for name in islice((name for name in names if name not in self.fields), MAX_UNKNOWN)
        }
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            raise serializers.ValidationError(errors | error.detail) from None
        if errors:
            raise serializers.ValidationError(errors)
        return value


class TextField(serializers.CharField):
    """A string; spaces at its ends stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class NumberField(serializers.IntegerField):
    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class FlagField(serializers.BooleanField):
    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class IdField(serializers.UUIDField):
    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return UUID(str(super().to_internal_value(data)))


CONVERSATION = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}


@extend_schema_field({**CONVERSATION, "description": "The id of a session, or a name"})
class ConversationField(TextField):
    def to_internal_value(self, data: Any) -> Any:
        text = super().to_internal_value(data)
        with suppress(ValueError):
            return UUID(text)
        return text


class TimeField(serializers.DateTimeField):
    """ISO 8601. A time without an offset is read as UTC; output is in UTC with a Z."""

    def __init__(self, **options: Any) -> None:
        super().__init__(format=ISO_8601, input_formats=[ISO_8601], default_timezone=UTC, **options)


@extend_schema_field({"type": "string", "pattern": ADDRESS, "description": "type/key", "example": "react/assistant"})
class AgentField(serializers.Field[Any, Any, Any, Any]):
    kind: type[AgentId | TopicId] = AgentId

    def to_internal_value(self, data: Any) -> AgentId | TopicId:
        try:
            return self.kind.parse(data)
        except InvalidInputError as error:
            user = self.context.get("user") if self.kind is AgentId else None
            near = near_key(data, access.agents_seen(user)) if user is not None else ""
            raise serializers.ValidationError(f"{error}{near}") from None


@extend_schema_field({"type": "string", "pattern": ADDRESS, "description": "type/source", "example": "news/sport"})
class TopicField(AgentField):
    kind = TopicId


@extend_schema_field(ANY)
class ValueField(serializers.JSONField):
    """Any JSON value, as it is: the parser has checked it, and DRF's own field writes it once more."""

    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field(_OBJECT)
class ObjectField(ValueField):
    """Values are not looked at one by one."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise serializers.ValidationError("Expected an object.")
        return data


@extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": True}})
class MessagesField(ValueField):
    """Clients send their whole conversation."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, list):
            raise serializers.ValidationError("Expected a list of messages.")
        return data


class TextsField(serializers.DictField):
    """Texts by key."""

    child = TextField(allow_blank=True)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_TEXTS:
            raise serializers.ValidationError(f"Expected at most {MAX_TEXTS} texts.")
        return super().to_internal_value(data)


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "minLength": 1},
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"type": "string", "enum": list(FROM_CLIENTS)}},
                    "additionalProperties": True,
                },
            },
        ],
        "description": 'Text, or content blocks like {"type": "text", "text": "…"}; at most 256 KiB.',
    }
)
class InputField(ValueField):
    """`submit` checks the blocks and the limit."""


@extend_schema_field(
    {
        "type": "object",
        "properties": {
            "max_tokens": {"type": "integer", "minimum": 1},
            "max_cost_usd": {"type": "number", "minimum": 0},
            "max_turns": {"type": "integer", "minimum": 1},
            "deadline_s": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "max_agents": {"type": "integer", "minimum": 1},
            "allow_preempt": {"type": "boolean"},
            "when_exhausted": {"type": "string", "enum": ["fail", "ask"]},
        },
        "additionalProperties": False,
        "description": "Limits of the whole tree; a limit that is left out is unlimited.",
    }
)
class BudgetField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> ExecutionBudget:
        try:
            return ExecutionBudget.model_validate(data, strict=True)
        except PydanticValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            places = [".".join(map(str, problem["loc"])) for problem in problems]
            errors = [f"{path}: {one['msg']}".removeprefix(": ") for path, one in zip(places, problems, strict=True)]
            raise serializers.ValidationError(errors) from None


@extend_schema_field(
    {
        "type": "array",
        "maxItems": MAX_TOOLS,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": f"^{NAME}$"},
                "description": {"type": "string", "nullable": True},
                "parameters": {
                    **_OBJECT,
                    "properties": {"type": {"type": "string", "enum": ["object"]}},
                    "nullable": True,
                    "description": "JSON Schema",
                },
            },
            "additionalProperties": {},
        },
        "description": "The page's tools, together at most 32 KiB, for an agent that takes them",
    }
)
class ClientToolsField(ValueField):
    def to_internal_value(self, data: Any) -> Any:
        return checked_tools(data, "client_tools")


class PriorityField(serializers.ChoiceField):
    """The priority's name; the database stores the number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=[priority.name.lower() for priority in Priority], **options)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid_choice", input=data)
        return super().to_internal_value(data)

    def to_representation(self, value: Any) -> str:
        return Priority(value).name.lower()


@extend_schema_field(
    {
        "type": "object",
        "properties": {
            "kind": {
                "type": "string",
                "description": "message, timer, signal, child, request, client_tool, provider or slot",
            },
            "id": {"type": "string", "description": "Of the request or the child run"},
            "name": {"type": "string", "description": "Of the signal or the model"},
            "until": {"type": "string", "format": "date-time", "nullable": True},
        },
        "required": ["kind", "until"],
    }
)
class WaitField(serializers.JSONField):
    """The first of a run's waits."""


@extend_schema_field(OpenApiTypes.BINARY)
class UploadField(serializers.FileField):
    """The bytes of a file; an answer would have its address."""
