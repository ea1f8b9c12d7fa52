"""Typed results: the schema of a run's final answer, and its validation.

An invalid answer goes back to the model with the errors, until its retries are used up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ravi_django.agents.memory.transcript import CORRECTION
from ravi_django.agents.messages import deliver
from ravi_django.agents.tools.schemas import TooMuchToCheck, check_schema, object_schema, schema_errors, strict_form
from ravi_django.agents.tools.signature import _Schema
from ravi_django.kernel import INVALID_ARGUMENTS_KEY, Message, ModelResponse, RunContext, ToolSpec, TopicId
from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.errors import InvalidInputError, ResultInvalidError, message_of
from ravi_django.kernel.json_values import check_cost, values_between, written

TOOL_NAME = "final_result"
WRAP = "result"  # the property that holds a result that is not a JSON object
_SHOWN_ERRORS = 5
_MAX_ONE = 300  # characters of one error
_MAX_WORDS = 1000  # characters of the error that the model gets

_DESCRIPTION = "Gives the final result. Call it once, alone, when the result is complete: the work ends with it."


class ResultRejected(Exception):
    """An answer is invalid. The message is for the model."""


class ResultText(str):
    """A validated result as JSON text: a run's output."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A validated answer."""

    value: Any  # JSON
    text: ResultText  # the value as text


class ResultType:
    """The type of an answer. Made once for an agent, shared by its runs.

    `model` is a pydantic model, a dataclass, a TypedDict, any type that pydantic reads (`list[Item]`, `Item | Other`),
    or a JSON schema as a dict. `schema` is the result's JSON schema. Raises InvalidInputError (field `result_model`).
    """

    def __init__(self, model: Any) -> None:
        self._check, self.schema, self._load = _from_schema(model) if isinstance(model, dict) else _from_type(model)
        named = str(getattr(model, "__name__", None) or self.schema.get("title") or WRAP)
        self.name = re.sub(r"[^a-zA-Z0-9_-]", "_", named)[:64]
        self._object, self._wrapped = object_schema(self.schema, WRAP)

    @classmethod
    def of(cls, model: Any) -> ResultType | None:
        """The type of a model or a JSON schema; None and a ResultType are returned as they are."""
        return model if model is None or isinstance(model, cls) else cls(model)

    def load(self, text: str) -> Any:
        """A recorded result as an instance of the model; as its JSON value if the type is a schema. Raises
        ResultRejected."""
        with _rejecting():
            return self._load(text)

    @property
    def response_format(self) -> dict[str, Any]:
        """For a provider that enforces a schema; strict if the schema has a strict form."""
        strict = strict_form(self._object)
        named = {"name": self.name, "schema": self._object if strict is None else strict}
        return {"type": "json_schema", "json_schema": named if strict is None else {**named, "strict": True}}

    def tool_spec(self, name: str) -> ToolSpec:
        """For other providers: the tool that the model calls with the result."""
        about = self.schema.get("description")
        description = f"{_DESCRIPTION}\n\n{about}" if isinstance(about, str) and about else _DESCRIPTION
        return ToolSpec(name=name, description=description, parameters=self._object)

    def from_text(self, text: str) -> Result:
        """An answer as text, see `_values`. Raises ResultRejected."""
        return self._first(_values(text), "it is not JSON" if text.strip() else "it is empty")

    def from_arguments(self, arguments: dict[str, Any]) -> Result:
        """An answer as a tool's arguments. Raises ResultRejected."""
        if INVALID_ARGUMENTS_KEY in arguments:
            raise ResultRejected(_bounded(f"the arguments were not valid JSON: {arguments[INVALID_ARGUMENTS_KEY]}"))
        return self._first([arguments], "it is empty")

    def _first(self, values: Iterable[Any], why: str) -> Result:
        """The first valid one. Raises ResultRejected with the words about the first one."""
        rejected: ResultRejected | None = None
        tried: list[Any] = []
        for value in chain.from_iterable(map(_forms, values)):
            if value not in tried:
                tried.append(value)
                try:
                    return self._read(value)
                except ResultRejected as error:
                    rejected = rejected or error
                    if isinstance(error.__cause__, TooMuchToCheck):
                        break
                except ValueError:
                    pass  # no row can hold it
        raise rejected or ResultRejected(why)

    def from_value(self, value: Any) -> Result:
        """An answer from code: an instance of the model, JSON, or JSON text. Raises ResultRejected."""
        try:
            return self._read(value)
        except ResultRejected:
            if not isinstance(value, str):
                raise
        return self.from_text(value)

    def _read(self, value: Any) -> Result:
        if self._wrapped and isinstance(value, dict) and value.keys() == {WRAP}:
            value = value[WRAP]
        text = self._check(to_json(value, fallback=str, inf_nan_mode="null"))  # JSON has no NaN
        return Result(from_json(text), ResultText(text.decode()))


def wanted_of(ctx: RunContext, default: ResultType | None) -> ResultType | None:
    """The type of a run's result: that of the request, else the agent's own."""
    schema = ctx.meta.result_schema
    return default if schema is None else ResultType(schema)


def fitted(schema: dict[str, Any], value: Any) -> ResultText:
    """The output of a run whose request asked for this schema, from the JSON that its code returned. Raises
    ResultInvalidError."""
    wanted = ResultType(schema)
    try:
        return (wanted.from_text if isinstance(value, ResultText) else wanted.from_value)(value).text
    except ResultRejected as error:
        raise ResultInvalidError(
            f"the request asks for a {wanted.name}, and the agent's result is none: {error}; return one, or submit "
            "without result_schema"
        ) from None


def free_name(taken: Iterable[str]) -> str:
    """A name for the final-result tool that none of the agent's own tools has."""
    names = set(taken)
    return next(name for n in count(1) if (name := TOOL_NAME if n == 1 else f"{TOOL_NAME}_{n}") not in names)


async def supports_schema(model: Any, *, beside_tools: bool = False) -> bool:
    """Whether the model's provider enforces a JSON schema as `response_format`, with `beside_tools` also there."""
    ask = getattr(model, "supports_schema", None)
    if ask is None or not await ask():
        return False
    both = getattr(model, "supports_schema_beside_tools", None) if beside_tools else None
    return both is None or bool(await both())


async def deliver_result(
    ctx: RunContext, src_msg: Message, result: Result, *, output_topic: TopicId | None = None
) -> None:
    """`deliver` for a typed result: its JSON value as a reply or publication, its text as the run's output."""
    is_output = not src_msg.reply_to and output_topic is None
    value = str(result.text) if is_output else result.value
    await deliver(ctx, src_msg, value, output_topic=output_topic)


_Check = Callable[[bytes], bytes]  # JSON in, the canonical JSON out; raises ResultRejected
_Load = Callable[[str], Any]  # JSON in, the value out


def _from_type(model: Any) -> tuple[_Check, dict[str, Any], _Load]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = adapter.json_schema(by_alias=True, schema_generator=_Schema)
    except (PydanticUserError, NameError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"result_model {model!r} cannot be used: {reason}; pass a pydantic model, a type or a JSON schema",
            field="result_model",
        ) from error

    def check(body: bytes) -> bytes:
        with _rejecting():
            return adapter.dump_json(adapter.validate_json(body), by_alias=True)

    return check, schema, adapter.validate_json


@contextmanager
def _rejecting() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ResultRejected(_explained(error)) from None
    except Exception as error:  # a validator of the model failed on this answer
        raise ResultRejected(
            _joined([f"it could not be read ({type(error).__name__}: {message_of(error)})"])
        ) from error


def _from_schema(schema: dict[str, Any]) -> tuple[_Check, dict[str, Any], _Load]:
    validator = check_schema(schema)

    def check(body: bytes) -> bytes:
        try:
            errors = schema_errors(validator, from_json(body), _SHOWN_ERRORS)
        except TooMuchToCheck as error:
            raise ResultRejected(str(error)) from error
        if errors:
            raise ResultRejected(_joined(errors))
        return body

    return check, schema, from_json


def _explained(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    pairs = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in details]
    return _joined([": ".join(filter(None, pair)) for pair in pairs])


def _joined(errors: list[str]) -> str:
    clipped = [error if len(error) <= _MAX_ONE else f"{error[:_MAX_ONE]}…" for error in errors[:_SHOWN_ERRORS]]
    more = [f"and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
    return _bounded("; ".join([*clipped, *more]))


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}…"


_TAG = r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection)"  # servers without a reasoning parser
_BEGIN = re.compile(rf"<{_TAG}>|◁think▷|\[THINK\]|<\|channel\|>(?!final)", re.IGNORECASE)
_END = re.compile(rf"</{_TAG}>|◁/think▷|\[/THINK\]|<\|channel\|>final<\|message\|>", re.IGNORECASE)
_FENCE = re.compile(r"(?:```|~~~)(?:[a-zA-Z]\w*+)?(?:[^\n{\[]{0,80}\n)?(.*?)(?:```|~~~)", re.DOTALL)
_FENCES = 20  # that are read
_AROUND = frozenset({"name", "type", "title", "required", "description", "$schema", "additionalProperties"})


def _values(text: str) -> Iterator[Any]:
    """The JSON of an answer: bare, in a fence, or between words, the last one first; never of its thoughts."""
    text = text.strip("\ufeff\u200b\u00a0 \t\r\n")
    ends = [end.end() for end in _END.finditer(text)]
    for at in dict.fromkeys((*ends[-1:], *ends[:1], 0)):  # a text of the result may have such a tag
        bare = text[at:].strip()
        if _BEGIN.match(bare):  # a thought that does not end
            continue
        is_bare = bool(ends) and not at
        for candidate in [bare] if is_bare else [bare, *_FENCE.findall(bare)[: -_FENCES - 1 : -1]]:
            with suppress(ValueError):
                yield written(candidate)
        with suppress(ValueError):
            check_cost(bare)
            between = [] if is_bare else list(values_between(bare))
            yield from reversed(between)
            if between:
                yield between
            yield written("" if is_bare else bare[bare.find("{") : bare.rfind("}") + 1])


def _forms(value: Any, depth: int = 3) -> Iterator[Any]:
    """A value, and what is in it: models put a result into a list, a property, a call's text or its schema."""
    yield value
    inner: Any = None
    if isinstance(value, str):
        with suppress(ValueError):
            inner = written(value)
    elif isinstance(value, list) and len(value) == 1:
        (inner,) = value
    elif isinstance(value, dict) and len(names := value.keys() - _AROUND) == 1 and "error" not in names:
        inner = value[names.pop()]
    if depth and isinstance(inner, dict | list | str):
        yield from _forms(inner, depth - 1)


_TAKEN = "The result was taken."
_NOT_ALONE = (
    "The result was not taken: another tool that you called in the same turn failed. Look at its result, then call "
    "this one again, alone."
)
_SECOND = "Not looked at: one result is enough."
_FIX = "Answer again with the fixed result alone"


class Goal:
    """Looks for the result in the recorded answers: a call of the final-result tool, or a turn without calls whose text
    is the JSON. A replay finds the same, whatever the model is offered by then.

    After `retries` invalid answers the next one raises ResultInvalidError.
    """

    def __init__(self, wanted: ResultType, tool_name: str, retries: int) -> None:
        self.result: Result | None = None
        self._wanted, self._tool_name, self._left = wanted, tool_name, retries
        self._error: str | None = None  # why the last turn's answer is invalid

    @property
    def name(self) -> str:
        return self._wanted.name

    def takes(self, call: ToolUseBlock) -> bool:
        return call.tool_name == self._tool_name

    def read_text(self, response: ModelResponse) -> ChatMessage | None:
        """Read a turn without calls. Returns None if it is the result, else a correction for the model."""
        try:
            self.result = self._wanted.from_text(response.text)
        except ResultRejected as error:
            cut = " (it was cut off: it got too long)" if response.finish_reason == "length" else ""
            self._error = f"{error}{cut}"
            message = f"Your answer is not a valid result: {self._error}. {_FIX}, as JSON."
            return ChatMessage(role=Role.USER, name=CORRECTION, content=[TextBlock(text=message)])
        return None

    def answer_calls(self, calls: Sequence[ToolUseBlock], results: Sequence[ToolResultBlock]) -> list[ContentBlock]:
        """A result for every call, in their order. `results` are those of the other tools.

        A valid final result is rejected if another call of the turn failed: the model did not know of the failure.
        """
        failed = any(result.is_error for result in results)
        others = iter(results)
        return [self._answer(call, failed) if self.takes(call) else next(others) for call in calls]

    def _answer(self, call: ToolUseBlock, failed: bool) -> ToolResultBlock:
        if self.result is not None:
            return _tool_result(call, _SECOND)
        try:
            result = self._wanted.from_arguments(call.arguments)
        except ResultRejected as error:
            self._error = str(error)
            return _tool_result(call, f"The result is not valid: {error}. {_FIX}, with this tool.", is_error=True)
        if failed:
            return _tool_result(call, _NOT_ALONE, is_error=True)
        self.result = result
        return _tool_result(call, _TAKEN)

    def assistant_turn(self) -> ChatMessage:
        """The result as an assistant turn, so the conversation shows it even if it came as a tool call."""
        assert self.result is not None
        return ChatMessage.of(Role.ASSISTANT, str(self.result.text))

    def count(self) -> None:
        """Call this after a turn is stored. Raises ResultInvalidError for an invalid answer when no retry is left."""
        error, self._error = self._error, None
        if error is None or self.result is not None:
            return
        if not self._left:
            raise ResultInvalidError(
                f"the model returned no valid {self._wanted.name}: {error}; check its answers, then loosen the "
                "schema or raise result_retries"
            )
        self._left -= 1


def _tool_result(call: ToolUseBlock, text: str, *, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=text)], is_error=is_error)
