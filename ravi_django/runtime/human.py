"""Requests to people: one row, one answer, whatever the surface.

A question is the agent's own (`ctx.ask_human`, see `runtime/questions.py`). An at-most-once effect that was begun and
has no result may have happened: nobody but a person can say. The run waits for either as for anything else, and is
nothing but rows meanwhile.
"""

from __future__ import annotations

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
from ravi_django.runtime import dispatch, store
from ravi_django.runtime.entries import Entry, storable
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.signals import wake

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext
    from ravi_django.runtime.effects import Effects

OUTCOMES = ("happened", "run_again", "fail")
ACTIONS = ("answer", "skip", "cancel")  # what a person may do to a question
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
    shown = {
        "id": str(request.id),
        "kind": str(request.kind),
        "text": request.text,
        "tool": request.tool,
        "arguments": request.arguments,
    }
    announced = Entry("request.opened", _path(entry), "uncertain", result=shown)
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
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """Answer a question with `text`, or "skip" or "cancel" it. The first answer wins. Returns the run's id.

    `by` is the authenticated user, None for the system's own operator. Raises InvalidInputError, also for a text that
    is none of the choices of a question without free text; NotFoundError and ConflictError.
    """
    request = _find(request_id, HumanRequest.Kind.QUESTION)
    if action not in ACTIONS:
        raise InvalidInputError(f"action is one of {', '.join(ACTIONS)}, not {action!r}", field="action")
    given: dict[str, Any] = {"action": action, "text": _text("text", text).strip(), "reason": _text("reason", reason)}
    if action == "answer":
        _check_answer(request, given["text"])
    elif given["text"]:
        raise InvalidInputError(f"a text goes with answer, not with {action}", field="text")
    given["by"] = "" if by is None else str(by.get_username())
    run_id = store.answer_request(request.id, given, by=by, version=version)
    dispatch.on_commit(run_id, wake)
    return run_id


def _check_answer(request: HumanRequest, text: str) -> None:
    if not text:
        raise InvalidInputError("an answer needs a text; or skip or cancel the question", field="text")
    if request.choices and not (request.arguments or {}).get("free_text", True) and text not in request.choices:
        raise InvalidInputError(f"text must be one of {', '.join(map(repr, request.choices))}", field="text")


def _find(request_id: UUID | str, kind: HumanRequest.Kind) -> HumanRequest:
    """What is asked, and of what kind, never changes: no lock is needed to read it."""
    try:
        request: HumanRequest | None = HumanRequest.objects.filter(id=request_id).first()
    except DjangoValidationError:
        raise NotFoundError(f"{str(request_id)[:100]!r} is no request's id") from None
    if request is None:
        raise NotFoundError(f"there is no request {request_id}")
    if request.kind != kind:
        how = ", ".join(ACTIONS) if request.kind == HumanRequest.Kind.QUESTION else f"resolve: {', '.join(OUTCOMES)}"
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
