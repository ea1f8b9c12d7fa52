"""A tool that returns a pause. One commit closes its attempt and opens the request or ask that it waits for. The call
continues as the next attempt, with the outcome.

The calls of an attempt have paths of their own: after the pause of attempt 2 they are numbered below `…/~2.`. So code
that reacts differently to another answer never gets the results of the attempt before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ravi_django.agents.tools.delegate import outcome_as_result, without_late_reply
from ravi_django.calls.tools.execute import path_after_pause
from ravi_django.calls.tools.results import error as error_result
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.replay import ARGUMENTS
from ravi_django.engine.lease import stopwatch
from ravi_django.engine.lease.appender import Write
from ravi_django.engine.lease.lease_state import ToolPaused
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.tool_limits import KIND
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.flow import PauseForChildResult, PauseForInputResult
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import Message, ToolExecutionResult
from ravi_django.kernel.people import Addressees, HumanInput
from ravi_django.kernel.tools import Effect, Tool
from ravi_django.live.streams import hidden
from ravi_django.live.streams.frames import request_as_json
from ravi_django.models import HumanRequest
from ravi_django.people import requests, rows as people_rows
from ravi_django.runs.teams import asks
from ravi_django.runs.teams.messages import run_id_of

MAX_PAUSES = 20  # of one call: a tool that always asks again never ends
MAX_QUESTIONS = 20  # of one pause
MAX_KEY = 100  # characters

Pause = dict[str, Any]  # the result of a paused row: the request or ask, and the attempt


class PauseRefused(Exception):
    """The call cannot pause; the message becomes its result."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of an attempt: the paused row, the row that opens the request or ask, and the write that goes with
    them."""

    pause: Pause
    rows: list[Entry]
    write: Write
    done: Callable[[], None]  # once it is committed
    request: HumanRequest | None = None  # to a person

    def announce(self) -> None:
        """Put the request into the rows, once its approvers are known."""
        if self.request is not None:
            self.pause.update(requests.opened(self.request))
            self.rows[1].result = request_as_json(self.request)


def resumed(ctx: RunState, entry: Entry) -> Pause | None:
    """The pause of an earlier lease after which this call continues."""
    row = ctx.recorder.journal.paused(entry.path)
    if row is None:
        return None
    pause: Pause = row.result
    ctx.recorder.state.paused[entry.path] = pause
    ctx.pass_turns(path_after_pause(entry.path, pause), pause.get("turns", 0))
    stopwatch.carry(pause.get("spent_s", 0.0))
    return pause


async def close(ctx: RunState, entry: Entry, paused: ToolPaused) -> Pause | ToolExecutionResult:
    """Record that the attempt has paused, and make the entry the next attempt; or an error on why it cannot pause."""
    recorder, tool = ctx.recorder, ctx.toolbox.get(entry.name)
    try:
        if isinstance(paused.pause, PauseForChildResult):
            await recorder.database.call(_check_child, ctx, paused.pause)
        closing = _closing(ctx, tool, entry, paused.pause)
        if closing.request is not None:
            await requests.address(recorder, closing.request)
        closing.announce()
    except PauseRefused as refused:
        return error_result(str(refused))
    recorder.record_with_next(closing.rows[0])  # in one commit with the next row
    try:
        await recorder.record(closing.rows[1], closing.write)
    except asyncio.CancelledError:  # it is committed nevertheless
        recorder.state.started.pop(entry.path, None)
        raise
    closing.done()
    pause = closing.pause
    recorder.state.started.pop(entry.path, None)
    recorder.state.paused[entry.path] = pause
    entry.attempt = int(pause["attempt"]) + 1
    entry.request = {name: value for name, value in entry.request.items() if name != "ran_with"}
    return pause


async def outcome(ctx: RunState, entry: Entry, pause: Pause) -> HumanInput | ToolExecutionResult:
    """Wait for the outcome: a person's answer for the tool, or a child's outcome, which is the call's result."""
    if pause["pause"] == "child":
        handle = RunHandle(pause["run"], AgentId.parse(pause["agent"]))
        child_outcome = await asks.outcome(ctx, _ask_path(entry.path, pause), handle, pause["ask"])
        return outcome_as_result(handle.agent_id, child_outcome, pause["timeout"])
    answer = await _answer(ctx, entry, pause)
    return HumanInput(answer["action"], answer.get("text", ""), answer.get("values"), answer.get("by", ""))


async def _answer(ctx: RunState, entry: Entry, pause: Pause) -> dict[str, Any]:
    recorder, attempt = ctx.recorder, int(pause["attempt"])
    closed_path = f"@closed{requests.journal_path(entry.path, attempt)}"
    if (known := recorder.journal.find(closed_path)) is not None:
        return dict(known.result["answer"])

    async def record(answer: Any, write: Write | None) -> dict[str, Any]:
        result = {"id": pause["id"], "answer": answer, **hidden.of_call(entry.request)}
        closed = Entry("request.closed", closed_path, "input", result=result)
        if write is None:
            recorder.record_with_next_once(closed)  # before any row that follows from it
        else:
            await recorder.record(closed, write)
        return dict(answer)

    return await requests.outcome(recorder, (entry.path, attempt), pause, record)


AnyPause = PauseForInputResult | PauseForChildResult


def _closing(ctx: RunState, tool: Tool | None, entry: Entry, pause: AnyPause) -> Closing:
    before = ctx.recorder.state.paused.get(entry.path)
    number = (before["number"] if before else 0) + 1
    if number > MAX_PAUSES:
        raise PauseRefused(f"{entry.name} has paused {MAX_PAUSES} times in one call, which is the limit; it was ended")
    row = Entry(KIND, entry.path, entry.name, phase="paused", attempt=entry.attempt, request=entry.request)
    row.digests = {ARGUMENTS: ctx.recorder.state.asked[entry.path]}
    row.elapsed_s = stopwatch.own_time()
    row.result = {"attempt": entry.attempt, "number": number, "spent_s": round(row.elapsed_s, 3)}
    if turns := ctx.turns_in(entry.path):
        row.result["turns"] = turns
    try:
        ctx.recorder.state.check_may_wait(entry.path)
        if isinstance(pause, PauseForChildResult):
            return _for_child(ctx, tool, row, pause)
        return _for_input(ctx, tool, row, pause)
    except InvalidInputError as error:
        raise PauseRefused(f"{entry.name} cannot pause: {error}") from error


def _check_child(ctx: RunState, pause: PauseForChildResult) -> None:
    """On a thread. Raises PauseRefused for a run that this one may not address."""
    if not isinstance(pause.handle, RunHandle):
        raise PauseRefused(f"PauseForChildResult takes the handle that ctx.spawn returned, not {pause.handle!r}")
    try:
        reachable = asks.is_reachable(ctx.recorder.lease.run, run_id_of(pause.handle))
    except InvalidInputError as error:
        raise PauseRefused(str(error)) from error
    if not reachable:
        raise PauseRefused(f"there is no run {pause.handle.run_id} that this run may wait for")


def _for_child(ctx: RunState, tool: Tool | None, row: Entry, pause: PauseForChildResult) -> Closing:
    if pause.message is not None and not isinstance(pause.message, Message):
        raise InvalidInputError(
            "message is the Message that the child was booted with or sent, or None", field="message"
        )
    recorder, handle = ctx.recorder, pause.handle
    seconds = None if pause.timeout is None else check_seconds("timeout", pause.timeout)
    path = _ask_path(row.path, row.result)
    message = None if pause.message is None else without_late_reply(pause.message)
    opening = asks.opening(ctx, path, handle, message, seconds)
    row.result |= {
        "pause": "child",
        "run": handle.run_id,
        "agent": str(handle.agent_id),
        "ask": opening.entry.request,
        "timeout": seconds,
        "again": tool is not None and tool.promised_effect is Effect.IDEMPOTENT,
    }
    return Closing(row.result, [row, opening.entry], opening.write, partial(opening.announce, recorder))


def _ask_path(path: str, pause: Pause) -> str:
    return f"{path_after_pause(path, pause)}1"


def _for_input(ctx: RunState, tool: Tool | None, row: Entry, pause: PauseForInputResult) -> Closing:
    if tool is None or tool.input_parameter is None:
        raise InvalidInputError(
            "it has no parameter for the answer; annotate one `HumanInput | None`, with the default None",
            field="request",
        )
    request = _request(ctx, row, pause)
    row.result["pause"] = "input"
    opened = Entry("request.opened", requests.journal_path(row.path, row.attempt), "input")
    ctx.recorder.state.has_dependents()
    return Closing(row.result, [row, opened], partial(people_rows.open_request, request=request), lambda: None, request)


def _request(ctx: RunState, row: Entry, pause: PauseForInputResult) -> HumanRequest:
    asked = _questions(pause)
    single = isinstance(asked, str)
    if pause.choices and not single:
        raise InvalidInputError("choices are for a single question; ask it alone", field="choices")
    details: dict[str, Any] = {
        "context": requests.text_of("context", pause.context, 0, requests.MAX_CONTEXT),
        "free_text": not pause.choices,
    }
    if not single:
        details["questions"] = asked
    return requests.new(
        ctx.recorder.lease.run,
        row.path,
        HumanRequest.Kind.INPUT,
        present=ctx.recorder.state.present(),
        attempt=row.attempt,
        to=None if pause.to is None else Addressees.of(pause.to),
        text=asked if single else "\n".join(f"{key}: {text}" for key, text in asked.items()),
        choices=requests.choices_of(pause.choices, not pause.choices),
        tool=row.name,
        arguments=row.request.get("ran_with", row.request["arguments"]),
        details=details,
        expires_at=requests.expiry(ctx, pause.timeout),
        hidden=bool(hidden.of_call(row.request)),
    )


def _questions(pause: PauseForInputResult) -> Any:
    """The question, or several by key."""
    if not isinstance(pause.request, Mapping):
        return requests.text_of("request", pause.request, 1, requests.MAX_QUESTION)
    if not 0 < len(pause.request) <= MAX_QUESTIONS:
        raise InvalidInputError(f"request has 1 to {MAX_QUESTIONS} questions", field="request")
    return {
        requests.text_of("a question's key", key, 1, MAX_KEY): requests.text_of(
            "request", text, 1, requests.MAX_QUESTION
        )
        for key, text in pause.request.items()
    }
