"""Typed results: the schema of a run's final answer, and whether an answer fits it.

An answer that does not fit goes back to the model with the faults, until its tries are used up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ravi_django.agents.memory.transcript import CORRECTION
from ravi_django.agents.tools.schemas import TooMuchToCheck, check_schema, object_schema, schema_errors, strict_form
from ravi_django.agents.tools.signature import _Schema
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    ChatMessage,
    ContentBlock,
    InvalidInputError,
    Message,
    ModelResponse,
    ResultInvalidError,
    Role,
    RunContext,
    TextBlock,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
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


_TAKEN = "The result was taken."
_NOT_ALONE = (
    "The result was not taken: another tool that you called in the same turn failed. Look at its result, then call "
    "this one again, alone."
)
_SECOND = "Not looked at: one result is enough."
_FIX = "Answer again with the fixed result alone"


class Goal:
    """Reads the recorded answers alone, so a replay comes to the same, whatever the model is offered by then.

    A call of the final-result tool counts, and so does a turn without calls whose text is the JSON. After `retries`
    more tries ResultInvalidError is raised.
    """

    def __init__(self, wanted: ResultType, tool_name: str, retries: int) -> None:
        self.result: Result | None = None
        self._wanted, self._tool_name, self._left = wanted, tool_name, retries
        self._error: str | None = None  # why the last turn's answer does not count

    def takes(self, call: ToolUseBlock) -> bool:
        return call.tool_name == self._tool_name

    def read_text(self, response: ModelResponse) -> ChatMessage | None:
        """Of a turn without calls: None when it is the result, else what the model is told."""
        try:
            self.result = self._wanted.from_text(response.text)
        except ResultRejected as error:
            cut = " (it was cut off: it got too long)" if response.finish_reason == "length" else ""
            self._error = f"{error}{cut}"
            words = f"Your answer is not a valid result: {self._error}. {_FIX}, as JSON."
            return ChatMessage(role=Role.USER, name=CORRECTION, content=[TextBlock(text=words)])
        return None

    def answer_calls(self, calls: Sequence[ToolUseBlock], results: Sequence[ToolResultBlock]) -> list[ContentBlock]:
        """A result for every call, in their order; `results` are those of the calls that are not for the goal.

        A valid result that comes with other calls stands when these went well: the model could not know it.
        """
        failed = any(result.is_error for result in results)
        others = iter(results)
        return [self._answer(call, failed) if self.takes(call) else next(others) for call in calls]

    def _answer(self, call: ToolUseBlock, failed: bool) -> ToolResultBlock:
        if self.result is not None:
            return _said(call, _SECOND)
        try:
            result = self._wanted.from_arguments(call.arguments)
        except ResultRejected as error:
            self._error = str(error)
            return _said(call, f"The result is not valid: {error}. {_FIX}, with this tool.", is_error=True)
        if failed:
            return _said(call, _NOT_ALONE, is_error=True)
        self.result = result
        return _said(call, _TAKEN)

    def said(self) -> ChatMessage:
        """The result as the assistant's words: what a call gave is then in the conversation for everybody to read."""
        assert self.result is not None
        return ChatMessage.of(Role.ASSISTANT, str(self.result.text))

    def count(self) -> None:
        """Once a turn's answers are kept: raises ResultInvalidError when an invalid one was the last allowed."""
        error, self._error = self._error, None
        if error is None or self.result is not None:
            return
        if not self._left:
            raise ResultInvalidError(
                f"the model gave no valid {self._wanted.name}: {error}; look at its answers, then loosen the schema "
                "or raise result_retries"
            )
        self._left -= 1


def _said(call: ToolUseBlock, words: str, *, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=words)], is_error=is_error)
