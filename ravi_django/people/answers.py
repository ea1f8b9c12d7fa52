"""Answer, cancel and reassign a request: the one service behind the admin, REST, websocket, e-mail and command line.

An answer is checked against its request before anything is written. `rights` has the rules of who may answer. The one
write is `rows.answer_request`: the first answer wins, and commits with its records and the run's wake-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError as DjangoValidationError
from django.utils.translation import gettext as _

from ravi_django.agents.tools.schemas import TooMuchToCheck, check_schema, schema_errors
from ravi_django.conf import conf
from ravi_django.engine.db.clock import present
from ravi_django.kernel import ConflictError, InputTooLargeError, InvalidInputError, NotFoundError, RequestOpened
from ravi_django.kernel.json_values import check_json, storable
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.people import escalation, requests, rights, rows as people_rows, top_ups
from ravi_django.people.rights import Authority
from ravi_django.runs import hints
from ravi_django.runs.signals import wake
from ravi_django.runs.workers import key_of, running_code

Kind = HumanRequest.Kind

ACTIONS: dict[str, tuple[str, ...]] = {
    Kind.QUESTION: ("answer", "skip", "cancel"),
    Kind.INPUT: ("answer", "skip", "cancel"),
    Kind.APPROVAL: ("approve", "deny", "edit", "skip", "cancel"),
    Kind.UNCERTAIN: ("resolve",),
    Kind.CLIENT_TOOL: ("answer", "cancel"),
}
EVERY_ACTION = tuple(dict.fromkeys(action for actions in ACTIONS.values() for action in actions))
OUTCOMES = ("happened", "run_again", "fail")
MAX_TEXT = 10_000  # characters of an answer or a reason


@dataclass(frozen=True, slots=True)
class AnswerInput:
    """A person's answer, not checked yet."""

    action: str
    text: str = ""
    values: Mapping[str, str] | None = None
    arguments: Mapping[str, Any] | None = None
    outcome: str | None = None
    result: Any = None
    sticky: bool = False
    reason: str = ""


def checked(request: HumanRequest, entered: AnswerInput) -> dict[str, Any]:
    """The answer as its row keeps it. Raises InvalidInputError that names the field."""
    allowed = ACTIONS[request.kind]
    if entered.action not in allowed:
        raise InvalidInputError(
            _("The action %(action)s is not possible for a request of kind %(kind)s. Possible actions: %(actions)s.")
            % {"action": repr(entered.action), "kind": request.kind, "actions": ", ".join(allowed)},
            field="action",
        )
    _nothing_else(entered)
    answer: dict[str, Any] = {"action": entered.action, "reason": text_of("reason", entered.reason).strip()}
    match request.kind:
        case Kind.UNCERTAIN:
            answer |= _outcome(entered)
        case Kind.APPROVAL:
            answer |= _approval(request, entered)
        case Kind.CLIENT_TOOL:
            answer |= {"text": check_json("text", storable(entered.text), conf.MAX_INPUT_BYTES)}
        case _:
            answer |= _text(request, entered)
    return answer


_GOES_WITH = {
    "text": ("answer",),
    "values": ("answer",),
    "arguments": ("edit", "approve"),  # approve has an error of its own
    "outcome": ("resolve",),
    "result": ("resolve",),
    "sticky": ("approve", "deny"),
}


def _nothing_else(entered: AnswerInput) -> None:
    if not isinstance(entered.sticky, bool):
        raise InvalidInputError(_("sticky must be true or false."), field="sticky")
    for field, actions in _GOES_WITH.items():
        value, nothing = getattr(entered, field), {"text": "", "sticky": False}.get(field)
        if value is not None and value != nothing and entered.action not in actions:  # a result may be 0, false or ""
            raise InvalidInputError(
                _("%(field)s is not allowed with the action %(action)s. It is allowed with: %(actions)s.")
                % {"field": field, "action": entered.action, "actions": ", ".join(actions)},
                field=field,
            )


def _outcome(entered: AnswerInput) -> dict[str, Any]:
    if entered.outcome not in OUTCOMES:
        raise InvalidInputError(
            _("Unknown outcome %(outcome)s. Possible outcomes: %(outcomes)s.")
            % {"outcome": repr(entered.outcome), "outcomes": ", ".join(OUTCOMES)},
            field="outcome",
        )
    if entered.outcome == "happened":
        result = check_json("result", entered.result, conf.MAX_RESULT_BYTES)
        return {"outcome": "happened", "result": result}
    if entered.result is not None:
        raise InvalidInputError(
            _("A result is only allowed with the outcome happened, not with %(outcome)s.")
            % {"outcome": entered.outcome},
            field="result",
        )
    return {"outcome": entered.outcome}


def _approval(request: HumanRequest, entered: AnswerInput) -> dict[str, Any]:
    if entered.action == "approve" and entered.arguments is not None:
        raise InvalidInputError(
            _("The action approve has no arguments. Use edit to approve with other arguments."), field="arguments"
        )
    if entered.sticky and top_ups.is_top_up(request):
        raise InvalidInputError(_("A decision about a budget cannot be sticky. Omit sticky."), field="sticky")
    if entered.action != "edit":
        return {"sticky": True} if entered.sticky else {}
    return {"arguments": _edited(request, entered.arguments)}


def _edited(request: HumanRequest, arguments: Any) -> dict[str, Any]:
    """The person's arguments, checked by the tool's schema."""
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(
            _("The action edit needs arguments: a JSON object with the tool's parameters."), field="arguments"
        )
    held: dict[str, Any] = check_json("arguments", dict(arguments), conf.MAX_INPUT_BYTES)
    try:
        errors = schema_errors(check_schema(request.about.get("schema") or {}), held, 3)
    except TooMuchToCheck as error:
        raise InvalidInputError(f"arguments: {error}", field="arguments") from None
    if errors:
        raise InvalidInputError(
            _("The arguments are not valid for %(tool)s: %(errors)s")
            % {"tool": request.tool, "errors": "; ".join(errors[:3])},
            field="arguments",
        )
    return held


def _text(request: HumanRequest, entered: AnswerInput) -> dict[str, Any]:
    text = text_of("text", entered.text).strip()
    if entered.action != "answer":
        return {"text": text}
    if asked := request.about.get("questions"):
        return {"text": text, "values": _values(asked, text, entered.values)}
    if entered.values is not None:
        raise InvalidInputError(_("This is a single question. Answer with text, not with values."), field="values")
    if not text:
        raise InvalidInputError(_("The answer is empty. Enter a text, or skip or cancel the question."), field="text")
    if request.choices and not request.about.get("free_text", True) and text not in request.choices:
        choices = ", ".join(map(repr, request.choices))
        raise InvalidInputError(_("The text must be one of %(choices)s.") % {"choices": choices}, field="text")
    return {"text": text}


def _values(asked: Mapping[str, str], text: str, values: Any) -> dict[str, str]:
    """A text for each of the questions, and for nothing else."""
    keys = ", ".join(map(repr, asked))
    if text or not isinstance(values, Mapping):
        raise InvalidInputError(
            _("This request has several questions. Send values with a text for each of %(keys)s.") % {"keys": keys},
            field="values",
        )
    if values.keys() != asked.keys():
        raise InvalidInputError(_("values must have exactly the keys %(keys)s.") % {"keys": keys}, field="values")
    texts = {key: text_of("values", value).strip() for key, value in values.items()}
    if empty := [key for key, value in texts.items() if not value]:
        raise InvalidInputError(
            _("The answer for %(key)s is empty. Enter a text, or skip or cancel the whole request.")
            % {"key": repr(empty[0])},
            field="values",
        )
    return texts


def text_of(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(_("%(field)s must be a text.") % {"field": field}, field=field)
    if len(value) > MAX_TEXT:
        raise InputTooLargeError(
            _("%(field)s is too long. It may have %(most)d characters.") % {"field": field, "most": MAX_TEXT},
            field=field,
        )
    return str(storable(value))


def answer(
    request: HumanRequest | RequestOpened | UUID | str,
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
    """Answer a request: its id, its row or its event. The first answer counts. Returns the run's id.

    Actions by kind of request:
    - a question, a tool's input: "answer" with `text`, or with `values` by key for several questions; "skip", "cancel"
    - an approval: "approve", "deny", "edit" (approves, with `arguments` in place of the model's), "skip", "cancel";
      `sticky` with approve or deny holds for this tool in this session
    - more budget is an approval too: its `arguments` are the new limits
    - an uncertain effect: "resolve" with `outcome` "happened" (and its `result`), "run_again" or "fail"
    A `reason` is allowed with all of them; the model reads the reason of a denial.

    `by` is the authenticated user, None for the site's own operator. `version` is the one that the person saw. Raises
    InvalidInputError that names the field, NotFoundError, ForbiddenError when `by` may only read the request, and
    ConflictError when it is answered, closed, expired or changed.
    """
    row = find(request)
    stored = check(row, AnswerInput(action, text, values, arguments, outcome, result, sticky, reason), by)
    seen = row.version if version is None else version
    if top_ups.is_top_up(row):
        for run_id in top_ups.answer_top_up(row, stored, by=by, version=seen):
            hints.on_commit(run_id)
    else:
        decision = _sticky(row, stored, by) if stored.get("sticky") else None
        woke = people_rows.answer_request(row.id, stored, by=by, version=seen, sticky=decision)
        hints.on_commit(row.run_id, None if woke else wake)
    return row.run_id


aanswer = sync_to_async(answer)


def check(row: HumanRequest, entered: AnswerInput, by: Any) -> dict[str, Any]:
    """The decision that `answer` would record. Writes nothing, and raises the same errors."""
    authority = rights.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        raise people_rows.conflict(row)
    stored = {**checked(row, entered), **_signed(authority)}
    _check_ended(row, stored.get("outcome", ""))
    if "arguments" in stored and stored["action"] != "deny":
        rights.check_changed(authority, _with_arguments(row, stored["arguments"]))
    return stored


def _check_ended(row: HumanRequest, outcome: str) -> None:
    """Raise ConflictError while the worker that started the call may still be executing it."""
    if row.not_before is not None and present() < row.not_before:
        raise ConflictError(
            _(
                "Request %(id)s can be answered from %(time)s UTC on. Until then the worker that started the call "
                "may still be executing it."
            )
            % {"id": row.id, "time": f"{row.not_before:%H:%M:%S}"}
        )
    code = running_code(key_of(row.run_id, row.generation, row.path, row.attempt)) if outcome == "run_again" else None
    if code is not None:
        raise ConflictError(
            _(
                "Request %(id)s cannot be resolved with run_again: its code is still running in worker %(worker)s, "
                "last seen at %(time)s UTC. Wait until it ends, or choose another outcome."
            )
            % {"id": row.id, "worker": code.worker, "time": f"{code.seen_at:%H:%M:%S}"}
        )


def cancel(request: HumanRequest | UUID | str, *, reason: str = "", by: Any = None, version: int | None = None) -> UUID:
    """`answer(request, "cancel", …)`: withdraw a question, an input or an approval. The agent's code gets this
    action."""
    return answer(request, "cancel", reason=reason, by=by, version=version)


def reassign(
    request: HumanRequest | UUID | str, to: str, *, by: Any = None, reason: str = "", version: int | None = None
) -> HumanRequest:
    """Address a request to `to` in place of its present address. The time left, the later steps and four eyes stay.
    Returns the changed request.

    `by` may answer the request, or is an operator of the site: holds `ravi.change_humanrequest`, may see the request,
    and addresses it to others. None is the site's own operator. Raises InvalidInputError for an address without a user
    who could answer, and the errors of `answer`.
    """
    row = find(request)
    right = escalation.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        raise people_rows.conflict(row)
    address = escalation.address_for(row, to, by, right)
    detail = text_of("reason", reason).strip()
    name = "" if by is None else str(by.get_username())
    seen = row.version if version is None else version
    return escalation.reassign_request(row.id, address, by=by, name=name, reason=detail, version=seen)


def resolve(
    request: HumanRequest | UUID | str,
    outcome: str,
    *,
    result: Any = None,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """`answer(request, "resolve", …)`: decide on an uncertain effect."""
    return answer(request, "resolve", outcome=outcome, result=result, reason=reason, by=by, version=version)


def find(request: HumanRequest | RequestOpened | UUID | str) -> HumanRequest:
    """The row as it is now. Raises NotFoundError."""
    key = request.id if isinstance(request, HumanRequest | RequestOpened) else request
    try:
        row: HumanRequest | None = HumanRequest.objects.select_related("run", "answered_by").filter(id=key).first()
    except (DjangoValidationError, ValueError):
        raise NotFoundError(_("%(id)s is not the id of a request.") % {"id": repr(str(key)[:100])}) from None
    if row is None:
        raise rights.not_found(key)
    return row


def _with_arguments(request: HumanRequest, arguments: dict[str, Any]) -> HumanRequest:
    """A copy for the site's MAY_ANSWER, which may change it."""
    changed = copy(request)
    changed.arguments, changed.arguments_hash = deepcopy(arguments), requests.hash_of(arguments)
    return changed


def _signed(authority: Authority) -> dict[str, str]:
    """The names of the users; they stay when a user is deleted."""
    if authority.user is None:
        return {"by": ""}
    names = {"by": str(authority.user.get_username())}
    if authority.instead_of is not None:
        names["instead_of"] = str(authority.instead_of.get_username())
    return names


def _sticky(request: HumanRequest, stored: dict[str, Any], by: Any) -> StickyDecision:
    return StickyDecision(
        session_id=request.run.session_id,
        agent=request.run.agent,
        tool=request.tool,
        risk=request.risk,
        action=stored["action"],
        reason=stored["reason"],
        request_id=request.id,
        decided_by=by,
        decided_by_name=stored["by"],
    )
