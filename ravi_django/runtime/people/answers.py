"""Answer, cancel and reassign a request: the one service behind the admin, REST, websocket, e-mail and command line.

An answer is checked before anything is written, by what was asked. `rights` says who may answer. The one write is
`rows.answer_request`: the first answer wins, and commits with its records and the run's wake-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError
from pydantic_core import to_json

from ravi_django.agents.tools.schemas import TooMuchToCheck, check_schema, schema_errors
from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError, InvalidInputError, NotFoundError
from ravi_django.kernel.checks import check_json
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.runtime.journal.entries import storable
from ravi_django.runtime.people import escalation, requests, rights, top_ups
from ravi_django.runtime.people import rows as people_rows
from ravi_django.runtime.people.rights import Authority
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.signals import wake

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
    return top_ups.ACTIONS if top_ups.is_top_up(request) else ACTIONS[request.kind]


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
        case Kind.APPROVAL if top_ups.is_top_up(request):
            if given.sticky:
                raise InvalidInputError(
                    "sticky is for a tool's calls: more budget is decided on each time", field="sticky"
                )
            answer["arguments"] = top_ups.check(request, given.action, given.arguments)
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
    check_json("result", value, conf.MAX_RESULT_BYTES)
    return storable(value)


def answer(
    request: HumanRequest | UUID | str,
    action: str = "answer",
    *,
    text: str = "",
    values: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    outcome: str | None = None,
    result: Any = None,
    sticky: bool = False,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """Answer a request; the first answer wins. Returns the run's id.

    A question, or what a tool asks for: "answer" with `text`, or with `values` by key where several things are asked;
    "skip", "cancel". An approval: "approve", "deny", "edit" (approves with `arguments` in place of the model's),
    "skip", "cancel"; `sticky` with approve or deny holds for this tool in this session. More budget: "approve", "deny",
    or "edit" with `arguments`, the new limits. An uncertain effect: "resolve" with `outcome` "happened" (and its
    `result`), "run_again" or "fail". `reason` goes with all of them, and is read by the model that is denied.

    `by` is the authenticated user, None for the site's own operator. `version`: the one that the person has seen.
    Raises InvalidInputError that names the field, NotFoundError, ForbiddenError when `by` may only read it, and
    ConflictError when it is answered, closed, expired or changed.
    """
    row = find(request)
    authority = rights.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        raise people_rows.conflict(row.id)
    given = Given(
        action=action,
        text=text,
        values=values,
        arguments=arguments,
        outcome=outcome,
        result=result,
        sticky=sticky,
        reason=reason,
    )
    kept = {**checked(row, given), **_signed(authority)}
    if "arguments" in kept and kept["action"] != "deny":
        rights.check_changed(authority, _with_arguments(row, kept["arguments"]))
    seen = row.version if version is None else version
    if top_ups.is_top_up(row):
        for run_id in top_ups.answer_top_up(row, kept, kept["arguments"], by=by, version=seen):
            hints.on_commit(run_id)
    else:
        decision = _sticky(row, kept, by) if kept.get("sticky") else None
        woke = people_rows.answer_request(row.id, kept, by=by, version=seen, sticky=decision)
        hints.on_commit(row.run_id, None if woke else wake)
    found: UUID = row.run_id
    return found


def cancel(request: HumanRequest | UUID | str, *, reason: str = "", by: Any = None, version: int | None = None) -> UUID:
    """`answer(request, "cancel", …)`: withdraw a question, an input or an approval. Whoever asked is told so."""
    return answer(request, "cancel", reason=reason, by=by, version=version)


def reassign(
    request: HumanRequest | UUID | str, to: str, *, by: Any = None, reason: str = "", version: int | None = None
) -> HumanRequest:
    """Ask somebody else in place of whoever is asked now: `to` is an address. The time that was left stays, and so do
    the later steps and four eyes. Returns the request as it is then.

    `by` may answer it, or holds `ravi.change_humanrequest`, may see it and puts it to others than themselves; None is
    the site's own operator. Raises InvalidInputError for an address that means nobody who could answer, and otherwise
    as `answer`.
    """
    row = find(request)
    right = escalation.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        raise people_rows.conflict(row.id)
    address = escalation.address_for(row, to, by, right)
    words = text_of("reason", reason).strip()
    name = "" if by is None else str(by.get_username())
    seen = row.version if version is None else version
    return escalation.reassign_request(row.id, address, by=by, name=name, reason=words, version=seen)


def resolve(
    request: HumanRequest | UUID | str,
    outcome: str,
    *,
    result: Any = None,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """`answer(request, "resolve", …)`: what became of an uncertain effect."""
    return answer(request, "resolve", outcome=outcome, result=result, reason=reason, by=by, version=version)


def find(request: HumanRequest | UUID | str) -> HumanRequest:
    """The row as it is now. Raises NotFoundError."""
    given = request.pk if isinstance(request, HumanRequest) else request
    try:
        found: HumanRequest | None = HumanRequest.objects.select_related("run", "answered_by").filter(id=given).first()
    except (DjangoValidationError, ValueError):
        raise NotFoundError(f"{str(given)[:100]!r} is no request's id") from None
    if found is None:
        raise NotFoundError(f"there is no request {given}")
    return found


def _with_arguments(request: HumanRequest, arguments: dict[str, Any]) -> HumanRequest:
    """What the site's rule is asked about: a copy, whatever it does to that."""
    changed = copy(request)
    changed.arguments, changed.arguments_hash = deepcopy(arguments), requests.hash_of(arguments)
    return changed


def _signed(authority: Authority) -> dict[str, str]:
    """Who, in words that stay when the user goes."""
    if authority.user is None:
        return {"by": ""}
    found = {"by": str(authority.user.get_username())}
    if authority.instead_of is not None:
        found["instead_of"] = str(authority.instead_of.get_username())
    return found


def _sticky(request: HumanRequest, kept: dict[str, Any], by: Any) -> StickyDecision:
    return StickyDecision(
        session_id=request.run.session_id,
        agent=request.run.agent,
        tool=request.tool,
        risk=request.risk,
        action=kept["action"],
        reason=kept["reason"],
        request_id=request.id,
        decided_by=by,
        decided_by_name=kept["by"],
    )
