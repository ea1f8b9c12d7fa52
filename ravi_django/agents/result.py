"""Typed results: what a run's final answer has to be, and whether an answer is that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ravi_django.agents.json_schema import object_schema, strict_form
from ravi_django.agents.schema_check import TooMuchToCheck, check_schema, schema_errors
from ravi_django.agents.signature import _Schema
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    InvalidInputError,
    Message,
    RunContext,
    ToolSpec,
    TopicId,
)

TOOL_NAME = "final_result"
WRAP = "result"  # the property that holds a result which is no JSON object
_SHOWN_ERRORS = 5
_MAX_ONE = 300  # characters of one error
_MAX_WORDS = 1000  # characters that the model is told of an invalid answer

_DESCRIPTION = "Gives the final result. Call it once, alone, when the result is complete: the work ends with it."


class ResultRejected(Exception):
    """An answer does not fit; the message is for the model."""


class ResultText(str):
    """A validated result as JSON text: a run's output as it is, also where the value itself was replied."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A validated answer."""

    value: Any  # JSON
    text: ResultText  # the same, as text


class ResultType:
    """What an answer has to be. Made once for an agent, shared by its runs.

    `model` is a pydantic model, a dataclass, a TypedDict, any type that pydantic reads (`list[Item]`, `Item | Other`),
    or a JSON schema as a dict. `schema` is the result's JSON schema. Raises InvalidInputError (field `result_model`)
    for what cannot be one.
    """

    def __init__(self, model: Any) -> None:
        self._check, self.schema = _from_schema(model) if isinstance(model, dict) else _from_type(model)
        named = str(getattr(model, "__name__", None) or self.schema.get("title") or WRAP)
        self.name = re.sub(r"[^a-zA-Z0-9_-]", "_", named)[:64]
        self._object, self._wrapped = object_schema(self.schema, WRAP)

    @classmethod
    def of(cls, model: Any) -> ResultType | None:
        return model if model is None or isinstance(model, cls) else cls(model)

    @property
    def response_format(self) -> dict[str, Any]:
        """For a model that is held to a schema by its provider; strict where the schema can be put so."""
        strict = strict_form(self._object)
        described = {"name": self.name, "schema": self._object if strict is None else strict}
        return {"type": "json_schema", "json_schema": described if strict is None else {**described, "strict": True}}

    def tool_spec(self, name: str) -> ToolSpec:
        """For a model that is not: the tool by which it gives the result."""
        about = self.schema.get("description")
        words = f"{_DESCRIPTION}\n\n{about}" if isinstance(about, str) and about else _DESCRIPTION
        return ToolSpec(name=name, description=words, parameters=self._object)

    def from_text(self, text: str) -> Result:
        """An answer in words: JSON, bare or in a ``` fence. Raises ResultRejected."""
        return self._read(_parsed(text))

    def from_arguments(self, arguments: dict[str, Any]) -> Result:
        """An answer as a tool's arguments. Raises ResultRejected."""
        if INVALID_ARGUMENTS_KEY in arguments:
            raise ResultRejected(_bounded(f"the arguments were not valid JSON: {arguments[INVALID_ARGUMENTS_KEY]}"))
        return self._read(arguments)

    def from_value(self, value: Any) -> Result:
        """An answer that code gives: an instance of the model, JSON, or a text of it. Raises ResultRejected."""
        try:
            return self._read(value)
        except ResultRejected:
            if not isinstance(value, str):
                raise
        return self.from_text(value)

    def _read(self, value: Any) -> Result:
        if self._wrapped and isinstance(value, dict) and value.keys() == {WRAP}:
            value = value[WRAP]
        text = self._check(to_json(value, fallback=str, inf_nan_mode="null"))  # NaN is no JSON, whoever writes it
        return Result(from_json(text), ResultText(text.decode()))


def free_name(taken: Iterable[str]) -> str:
    """A name for the final-result tool that none of the agent's own tools has."""
    names = set(taken)
    number = 1
    while (name := TOOL_NAME if number == 1 else f"{TOOL_NAME}_{number}") in names:
        number += 1
    return name


async def deliver_result(
    ctx: RunContext, src_msg: Message, result: Result, *, output_topic: TopicId | None = None
) -> None:
    """Send a typed result where it belongs: its JSON value to who asked or to the topic, its text as the output."""
    if src_msg.reply_to:
        await ctx.reply(src_msg, result.value)
    elif output_topic is not None:
        await ctx.emit(output_topic, result.value)
    else:
        await ctx.reply(src_msg, str(result.text))


# ------------------------------------------------------------------------------------------------ the two kinds

_Check = Callable[[bytes], bytes]  # JSON in, the canonical JSON out; raises ResultRejected


def _from_type(model: Any) -> tuple[_Check, dict[str, Any]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = adapter.json_schema(by_alias=True, schema_generator=_Schema)
    except (PydanticUserError, NameError, TypeError, AttributeError) as error:
        words = str(error).splitlines()[0]
        raise InvalidInputError(
            f"result_model {model!r} cannot be a result: {words}; give a pydantic model, a type or a JSON schema",
            field="result_model",
        ) from error

    def check(body: bytes) -> bytes:
        try:
            return adapter.dump_json(adapter.validate_json(body), by_alias=True)
        except ValidationError as error:
            raise ResultRejected(_explained(error)) from None
        except Exception as error:  # of the model's own validators: what they choke on is the answer
            words = f"{type(error).__name__}: {error}"
            raise ResultRejected(_joined([f"it could not be read ({words})"])) from error

    return check, schema


def _from_schema(schema: dict[str, Any]) -> tuple[_Check, dict[str, Any]]:
    validator = check_schema(schema)

    def check(body: bytes) -> bytes:
        try:
            errors = schema_errors(validator, from_json(body), _SHOWN_ERRORS)
        except TooMuchToCheck as error:
            raise ResultRejected(str(error)) from None
        if errors:
            raise ResultRejected(_joined(errors))
        return body

    return check, schema


def _explained(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return _joined(
        [
            ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, "))))
            for one in details
        ]
    )


def _joined(errors: list[str]) -> str:
    shown = [error if len(error) <= _MAX_ONE else f"{error[:_MAX_ONE]}…" for error in errors[:_SHOWN_ERRORS]]
    more = [f"and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
    return _bounded("; ".join([*shown, *more]))


def _bounded(words: str) -> str:
    return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}…"


def _parsed(text: str) -> Any:
    """The JSON of an answer. Raises ResultRejected."""
    bare = text.strip()
    try:
        return from_json(bare, allow_inf_nan=False)
    except ValueError as error:
        why = str(error)
    fence = bare.find("```")
    begin, end = bare.find("\n", fence), bare.rfind("```")
    if 0 <= fence < begin < end:
        try:
            return from_json(bare[begin:end], allow_inf_nan=False)
        except ValueError as error:
            why = str(error)
    raise ResultRejected(f"it is not JSON ({why})" if bare else "it is empty")
