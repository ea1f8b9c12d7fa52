"""Requests about uncertain effects: an at-most-once effect that was started and has no result may have happened."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.journal.append import write_outside
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.lease.lease_state import Wait
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.tool_limits import timeout_of
from ravi_django.kernel import ConflictError, Tool
from ravi_django.kernel.content import blocks_adapter
from ravi_django.live.streams import hidden
from ravi_django.models import TERMINAL, HumanRequest, JournalEntry, Run
from ravi_django.people import requests, rows as people_rows
from ravi_django.people.records import record, record_late
from ravi_django.runs import hints, workers
from ravi_django.runs.wake import touch
from ravi_django.runs.workers import RunningCode

if TYPE_CHECKING:
    from ravi_django.engine.lease.recorder import Recorder


async def decide(ctx: RunState, entry: Entry, why: str, *, not_before: datetime | None = None) -> dict[str, Any]:
    """Wait for a person's decision on this attempt: `{"outcome": …, "result"?: …}`."""
    recorder = ctx.recorder
    request_id = asked(recorder, entry) or await _open(recorder, entry, why, not_before)

    def met() -> dict[str, Any] | None:
        request = recorder.state.wake_state.requests.get((entry.path, entry.attempt))
        return request.answer if request is not None and request.answer else None

    answer: dict[str, Any] = await recorder.waits.wait(Wait("request", request_id, met), "")
    closed = {"id": request_id, "answer": answer, **hidden.of_call(entry.request)}
    request_path = requests.journal_path(entry.path, entry.attempt)
    recorder.record_with_next_once(Entry("request.closed", f"@closed{request_path}", "uncertain", result=closed))
    return answer


def asked(recorder: Recorder, entry: Entry) -> str | None:
    """The id of the request about this attempt, if it is open."""
    request_path = requests.journal_path(entry.path, entry.attempt)
    opened = recorder.journal.find(request_path)
    return recorder.state.requested.get(request_path) or (opened.result["id"] if opened is not None else None)


async def _open(recorder: Recorder, entry: Entry, why: str, not_before: datetime | None) -> str:
    run = recorder.lease.run
    with recorder.waits.busy():
        _, code = await recorder.database.call(running, recorder, entry)
    if code is not None:
        why += f"; {code}"
    request = requests.new(
        run,
        entry.path,
        HumanRequest.Kind.UNCERTAIN,
        present=recorder.state.present(),
        attempt=entry.attempt,
        text=f"{entry.name} may or may not have happened: {why}. Find out, then say: it happened (with its result), "
        "run it again, or fail the run.",
        tool=entry.name,
        arguments=arguments_of(entry),
        not_before=not_before,
        expires=False,
        hidden=bool(hidden.of_call(entry.request)),
    )
    await requests.address(recorder, request)
    recorder.state.requested[requests.journal_path(entry.path, entry.attempt)] = str(request.id)
    async with recorder.effect():
        await requests.announce(recorder, request, "uncertain", trace=entry.trace)
    late, _ = await recorder.database.call(running, recorder, entry)
    if late is not None:  # `end_late` has not seen the request
        with suppress(ConflictError):
            await recorder.database.call(people_rows.answer_request, request.id, _resolved(late), by=None)
        await recorder.refresh()
    return str(request.id)


def arguments_of(entry: Entry) -> Any:
    """The arguments of the call, as changed by middleware."""
    request = entry.request or {}
    return request.get("ran_with", request.get("arguments"))


def may_decide_at(recorder: Recorder, begun: Entry | Recorded, tool: Tool | None) -> datetime:
    """When code that keeps its timeout has ended: no effect begins after the end of its lease. `running` finds the
    other."""
    seconds = timeout_of(tool) if tool else conf.TOOL_TIMEOUT_S
    if not isinstance(begun, Recorded):
        return recorder.state.present() + timedelta(seconds=seconds + conf.LEASE_S)
    resumed = [row.result for row in recorder.journal.recorded("run.resumed") if row.seq > begun.seq]
    ends = [datetime.fromisoformat(result["after"]) for result in resumed if "after" in result]
    if recorder.lease.expired_at is not None:
        ends.append(recorder.lease.expired_at)
    end = max(ends, default=begun.finished_at + timedelta(seconds=conf.LEASE_S))
    return end + timedelta(seconds=seconds)


def running(recorder: Recorder, entry: Entry) -> tuple[Any, RunningCode | None]:
    """On a database thread: the late result of the attempt, as the row that `end_late` writes has it, and its code
    where it still runs."""
    run = recorder.lease.run
    code = workers.running_code(workers.key_of(run.id, run.generation, entry.path, entry.attempt))
    rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, path=late_path(entry))
    return rows.values_list("result", flat=True).first(), code


def checked_path(entry: Entry) -> str:
    """The path of the row that has the check's answer on the attempt."""
    return f"@checked.{entry.path}.{entry.attempt}"


def late_path(entry: Entry) -> str:
    """The path of the row that has the late result of the attempt, if nobody was asked. Another worker may write the
    check's answer meanwhile."""
    return f"@late.{entry.path}.{entry.attempt}"


def _resolved(answer: dict[str, Any]) -> dict[str, Any]:
    return {"action": "resolve", "reason": "", **answer}


def end_late(run: Run, entry: Entry, worker: str, content: list[Any] | None) -> None:
    """The code of an attempt has ended after its call was given up; `content` is its result, None if it has none. The
    result is an answer like a person's: the first one counts. Where nobody was asked, it is the result of the check, or
    of a run that has ended a record of the audit log."""
    answer = {"outcome": "happened", "result": content, "by": f"worker {worker}"}
    call = {"generation": run.generation, "path": entry.path, "attempt": entry.attempt}
    asked = HumanRequest.objects.filter(run_id=run.id, kind=HumanRequest.Kind.UNCERTAIN, **call)
    with transaction.atomic():
        held = Run.objects.select_for_update(no_key=True).filter(id=run.id).first()
        request = asked.order_by("-id").first()
        if held is None:
            return
        if held.generation != run.generation or (request is None and held.status in TERMINAL):
            if content is not None:
                record_late(held, call, entry.name, answer)
            return
        late = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, path=late_path(entry))
        if content is not None and request is None and not late.exists():  # by a try whose commit was not confirmed
            result = {**answer, **hidden.of_call(entry.request)}
            write_outside(held, Entry("effect.checked", late_path(entry), entry.name, result=result))
        if request is None or content is None:  # else the answer wakes the run
            touch([run.id])
    if content is not None and request is not None:
        try:
            people_rows.answer_request(request.id, _resolved(answer), by=None)
        except ConflictError:  # the first answer counts
            with transaction.atomic():
                record(request, "late", held, {"answer": answer})
    hints.on_commit(run.id)


def content_of(value: Any) -> list[Any]:
    """The result that a person gave, as content blocks."""
    if isinstance(value, list):
        try:
            return blocks_adapter.validate_python(value)
        except ValidationError:
            pass
    text = value if isinstance(value, str) else "" if value is None else to_json(value).decode()
    return blocks_adapter.validate_python([{"type": "text", "text": text}])
