"""Questions to people: `ctx.ask_human`. Each call has one request, which a replay finds by the path of the call.

The call writes a started row with the request and a result row with the answer. In between the run may suspend.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ravi_django.kernel import Addressees, HumanInput, InvalidInputError
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.json_values import storable
from ravi_django.models import HumanRequest
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.lease.appender import Write
from ravi_django.runtime.lease.gate import NotDue, TooManyRequests
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.lease.waits import REPLY, check_name, moment, payload_of
from ravi_django.runtime.people import requests, rows as people_rows

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
    effects, path = ctx.effects, ctx.path()
    row = await effects.recall(path, KIND, NAME, None, None)
    if row is not None:
        return _answer(row.result)
    begun = effects.journal.started(path)
    if begun is None:
        effects.check_may_wait(path)
        if signal:
            check_name(signal)
            if not signal.startswith(REPLY):  # other names are the site's: any user who sees the run may send them
                raise InvalidInputError(f"signal of a question begins with {REPLY}, unlike {signal!r}", field="signal")
        request = requests.new(
            effects.lease.run,
            path,
            HumanRequest.Kind.QUESTION,
            present=effects.present(),
            to=None if to is None else Addressees.of(to),
            tool=tool,
            text=text_of("question", question, 1, MAX_QUESTION),
            choices=choices_of(choices, free_text),
            details={"context": text_of("context", context, 0, MAX_CONTEXT), "free_text": bool(free_text)},
            expires_at=expiry(ctx, timeout),
            signal=signal,
        )
        await requests.address(effects, request)
        opened = await _open(ctx, path, request, most)
    else:
        opened = begun.request
    return await _outcome(ctx, path, opened, signal)


async def _open(ctx: RunState, path: str, request: HumanRequest, most: int | None) -> dict[str, Any]:
    effects = ctx.effects
    opened = requests.opened(request)
    begun = Entry(KIND, path, NAME, phase="started", request=opened)
    async with effects.performing():
        effects.note(begun)  # in one commit with the next row
        try:
            write = partial(people_rows.open_request, request=request, most=most)
            await requests.announce(effects, request, NAME, write)
        except TooManyRequests:
            effects.notes[:] = [note for note in effects.notes if note is not begun]
            raise
    return opened


async def _outcome(ctx: RunState, path: str, opened: dict[str, Any], signal: str) -> HumanInput:
    """Wait for the answer, a signal in its place, or the timeout."""
    effects = ctx.effects

    async def record(found: Any, write: Write | None) -> HumanInput:
        async with effects.performing():
            if not isinstance(found, tuple):
                closed = {"status": found["status"]} if "status" in found else {}
                entry = Entry(KIND, path, NAME, result={"id": opened["id"], **_answer(found), **closed})
                await effects.record(entry, write)
                return _answer(found)
            answer = _answer({"action": SIGNAL, "payload": await payload_of(effects, found)})
            write = partial(people_rows.relay_signal, request_id=UUID(opened["id"]), signal_id=found[0])
            try:
                await effects.record(Entry(KIND, path, NAME, result={"id": opened["id"], **answer}), write)
            except NotDue:  # an answer was accepted first
                effects._given.discard(found[0])  # another question of this name may take the signal
                raise
        return answer

    take = partial(effects.take_signal, signal) if signal else lambda: None
    return await requests.outcome(effects, (path, 1), opened, record, take)


def _answer(found: dict[str, Any]) -> HumanInput:
    """The parts of an answer that the agent's code gets."""
    return HumanInput(found["action"], found.get("text", ""), by=found.get("by", ""), payload=found.get("payload"))


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
    found = [text_of("choices", choice, 1, MAX_CHOICE) for choice in choices]
    if len(set(found)) < len(found):
        raise InvalidInputError("choices must differ from each other", field="choices")
    return found


def expiry(ctx: RunState, timeout: Any) -> datetime | None:
    if timeout is None:
        return None
    return moment(ctx, check_seconds("timeout", timeout, 10 * 366 * 86400))
