"""JSON schemas in the forms that model providers require: an object at the root, and a strict form if there is one.

Also validates a value against a schema from a form, in bounded time for any schema and value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from pydantic import ValidationError as PydanticError
from pydantic_core import SchemaError as PatternError, SchemaValidator, core_schema

from ravi_django.kernel import InvalidInputError

Schema = dict[str, Any]

# Keywords that providers support in a strict schema.
_PLAIN = {"type", "enum", "const", "description", "title", "pattern", "multipleOf", "minimum", "maximum"}
_PLAIN |= {"exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
_REPLACED = {"default", "required", "$schema"}  # set again, or dropped
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NOTES = {"title", "description", "default"}  # allowed next to a $ref


def object_schema(schema: Schema, wrap: str) -> tuple[Schema, bool]:
    """The schema with an object at its root, as tools and providers require, and whether it was wrapped for that: the
    value is then the property `wrap`."""
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
    """Replace a root that is only a reference (a recursive model) by its definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name)
    return schema if definition is None else {**definition, "$defs": schema["$defs"]}


class _NotStrict(Exception):
    """The schema has no strict form."""


def strict_form(schema: Schema) -> Schema | None:
    """The strict form: every object has exactly its named properties. A value that fits it fits the schema too. None
    for maps with arbitrary keys, and for keywords that providers do not support."""
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
        raise _NotStrict  # allows any value
    return made


def _strict_word(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _strict(inner) for name, inner in value.items()}
    if key == "items":
        return _strict(value)
    if key == "anyOf":
        return [_strict(inner) for inner in value]
    if key in _PLAIN or (key == "format" and value in _FORMATS) or (key == "additionalProperties" and value is False):
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


MAX_IN_PLACE = 1000  # subschemas that one value is checked against
MAX_REFS = 50_000  # references followed for one answer

_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME = (
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
)  # apply to the value itself
_BELOW = (
    "properties", "patternProperties", "prefixItems", "items", "additionalItems", "additionalProperties", "contains",
    "unevaluatedItems", "unevaluatedProperties", "propertyNames",
)  # fmt: skip
_MAPS = {"dependentSchemas", "dependencies", "properties", "patternProperties"}

_followed: ContextVar[list[int] | None] = ContextVar("ravi_schema_refs", default=None)


class TooMuchToCheck(Exception):
    """Validating the value takes too long."""


def check_schema(schema: Schema) -> Any:
    """A validator for a JSON schema. Raises InvalidInputError if it is invalid, refers to other documents, recurses
    without end, or has patterns that are not matched in linear time."""
    # A dependency of litellm. The import takes 50 ms, so it happens only on use.
    from jsonschema import Draft3Validator, Draft202012Validator, SchemaError, validators
    from referencing import Registry

    kind = validators.validator_for(schema, default=Draft202012Validator)
    if kind is Draft3Validator:
        raise _no_schema("is JSON Schema draft 3; use a later draft")
    try:
        kind.check_schema(schema)
        root = {
            key: value for key, value in schema.items() if key != "$schema"
        }  # it would select a validator without our limits
        registry: Registry[Any] = Registry()  # retrieves no documents: a schema may come from a form
        _Walk(root, registry).check()
    except SchemaError as error:
        raise _no_schema(f"is not a valid JSON schema: {error.message[:200]}") from error
    except RecursionError:
        raise _no_schema("is nested too deeply; use fewer levels") from None
    return _bounded(kind)(root, registry=registry)


def schema_errors(validator: Any, value: Any, most: int) -> list[str]:
    """The errors of a value, "path: message", at most `most` + 1. Raises TooMuchToCheck."""
    followed = _followed.set([0])
    try:
        errors = list(islice(validator.iter_errors(value), most + 1))
    except RecursionError:
        raise TooMuchToCheck("it is nested too deep to be checked") from None
    finally:
        _followed.reset(followed)
    return [": ".join(filter(None, (".".join(map(str, error.absolute_path)), error.message))) for error in errors]


def _no_schema(detail: str) -> InvalidInputError:
    return InvalidInputError(f"result_model {detail}", field="result_model")


class _Walk:
    """Visits every schema that is reachable from the root once."""

    def __init__(self, root: Schema, registry: Any) -> None:
        from referencing import Resource
        from referencing.jsonschema import DRAFT202012

        self._root = root
        resource = Resource.from_contents(root, default_specification=DRAFT202012)
        self._resolver = registry.resolver_with_root(resource)
        self._weights: dict[
            int, int | None
        ] = {}  # subschemas that the value of each is checked against; None: in progress
        self._seen: set[int] = set()

    def check(self) -> None:
        waiting: list[Any] = [self._root]
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self._seen:
                continue
            self._seen.add(id(schema))
            _check_keywords(schema, schema is self._root)
            if self._weigh(schema) > MAX_IN_PLACE:
                raise _no_schema("refers to itself too often for one value; make it simpler")
            waiting += self._targets(schema)
            for word in (*_SAME, *_BELOW):
                waiting += _inner(word, schema)

    def _weigh(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        known = self._weights.get(id(schema), 0)
        if known is None:
            raise _no_schema("refers to itself for the same value, so that a check would never end")
        if not known:
            self._weights[id(schema)] = None
            inner = [one for word in _SAME for one in _inner(word, schema)]
            known = 1 + sum(self._weigh(one) for one in (*self._targets(schema), *inner))
            self._weights[id(schema)] = known
        return known

    def _targets(self, schema: Schema) -> list[Any]:
        from referencing.exceptions import Unresolvable

        targets = []
        for ref in (schema[word] for word in _REFS if isinstance(schema.get(word), str)):
            try:
                targets.append(self._resolver.lookup(ref).contents)
            except Unresolvable as error:
                raise _no_schema(f"refers to {ref!r}; put that under $defs and refer to '#/$defs/…'") from error
        return targets


def _inner(word: str, schema: Schema) -> list[Any]:
    value = schema.get(word)
    if word in _MAPS and isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _check_keywords(schema: Schema, is_root: bool) -> None:
    if not is_root and isinstance(schema.get("$schema"), str):
        raise _no_schema("has a nested $schema; set it only at the root")
    patterns = schema.get("patternProperties")
    named = list(patterns) if isinstance(patterns, dict) else []
    if named and "unevaluatedProperties" in schema:
        raise _no_schema("has patternProperties and unevaluatedProperties; use additionalProperties instead")
    for pattern in [*named, *([schema["pattern"]] if isinstance(schema.get("pattern"), str) else [])]:
        try:
            _compiled(pattern)
        except PatternError as error:
            raise _no_schema(
                f"has the pattern {pattern[:100]!r}, which cannot be matched in linear time: use no look-around and "
                "no back-references, and a shorter pattern"
            ) from error


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern))


def _matches(pattern: str, text: str) -> bool:
    try:
        _compiled(pattern).validate_python(text)
    except PydanticError:
        return False
    return True


@cache
def _bounded(kind: Any) -> Any:
    from jsonschema import validators

    keywords = kind.VALIDATORS
    bounded = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        **{word: _counting(keywords[word]) for word in _REFS if word in keywords},
    }
    return validators.extend(kind, bounded)


def _pattern(validator: Any, pattern: str, value: Any, schema: Schema) -> Iterator[Any]:
    if isinstance(value, str) and not _matches(pattern, value):
        yield _wrong(f"{value[:100]!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Schema, value: Any, schema: Schema) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for key, item in value.items():
                if _matches(pattern, key):
                    yield from validator.descend(item, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Schema) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    patterns, named = schema.get("patternProperties", {}), schema.get("properties", {})
    extras = [key for key in value if key not in named and not any(_matches(one, key) for one in patterns)]
    if isinstance(allowed, dict):
        for key in extras:
            yield from validator.descend(value[key], allowed, path=key)
    elif not allowed and extras:
        names = ", ".join(repr(key) for key in extras[:10])
        were = "was" if len(extras) == 1 else "were"
        yield _wrong(f"Additional properties are not allowed ({names} {were} unexpected)")


def _unique_items(validator: Any, unique: Any, value: Any, schema: Schema) -> Iterator[Any]:
    if unique and isinstance(value, list) and len({_frozen(item) for item in value}) < len(value):
        yield _wrong("the array has non-unique elements")


def _frozen(value: Any) -> Any:
    """A hashable form, equal for equal JSON values: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return ("bool", value) if isinstance(value, bool) else value


def _counting(word: Any) -> Any:
    def follow(validator: Any, ref: Any, value: Any, schema: Schema) -> Iterator[Any]:
        count = _followed.get()
        if count is not None:
            count[0] += 1
            if count[0] > MAX_REFS:
                raise TooMuchToCheck("it is too much to be checked; make it shorter")
        yield from word(validator, ref, value, schema)

    return follow


def _wrong(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)
