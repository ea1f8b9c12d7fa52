"""Requests to people, from their creation to the answer: questions, approvals, input of tools, uncertain calls,
budgets.

`new` makes one, `announce` opens it in the commit of its journal row, `outcome` waits for the answer or the timeout.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.db import Error as DatabaseError
from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease.appender import Write
from ravi_django.engine.lease.lease_state import NotExpired, TooManyRequests, Wait
from ravi_django.engine.lease.sleeps import check_name, moment, payload_of
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.wake_state import REPLY, of_person
from ravi_django.kernel import Addressees, HumanInput, InvalidInputError
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.json_values import storable
from ravi_django.live.streams.frames import request_as_json
from ravi_django.live.streams.hidden import MARK, without_owner
from ravi_django.models import HumanRequest, Run, uuid7
from ravi_django.people import rights, rows as people_rows, site_rules

if TYPE_CHECKING:
    from ravi_django.engine.lease.recorder import Recorder

log = logging.getLogger("ravi.requests")

T = TypeVar("T")

Status = HumanRequest.Status

EXPIRED = {"action": "expired", "text": "", "by": "", "status": "expired"}
CLOSED = {"action": "cancel", "text": "", "by": "", "status": "cancelled"}  # closed without an answer


def new(
    run: Run,
    path: str,
    kind: HumanRequest.Kind,
    *,
    present: datetime,
    to: Addressees | None = None,
    expires_at: datetime | None = None,
    attempt: int = 1,
    expires: bool = True,
    hidden: bool = False,
    **asked: Any,
) -> HumanRequest:
    """A request that the code of `run` makes at `path`, not saved yet.

    to: None is the setting ADDRESSEES for the kind, tool and risk. expires_at: the latest time; the time of the steps
    may end earlier. expires: False if the run needs a person's decision; the last step then waits forever.
    hidden: only staff see the arguments.
    """
    recipients = (
        to or site_rules.addressees(kind, asked.get("tool", ""), asked.get("risk", "")) or Addressees.of("staff")
    )
    if hidden:
        asked["details"] = {**(asked.get("details") or {}), MARK: True}
        recipients = recipients if kind in rights.CONVERSATION else without_owner(recipients)
    steps = [{"to": rights.address_of(step.to, run.owner_id), "within": step.within} for step in recipients.steps]
    request = HumanRequest(
        id=uuid7(),
        owner_id=run.owner_id,
        tenant=run.tenant,
        run_id=run.id,
        generation=run.generation,
        path=path,
        attempt=attempt,
        kind=kind,
        steps=steps,
        created_at=present,
        four_eyes=kind not in rights.CONVERSATION and bool(conf.FOUR_EYES)
        if recipients.four_eyes is None
        else recipients.four_eyes,
        **asked,
    )
    request.arguments_hash = hash_of(request.arguments)
    limits = [expires_at, None if recipients.within is None else present + timedelta(seconds=recipients.within)]
    request.expires_at = min((limit for limit in limits if limit is not None), default=None) if expires else None
    address_step(request, 0, _begins(request, present))
    return request


async def address(recorder: Recorder, request: HumanRequest) -> None:
    """Address a request of several steps to the first that has a recipient. Before the row that opens it names one."""
    if not _has_several(request):
        return
    try:
        with recorder.waits.busy():
            await recorder.database.call(_address, request, recorder.state.present())
    except DatabaseError:
        raise
    except Exception:  # raised by the site's MAY_ANSWER
        log.exception(
            "requests: the recipients are not known, the first step stays", extra={"action": "request.nobody"}
        )


def _address(request: HumanRequest, present: datetime) -> None:
    if not place_first(request, present):
        names = _names(request)
        log.warning("requests: nobody is at %s of run %s", names, request.run_id, extra={"action": "request.nobody"})


def _names(request: HumanRequest) -> str:
    return " and ".join(step["to"] for step in request.steps or [])


def _has_several(request: HumanRequest) -> bool:
    return len(request.steps or []) > 1


def place_first(request: HumanRequest, present: datetime) -> bool:
    """Address it to the first step that has a recipient, without the time of the steps before. Returns False if no step
    has one. On a database thread."""
    level = _first(request)
    if level:
        steps, begins = request.steps or [], _begins(request, present)
        address_step(request, level, begins)
        if request.expires_at is not None and steps[-1]["within"]:
            left = timedelta(seconds=sum(step["within"] for step in steps[level:]))
            request.expires_at = min(request.expires_at, begins + left)
    return level is not None


def _first(request: HumanRequest) -> int | None:
    steps: list[dict[str, Any]] = request.steps or []
    return next((level for level, step in enumerate(steps) if rights.has_recipient(step["to"], request)), None)


def nobody_at(request: HumanRequest) -> str:
    """Why no step of the request has a recipient."""
    names = _names(request)
    alone = copy(request)
    alone.four_eyes = False
    if not request.four_eyes or _first(alone) is None:
        return f"nobody at {names} may answer it"
    only_owner = f"only the run's owner is at {names}, and may not decide (four eyes)"
    return f"{only_owner}. If your site has one member of staff, set RAVI['FOUR_EYES'] to False"


def _begins(request: HumanRequest, present: datetime) -> datetime:
    """When the time of its steps begins: not before people may answer."""
    return present if request.not_before is None else max(present, request.not_before)


def address_step(request: HumanRequest, level: int, begins: datetime) -> None:
    """Address it to the step of that level, whose time begins at `begins`."""
    request.level, request.to = level, (request.steps or [])[level]["to"]
    request.escalates_at = end_of(request, level, begins)


def end_of(request: HumanRequest, level: int, begins: datetime) -> datetime | None:
    """When the request moves to the next step. After the last step the request expires."""
    steps = request.steps or []
    within = steps[level]["within"]
    return None if level == len(steps) - 1 or not within else begins + timedelta(seconds=within)


def begin_anew(request: HumanRequest, present: datetime) -> None:
    """Ask again after a retry of the run: the first step that has a recipient, with as much time as before. On a
    database thread."""
    if request.expires_at is not None:
        request.expires_at = present + (request.expires_at - request.created_at)
    request.created_at, request.notified = present, -1
    request.asked_at = None
    request.status, request.answered_at = Status.PENDING, None
    if request.steps:
        address_step(request, _first(request) or 0, _begins(request, present))


def hash_of(arguments: Any) -> str:
    """SHA-256 of the arguments' canonical JSON: proves which call was decided on."""
    if arguments is None:
        return ""
    canonical = json.dumps(json.loads(to_json(arguments)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def journal_path(path: str, attempt: int = 1) -> str:
    """The path of the journal row that opens the request of a call. "@closed" before it is the row that closes it."""
    return f"@request.{path}.{attempt}"


def opened(request: HumanRequest) -> dict[str, Any]:
    """The request's fields in the row of the call, for `outcome`."""
    kind = {"kind": str(request.kind)} if request.kind == HumanRequest.Kind.CLIENT_TOOL else {}
    return {"id": str(request.id), "until": request.expires_at and request.expires_at.isoformat(), **kind}


async def announce(
    recorder: Recorder, request: HumanRequest, name: str, write: Write | None = None, trace: Any = None
) -> None:
    """Inside of `performing`: write the request, by `write`, in one commit with the notes and the row that opens it."""
    entry = Entry(
        "request.opened",
        journal_path(request.path, request.attempt),
        name,
        result=request_as_json(request),
        trace=trace,
    )
    recorder.state.has_dependents()
    await recorder.record(entry, write or partial(people_rows.open_request, request=request))


def answered(recorder: Recorder, call: tuple[str, int], request_id: str) -> dict[str, Any] | None:
    """The answer to a request as this lease has read it, EXPIRED or CLOSED. None: it is pending."""
    request = recorder.state.wake_state.requests.get(call)
    if request is None or str(request.id) != request_id or request.status == Status.PENDING:
        return None
    if request.status == Status.ANSWERED:
        return request.answer or {}
    return dict(EXPIRED if request.status == Status.EXPIRED else CLOSED)


async def outcome(
    recorder: Recorder,
    call: tuple[str, int],
    opened: dict[str, Any],
    record: Callable[[Any, Write | None], Awaitable[T]],
    instead: Callable[[], Any] = lambda: None,
) -> T:
    """Wait for the answer to a request, for something `instead`, or for the timeout; returns what `record` returns.

    `call` is the path and attempt of the call, `opened` as `opened` makes it. `record` gets the answer (EXPIRED after
    the timeout, CLOSED when the request was closed without one) and commits it, by `write` where that is given. When
    that raises NotExpired, an answer was first or there is more time, and the wait continues.
    """
    row = recorder.state.wake_state.requests.get(call)
    if row is not None and str(row.id) == opened["id"]:
        until = row.expires_at  # a retry of the run may have given it more time
    else:
        until = opened["until"] and datetime.fromisoformat(opened["until"])
    expire = partial(people_rows.expire_request, request_id=UUID(opened["id"]))
    while True:

        def met(until: datetime | None = until) -> tuple[Any, Write | None] | None:
            answer = answered(recorder, call, opened["id"])
            answer = instead() if answer is None else answer
            if answer is not None:
                return answer, None
            return (dict(EXPIRED), expire) if until is not None and recorder.state.present() >= until else None

        kind = opened.get("kind", "request")
        answer, write = await recorder.waits.wait(Wait(kind, opened["id"], met, until), call[0])
        try:
            return await record(answer, write)
        except NotExpired as error:
            until = error.until or until
        await recorder.refresh()


KIND = "ask_human"
NAME = "question"
MAX_QUESTION = 10_000  # characters
MAX_CONTEXT = 20_000
MAX_CHOICES = 20
MAX_CHOICE = 200
SIGNAL = "signal"  # the action of an answer that is a signal


async def ask(
    ctx: RunState,
    question: str,
    *,
    choices: Sequence[str] | None,
    context: str,
    free_text: bool,
    timeout: float | timedelta | None,
    to: Any = None,
    signal: str = "",
    tool: str = "",
    most: int | None = None,
) -> HumanInput:
    """See `RunContext.ask_human`. `tool` is the name of the tool that asks, `most` the limit of its questions in a run.

    Raises InvalidInputError and TooManyRequests.
    """
    recorder, path = ctx.recorder, ctx.path()
    row = await recorder.recall(path, KIND, NAME, {"question": question, "choices": choices})
    if row is not None:
        return answer_of(row.result)
    begun = recorder.journal.started(path)
    if begun is None:
        recorder.state.check_may_wait(path)
        if signal:
            check_name(signal)
            if not signal.startswith(REPLY):  # other names are the site's: any user who sees the run may send them
                raise InvalidInputError(f"signal of a question begins with {REPLY}, unlike {signal!r}", field="signal")
        request = new(
            recorder.lease.run,
            path,
            HumanRequest.Kind.QUESTION,
            present=recorder.state.present(),
            to=None if to is None else Addressees.of(to),
            tool=tool,
            text=text_of("question", question, 1, MAX_QUESTION),
            choices=choices_of(choices, free_text),
            details={"context": text_of("context", context, 0, MAX_CONTEXT), "free_text": bool(free_text)},
            expires_at=expiry(ctx, timeout),
            signal=signal,
        )
        await address(recorder, request)
        opened = await open_question(ctx, path, request, most)
    else:
        opened = begun.request
    return await outcome_of(ctx, path, opened, signal)


async def open_question(ctx: RunState, path: str, request: HumanRequest, most: int | None = None) -> dict[str, Any]:
    """Open a request in the place of a question. Returns what `outcome_of` takes."""
    recorder = ctx.recorder
    reference = opened(request)
    begun = Entry(KIND, path, NAME, phase="started", request=reference)
    async with recorder.effect():
        recorder.record_with_next(begun)  # in one commit with the next row
        try:
            write = partial(people_rows.open_request, request=request, most=most)
            await announce(recorder, request, NAME, write)
        except TooManyRequests:
            recorder.pending[:] = [note for note in recorder.pending if note is not begun]
            raise
    return reference


async def outcome_of(ctx: RunState, path: str, opened: dict[str, Any], signal: str = "") -> HumanInput:
    """Wait for the answer, a signal in its place, or the timeout."""
    recorder = ctx.recorder

    async def record(answer_or_signal: Any, write: Write | None) -> HumanInput:
        async with recorder.effect():
            if not isinstance(answer_or_signal, tuple):
                closed = {"status": answer_or_signal["status"]} if "status" in answer_or_signal else {}
                entry = Entry(KIND, path, NAME, result={"id": opened["id"], **answer_of(answer_or_signal), **closed})
                await recorder.record(entry, write)
                return answer_of(answer_or_signal)
            answer = answer_of({"action": SIGNAL, "payload": await payload_of(recorder, answer_or_signal)})
            write = partial(people_rows.relay_signal, request_id=UUID(opened["id"]), signal_id=answer_or_signal[0])
            try:
                await recorder.record(Entry(KIND, path, NAME, result={"id": opened["id"], **answer}), write)
            except NotExpired:  # an answer was accepted first
                recorder.state.wake_state.taken_signals.discard(
                    answer_or_signal[0]
                )  # another question of this name may take the signal
                raise
        return answer

    take = partial(recorder.state.wake_state.take_signal, signal, of_person(signal)) if signal else lambda: None
    return await outcome(recorder, (path, 1), opened, record, take)


def answer_of(answer: dict[str, Any]) -> HumanInput:
    """The parts of an answer that the agent's code gets."""
    return HumanInput(answer["action"], answer.get("text", ""), by=answer.get("by", ""), payload=answer.get("payload"))


def text_of(field: str, value: Any, least: int, most: int) -> str:
    if not isinstance(value, str) or not least <= len(value.strip()) <= most:
        raise InvalidInputError(f"{field} is a text of {least} to {most} characters", field=field)
    return str(storable(value)).strip()


def choices_of(choices: Sequence[str] | None, free_text: bool) -> list[str] | None:
    if not choices:
        if not free_text:
            raise InvalidInputError("a question without free text needs choices", field="choices")
        return None
    if isinstance(choices, str) or not 2 <= len(choices) <= MAX_CHOICES:
        raise InvalidInputError(f"choices are 2 to {MAX_CHOICES} texts", field="choices")
    texts = [text_of("choices", choice, 1, MAX_CHOICE) for choice in choices]
    if len(set(texts)) < len(texts):
        raise InvalidInputError("choices must differ from each other", field="choices")
    return texts


def expiry(ctx: RunState, timeout: Any) -> datetime | None:
    if timeout is None:
        return None
    return moment(ctx, check_seconds("timeout", timeout, 10 * 366 * 86400))
