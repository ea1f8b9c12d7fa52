"""JSON schemas as model providers want them: an object at the root, and the strict form where there is one."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

# What providers that generate by a schema understand of it; anything else makes the schema one that is not strict.
_KEPT = {"type", "enum", "const", "description", "title", "pattern", "multipleOf", "minimum", "maximum"}
_KEPT |= {"exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
_REPLACED = {"default", "required", "$schema"}  # said anew, or to nobody
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NOTES = {"title", "description", "default"}  # beside a $ref


def object_schema(schema: Schema, wrap: str) -> tuple[Schema, bool]:
    """The schema with an object at its root, as tools and providers require; whether it had to be wrapped.

    A value that is no object becomes the property `wrap` of one.
    """
    root = _resolved(schema)
    if root.get("type") == "object":
        return root, False
    inner = dict(schema)
    lifted: Schema = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
    inner.pop("$schema", None)
    return {
        "type": "object",
        "properties": {wrap: inner},
        "required": [wrap],
        "additionalProperties": False,
        **lifted,
    }, True


def _resolved(schema: Schema) -> Schema:
    """A root that is but a reference to a definition (a model that holds itself) as that definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name)
    return schema if found is None else {**found, "$defs": schema["$defs"]}


class _NotStrict(Exception):
    """The schema says something that the strict form cannot."""


def strict_form(schema: Schema) -> Schema | None:
    """The schema closed: every object takes its named properties, all of them, and no others. What fits it fits the
    schema too. None where that cannot be said: maps of any keys, and words that providers do not know."""
    try:
        return _strict(schema)
    except _NotStrict:
        return None


def _strict(schema: Any) -> Schema:
    if not isinstance(schema, dict):
        raise _NotStrict
    if "$ref" in schema:
        return _strict_ref(schema)
    made = {key: _strict_word(key, value) for key, value in schema.items() if key not in _REPLACED}
    if "object" in _types(schema):
        if "properties" not in made:
            raise _NotStrict
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    elif not made.keys() & {"type", "enum", "const", "anyOf"}:
        raise _NotStrict  # anything at all
    return made


def _strict_word(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _strict(inner) for name, inner in value.items()}
    if key == "items":
        return _strict(value)
    if key == "anyOf":
        return [_strict(inner) for inner in value]
    if key in _KEPT or (key == "format" and value in _FORMATS) or (key == "additionalProperties" and value is False):
        return value
    raise _NotStrict


def _strict_ref(schema: Schema) -> Schema:
    notes = {key: value for key, value in schema.items() if key in ("title", "description")}
    if schema.keys() - _NOTES - {"$ref", "$defs"}:
        raise _NotStrict
    ref = {"$ref": schema["$ref"]}
    return {"anyOf": [ref], **notes} if notes else ref


def _types(schema: Schema) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]
