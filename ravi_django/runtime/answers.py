"""What an answer may say, by what was asked. Checked before anything is written; what comes out is what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from ravi_django.agents.schema_check import TooMuchToCheck, check_schema, schema_errors
from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError, InvalidInputError
from ravi_django.models import HumanRequest
from ravi_django.runtime import topups
from ravi_django.runtime.entries import storable

Kind = HumanRequest.Kind

ACTIONS: dict[str, tuple[str, ...]] = {
    Kind.QUESTION: ("answer", "skip", "cancel"),
    Kind.INPUT: ("answer", "skip", "cancel"),
    Kind.APPROVAL: ("approve", "deny", "edit", "skip", "cancel"),
    Kind.UNCERTAIN: ("resolve",),
}
EVERY_ACTION = tuple(dict.fromkeys(action for actions in ACTIONS.values() for action in actions))
OUTCOMES = ("happened", "run_again", "fail")
MAX_TEXT = 10_000  # characters of what a person says


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a person has said, as it came."""

    action: str
    text: str = ""
    values: Mapping[str, str] | None = None
    arguments: Mapping[str, Any] | None = None
    outcome: str | None = None
    result: Any = None
    sticky: bool = False
    reason: str = ""


def actions_of(request: HumanRequest) -> tuple[str, ...]:
    """What may be done with it."""
    return topups.ACTIONS if topups.is_top_up(request) else ACTIONS[request.kind]


def checked(request: HumanRequest, given: Given) -> dict[str, Any]:
    """The answer as it is kept. Raises InvalidInputError that names the field."""
    allowed = actions_of(request)
    if given.action not in allowed:
        raise InvalidInputError(
            f"action of a request of kind {request.kind} is one of {', '.join(allowed)}, not {given.action!r}",
            field="action",
        )
    _nothing_else(given)
    answer: dict[str, Any] = {"action": given.action, "reason": text_of("reason", given.reason).strip()}
    match request.kind:
        case Kind.UNCERTAIN:
            answer |= _outcome(given)
        case Kind.APPROVAL if topups.is_top_up(request):
            if given.sticky:
                raise InvalidInputError(
                    "sticky is for a tool's calls: more budget is decided on each time", field="sticky"
                )
            answer["arguments"] = topups.check(request, given.action, given.arguments)
        case Kind.APPROVAL:
            answer |= _approval(request, given)
        case _:
            answer |= _said(request, given)
    return answer


_GOES_WITH = {
    "text": ("answer",),
    "values": ("answer",),
    "arguments": ("edit", "approve"),  # approve takes them for a budget's limits alone
    "outcome": ("resolve",),
    "result": ("resolve",),
    "sticky": ("approve", "deny"),
}


def _nothing_else(given: Given) -> None:
    if not isinstance(given.sticky, bool):
        raise InvalidInputError("sticky is true or false", field="sticky")
    for field, actions in _GOES_WITH.items():
        if _is_given(field, getattr(given, field)) and given.action not in actions:
            raise InvalidInputError(f"{field} goes with {' or '.join(actions)}, not with {given.action}", field=field)


def _is_given(field: str, value: Any) -> bool:
    """A result may be 0, false or an empty text; other than a text, nothing is left out by being empty."""
    if field == "text":
        return value not in (None, "")
    return bool(value) if field == "sticky" else value is not None


def _outcome(given: Given) -> dict[str, Any]:
    if given.outcome not in OUTCOMES:
        raise InvalidInputError(f"outcome is one of {', '.join(OUTCOMES)}, not {given.outcome!r}", field="outcome")
    if given.outcome == "happened":
        return {"outcome": "happened", "result": _result(given.result)}
    if given.result is not None:
        raise InvalidInputError(f"a result goes with happened, not with {given.outcome}", field="result")
    return {"outcome": given.outcome}


def _approval(request: HumanRequest, given: Given) -> dict[str, Any]:
    if given.action == "approve" and given.arguments is not None:
        raise InvalidInputError("approve takes no arguments; edit approves with others", field="arguments")
    if given.action != "edit":
        return {"sticky": True} if given.sticky else {}
    return {"arguments": _edited(request, given.arguments)}


def _edited(request: HumanRequest, arguments: Any) -> dict[str, Any]:
    """The person's arguments, as the tool's schema takes them."""
    if not isinstance(arguments, Mapping):
        raise InvalidInputError("edit needs arguments, an object of the tool's parameters", field="arguments")
    held: dict[str, Any] = storable(dict(arguments))
    try:
        size = len(to_json(held))
        if size > conf.MAX_INPUT_BYTES:
            raise InputTooLargeError(
                f"arguments have {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="arguments"
            )
        faults = schema_errors(check_schema(request.about.get("schema") or {}), held, 3)
    except TooMuchToCheck as error:
        raise InvalidInputError(f"arguments: {error}", field="arguments") from None
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"arguments are not JSON: {error}", field="arguments") from None
    if faults:
        raise InvalidInputError(f"arguments do not fit {request.tool}: {'; '.join(faults[:3])}", field="arguments")
    return held


def _said(request: HumanRequest, given: Given) -> dict[str, Any]:
    text = text_of("text", given.text).strip()
    found: dict[str, Any] = {"text": text}
    asked = request.about.get("questions")
    if given.action != "answer":
        return found
    if asked:
        found["values"] = _values(asked, text, given.values)
    elif given.values is not None:
        raise InvalidInputError("this asks one thing: answer it with a text", field="values")
    else:
        _check_text(request, text)
    return found


def _check_text(request: HumanRequest, text: str) -> None:
    if not text:
        raise InvalidInputError("an answer needs a text; or skip or cancel the question", field="text")
    if request.choices and not request.about.get("free_text", True) and text not in request.choices:
        raise InvalidInputError(f"text must be one of {', '.join(map(repr, request.choices))}", field="text")


def _values(asked: Mapping[str, str], text: str, values: Any) -> dict[str, str]:
    """An answer to each of the questions, and to nothing else."""
    keys = ", ".join(map(repr, asked))
    if text or not isinstance(values, Mapping):
        raise InvalidInputError(f"this asks several things: give values, a text for each of {keys}", field="values")
    if values.keys() != asked.keys():
        raise InvalidInputError(f"values has a text for each of {keys}, and for nothing else", field="values")
    given = {key: text_of("values", value).strip() for key, value in values.items()}
    if empty := [key for key, value in given.items() if not value]:
        raise InvalidInputError(f"values has no text for {empty[0]!r}; or skip or cancel all of it", field="values")
    return given


def text_of(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} is a text", field=field)
    if len(value) > MAX_TEXT:
        raise InputTooLargeError(f"{field} is a text of at most {MAX_TEXT} characters", field=field)
    return str(storable(value))


def _result(value: Any) -> Any:
    try:
        size = len(to_json(value))
    except ValueError as error:
        raise InvalidInputError(f"result is not JSON: {error}", field="result") from None
    if size > conf.MAX_RESULT_BYTES:
        raise InputTooLargeError(f"result has {size} bytes, the limit is {conf.MAX_RESULT_BYTES}", field="result")
    return storable(value)
