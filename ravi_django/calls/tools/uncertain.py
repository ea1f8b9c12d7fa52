"""At-most-once effects that began and have no result: they may have happened. The tool's own check is asked first, then
a person decides."""

from __future__ import annotations

import inspect
import logging
from datetime import datetime, timedelta
from typing import Any

from ravi_django.calls.llm.errors import error_text
from ravi_django.calls.tools.execute import awaited, on_a_thread, scope_below
from ravi_django.calls.tools.results import happened, result_of
from ravi_django.calls.tools.tool_threads import NoThreadLeft
from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.journal.replay import ARGUMENTS, arguments_digest
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.lease_state import Stop, Wait
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.tool_limits import KIND, timeout_of
from ravi_django.kernel.content import blocks_json
from ravi_django.kernel.errors import (
    CancellationError,
    LeaseLostError,
    PermanentError,
    UncertainEffectError,
)
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import Happened, NotHappened, Tool
from ravi_django.live.streams import hidden
from ravi_django.people import uncertain

LOST_S = 600.0  # a check waits so long for code that goes on after its timeout; then a person is asked

log = logging.getLogger("ravi.tools")


async def checked(ctx: RunState, entry: Entry, not_before: datetime | None) -> dict[str, Any] | None:
    """The check's answer on this attempt, in the form of a person's decision; None when it does not know.

    The answer is journaled, so the check runs once. It runs when the code of the attempt has ended; a late result is
    the answer.
    """
    recorder, path = ctx.recorder, uncertain.checked_path(entry)
    recorded = recorder.journal.find(path) or recorder.journal.find(uncertain.late_path(entry))
    if recorded is not None:
        answer = recorded.result
    else:
        tool = ctx.toolbox.get(entry.name)
        if tool is None or tool.check is None or uncertain.asked(recorder, entry):
            return None
        answer = await _ended(ctx, entry, not_before)
        if answer is None:
            answer = {"by": f"check of {tool.name}", **await _answer(ctx, tool, entry), **hidden.of_call(entry.request)}
            recorder.record_with_next_once(Entry("effect.checked", path, entry.name, result=answer))
    return None if answer["outcome"] == "unknown" else dict(answer)


async def _ended(ctx: RunState, entry: Entry, not_before: datetime | None) -> dict[str, Any] | None:
    """Wait until the code of the attempt has ended, and until `not_before`. Returns its late result, "unknown" if it
    goes on for too long, else None."""
    recorder = ctx.recorder
    while True:
        seen = recorder.state.wake_state.wake_seq
        late, code = await recorder.database.call(uncertain.running, recorder, entry)
        until = not_before or recorder.state.present()
        if code is not None:
            lost_at = code.ends + timedelta(seconds=LOST_S)
            if recorder.state.present() >= lost_at:
                return {"outcome": "unknown"}
            until = min(max(until, code.until), lost_at)
        if late is not None or recorder.state.present() >= until:
            return late  # type: ignore[no-any-return]

        def met(until: datetime = until, seen: int = seen) -> bool | None:
            return recorder.state.present() >= until or recorder.state.wake_state.wake_seq > seen or None

        await recorder.waits.wait(Wait("timer", "check", met, until))


async def _answer(ctx: RunState, tool: Tool, entry: Entry) -> dict[str, Any]:
    check, timeout = tool.check, timeout_of(tool)
    assert check is not None
    with paths.entered(scope_below(entry.path, None)):
        arguments, key = uncertain.arguments_of(entry), ctx.idempotency_key
    try:
        if inspect.iscoroutinefunction(check):
            outcome = check(arguments, key)
        else:
            outcome = await on_a_thread(ctx, lambda: check(arguments, key), timeout)
        if inspect.isawaitable(outcome):
            outcome = await awaited(tool, outcome, timeout)
    except (CancellationError, LeaseLostError, NoThreadLeft):
        raise
    except Exception as error:
        log.warning("the check of %s failed: %s", tool.name, error_text(error), extra={"action": "tool.check_failed"})
        return {"outcome": "unknown", "error": error_text(error)}
    if isinstance(outcome, Happened):
        return {"outcome": "happened", "result": blocks_json(happened(tool.name, outcome.result).content)}
    if outcome is NotHappened or isinstance(outcome, NotHappened):
        return {"outcome": "run_again"}
    return {"outcome": "unknown"}


async def decided(ctx: RunState, entry: Entry) -> ToolExecutionResult | None:
    """An at-most-once effect that began and has no result is uncertain, whatever the tool promises now: a person's
    decision is its result. None: perform it, as the next attempt."""
    recorder = ctx.recorder
    for path, row in recorder.journal.open_started.items():
        if path not in recorder.state.asked and _same_call(row, entry):
            raise _uncertain(entry, f"it was started at {path!r}, from where the code has moved it")
    entry.attempt = recorder.journal.next_attempt(entry.path)
    begun = recorder.journal.open_started.get(entry.path)
    if begun is None:
        return None
    entry.attempt = begun.attempt
    if "ran_with" in (begun.request or {}):
        entry.request = {**entry.request, "ran_with": begun.request["ran_with"]}
    tool = ctx.toolbox.get(entry.name)
    decidable = uncertain.may_decide_at(recorder, begun, tool)
    seen = decidable - timedelta(seconds=conf.LEASE_S + (timeout_of(tool) if tool else conf.TOOL_TIMEOUT_S))
    why = f"it was started at {begun.finished_at:%Y-%m-%d %H:%M:%S} UTC and its worker died"
    why += f", last seen at {seen:%H:%M:%S} UTC"
    return await decide(ctx, entry, why, decidable)


async def decide(ctx: RunState, entry: Entry, why: str, not_before: datetime | None) -> ToolExecutionResult | None:
    """Ask the tool's check, then a person; None means "run it again", as the next attempt."""
    recorder = ctx.recorder
    recorder.state.started.pop(entry.path, None)
    recorder.state.uncertain[entry.path] = entry
    answer = await checked(ctx, entry, not_before) or await uncertain.decide(ctx, entry, why, not_before=not_before)
    if answer["outcome"] == "fail":
        reason = "" if hidden.of_call(entry.request) else f"{why}; "  # the run's error: the owner reads it
        await recorder.waits.end(
            Stop(Stop.Kind.FAIL, _uncertain(entry, f"{reason}a person has decided to fail the run"))
        )
    recorder.state.uncertain.pop(entry.path, None)
    if answer["outcome"] == "run_again":
        entry.attempt += 1
        entry.request.pop("ran_with", None)
        return None
    return result_of(ToolExecutionResult(content=uncertain.content_of(answer.get("result"))))


def _same_call(row: Recorded, entry: Entry) -> bool:
    return row.name == entry.name and (row.digests or {}).get(ARGUMENTS) == arguments_digest(entry.request["arguments"])


async def decide_left(ctx: RunState) -> None:
    """At the end of the agent's code, decide the at-most-once effects that it began and did not await."""
    recorder = ctx.recorder
    left = recorder.state.left_open()
    if left:
        recorder.state.reopen()
    for path, begun in left.items():
        entry = Entry(KIND, path, begun.name, attempt=begun.attempt, request=begun.request, digests=begun.digests)
        decidable = uncertain.may_decide_at(recorder, begun, ctx.toolbox.get(entry.name))
        why = "the run's code did not wait for it"
        answer = await checked(ctx, entry, decidable) or await uncertain.decide(ctx, entry, why, not_before=decidable)
        if answer["outcome"] == "fail":
            raise PermanentError(f"{entry.name} at {path!r}: a person has decided to fail the run")


def _uncertain(entry: Entry, why: str) -> UncertainEffectError:
    return UncertainEffectError(
        f"{entry.name} may or may not have happened: {why}. It is not retried automatically; a person decides",
        path=entry.path,
        tool=entry.name,
    )
