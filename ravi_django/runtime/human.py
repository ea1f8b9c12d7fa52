"""Requests to people: one row, one answer, whatever the surface.

A question is the agent's own (`ctx.ask_human`, see `runtime/questions.py`). An at-most-once effect that was begun and
has no result may have happened: nobody but a person can say. The run waits for either as for anything else, and is
nothing but rows meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError
from pydantic import ValidationError
from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import InvalidInputError, NotFoundError
from ravi_django.kernel.content import blocks_adapter
from ravi_django.models import HumanRequest, uuid7
from ravi_django.runtime import budgets, dispatch, store
from ravi_django.runtime.entries import Entry, storable
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.signals import wake

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext
    from ravi_django.runtime.effects import Effects

OUTCOMES = ("happened", "run_again", "fail")
ACTIONS = ("answer", "skip", "cancel")  # what a person may do to a question, or to a tool that asks for input
DECISIONS = ("approve", "deny", "edit")  # on an approval; "edit" approves with arguments of the person's own
MAX_TEXT = 10_000  # characters of what a person says


async def decide(ctx: DurableContext, entry: Entry, why: str, *, not_before: datetime | None = None) -> dict[str, Any]:
    """Wait for a person's decision on the effect of this entry's attempt: `{"outcome": …, "result"?: …}`."""
    effects = ctx.effects
    asked = effects.journal.system(_path(entry))
    request_id = effects.requested.get(_path(entry)) or (asked.result["id"] if asked is not None else None)
    if request_id is None:
        request_id = await _open(effects, entry, why, not_before)

    def met() -> dict[str, Any] | None:
        request = effects.facts.requests.get((entry.path, entry.attempt))
        return request.answer if request is not None and request.answer else None

    answer: dict[str, Any] = await effects.wait(Wait("request", request_id, met), "")
    effects.note_once(
        Entry("request.closed", f"@closed{_path(entry)}", "uncertain", result={"id": request_id, "answer": answer})
    )
    return answer


async def _open(effects: Effects, entry: Entry, why: str, not_before: datetime | None) -> str:
    run = effects.lease.run
    request = HumanRequest(
        id=uuid7(),
        owner_id=run.owner_id,
        tenant=run.tenant,
        run_id=run.id,
        generation=run.generation,
        path=entry.path,
        attempt=entry.attempt,
        kind=HumanRequest.Kind.UNCERTAIN,
        text=f"{entry.name} may or may not have happened: {why}. Find out, then say: it happened (with its result), "
        "run it again, or fail the run.",
        tool=entry.name,
        arguments=_arguments(entry),
        not_before=not_before,
    )
    announced = Entry("request.opened", _path(entry), "uncertain", result=store.request_shown(request))
    effects.requested[_path(entry)] = str(request.id)
    effects.entangled = True  # first: the commit may stand though this task is cancelled over it
    async with effects.performing():
        await effects.record(announced, partial(store.open_request, request=request))
    return str(request.id)


def _arguments(entry: Entry) -> Any:
    """What was sent: a middleware may have changed what the model has asked for."""
    request = entry.request or {}
    return request.get("ran_with", request.get("arguments"))


def _path(entry: Entry) -> str:
    return f"@request.{entry.path}.{entry.attempt}"


def may_decide_at(effects: Effects, begun_at: datetime, timeout_s: float) -> datetime:
    """Until then the worker that began the effect may still be at it."""
    return begun_at + timedelta(seconds=timeout_s + conf.LEASE_S)


# ------------------------------------------------------------------------------------------------------ answer


def resolve(
    request_id: UUID | str,
    outcome: str,
    *,
    result: Any = None,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """Say what became of an uncertain effect: "happened" with its `result` (text, JSON, or content blocks),
    "run_again" or "fail". The first answer wins. Returns the run's id.

    Raises InvalidInputError, NotFoundError and ConflictError.
    """
    _find(request_id, HumanRequest.Kind.UNCERTAIN)
    if outcome not in OUTCOMES:
        raise InvalidInputError(f"outcome is one of {', '.join(OUTCOMES)}, not {outcome!r}", field="outcome")
    answer: dict[str, Any] = {"action": "resolve", "outcome": outcome, "reason": _text("reason", reason)}
    if outcome == "happened":
        answer["result"] = _result(result)
    elif result is not None:
        raise InvalidInputError(f"a result goes with happened, not with {outcome}", field="result")
    run_id = store.answer_request(request_id, answer, by=by, version=version)
    dispatch.on_commit(run_id, wake)
    return run_id


def answer(
    request_id: UUID | str,
    action: str = "answer",
    *,
    text: str = "",
    values: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """Answer a question, or what a tool has asked for, with `text`, or "skip" or "cancel" it; `values` are the answers
    by key where a tool has asked several questions at once. "approve" or "deny" more budget for a tree, or "edit": with
    `arguments`, the new limits by name, in place of those suggested. The first answer wins. Returns the run's id.

    `by` is the authenticated user, None for the system's own operator. Raises InvalidInputError, also for a text that
    is none of the choices of a question without free text; NotFoundError and ConflictError.
    """
    request = _find(request_id, HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT, HumanRequest.Kind.APPROVAL)
    if request.kind == HumanRequest.Kind.APPROVAL:
        return _decide_top_up(request, action, arguments, said=(text, values), reason=reason, by=by, version=version)
    if arguments is not None:
        raise InvalidInputError("arguments go with an approval", field="arguments")
    if action not in ACTIONS:
        raise InvalidInputError(f"action is one of {', '.join(ACTIONS)}, not {action!r}", field="action")
    given: dict[str, Any] = {"action": action, "text": _text("text", text).strip(), "reason": _text("reason", reason)}
    asked = request.about.get("questions")
    if action != "answer":
        for field, told in (("text", given["text"]), ("values", values)):
            if told:
                raise InvalidInputError(f"{field} goes with answer, not with {action}", field=field)
    elif asked:
        given["values"] = _values(asked, given["text"], values)
    elif values:
        raise InvalidInputError("this asks one thing: answer it with a text", field="values")
    else:
        _check_answer(request, given["text"])
    given["by"] = "" if by is None else str(by.get_username())
    run_id = store.answer_request(request.id, given, by=by, version=version)
    dispatch.on_commit(run_id, wake)
    return run_id


def _decide_top_up(
    request: HumanRequest, action: str, arguments: Any, *, said: Any, reason: str, by: Any, version: int | None
) -> UUID:
    if action not in DECISIONS:
        raise InvalidInputError(f"action is one of {', '.join(DECISIONS)}, not {action!r}", field="action")
    if any(said):
        raise InvalidInputError("an approval takes no text; say why in reason", field="text")
    limits = budgets.check_top_up(request, action, arguments)
    given = {"action": action, "arguments": limits, "reason": _text("reason", reason)}
    given["by"] = "" if by is None else str(by.get_username())
    for run_id in store.answer_top_up(request, given, limits, by=by, version=version):
        dispatch.on_commit(run_id)
    found: UUID = request.run_id
    return found


def _check_answer(request: HumanRequest, text: str) -> None:
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
    given = {key: _text("values", value).strip() for key, value in values.items()}
    if empty := [key for key, value in given.items() if not value]:
        raise InvalidInputError(f"values has no text for {empty[0]!r}; or skip or cancel all of it", field="values")
    return given


def _find(request_id: UUID | str, *kinds: HumanRequest.Kind) -> HumanRequest:
    """What is asked, and of what kind, never changes: no lock is needed to read it."""
    try:
        request: HumanRequest | None = HumanRequest.objects.filter(id=request_id).first()
    except DjangoValidationError:
        raise NotFoundError(f"{str(request_id)[:100]!r} is no request's id") from None
    if request is None:
        raise NotFoundError(f"there is no request {request_id}")
    if request.kind not in kinds:
        uncertain = request.kind == HumanRequest.Kind.UNCERTAIN
        decisions = DECISIONS if request.kind == HumanRequest.Kind.APPROVAL else ACTIONS
        how = f"resolve: {', '.join(OUTCOMES)}" if uncertain else ", ".join(decisions)
        raise InvalidInputError(f"request {request_id} is of kind {request.kind}: {how}", field="action")
    return request


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise InvalidInputError(f"{field} is a text of at most {MAX_TEXT} characters", field=field)
    return str(storable(value))


def _result(value: Any) -> Any:
    try:
        size = len(to_json(value))
    except ValueError as error:
        raise InvalidInputError(f"result is not JSON: {error}", field="result") from None
    if size > conf.MAX_RESULT_BYTES:
        raise InvalidInputError(f"result has {size} bytes, the limit is {conf.MAX_RESULT_BYTES}", field="result")
    return storable(value)


def content_of(value: Any) -> list[Any]:
    """What a person gave as a tool's result, as content blocks."""
    if isinstance(value, list):
        try:
            return blocks_adapter.validate_python(value)
        except ValidationError:
            pass
    text = value if isinstance(value, str) else "" if value is None else to_json(value).decode()
    return blocks_adapter.validate_python([{"type": "text", "text": text}])
