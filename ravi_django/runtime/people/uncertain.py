"""Requests about uncertain effects: an at-most-once effect that was started and has no result may have happened."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import Tool
from ravi_django.kernel.content import blocks_adapter
from ravi_django.models import HumanRequest
from ravi_django.runtime.journal.entries import Entry, Recorded
from ravi_django.runtime.lease.caps import timeout_of
from ravi_django.runtime.lease.gate import Wait
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.people import requests
from ravi_django.runtime.streams import hidden

if TYPE_CHECKING:
    from ravi_django.runtime.lease.effects import Effects


async def decide(ctx: RunState, entry: Entry, why: str, *, not_before: datetime | None = None) -> dict[str, Any]:
    """Wait for a person's decision on this attempt: `{"outcome": …, "result"?: …}`."""
    effects = ctx.effects
    request_id = asked(effects, entry) or await _open(effects, entry, why, not_before)

    def met() -> dict[str, Any] | None:
        request = effects.facts.requests.get((entry.path, entry.attempt))
        return request.answer if request is not None and request.answer else None

    answer: dict[str, Any] = await effects.wait(Wait("request", request_id, met), "")
    closed = {"id": request_id, "answer": answer, **hidden.of_call(entry.request)}
    place = requests.place_of(entry.path, entry.attempt)
    effects.note_once(Entry("request.closed", f"@closed{place}", "uncertain", result=closed))
    return answer


def asked(effects: Effects, entry: Entry) -> str | None:
    """The id of the request about this attempt, if it is open."""
    place = requests.place_of(entry.path, entry.attempt)
    opened = effects.journal.system(place)
    return effects.requested.get(place) or (opened.result["id"] if opened is not None else None)


async def _open(effects: Effects, entry: Entry, why: str, not_before: datetime | None) -> str:
    run = effects.lease.run
    request = requests.new(
        run,
        entry.path,
        HumanRequest.Kind.UNCERTAIN,
        present=effects.present(),
        attempt=entry.attempt,
        text=f"{entry.name} may or may not have happened: {why}. Find out, then say: it happened (with its result), "
        "run it again, or fail the run.",
        tool=entry.name,
        arguments=arguments_of(entry),
        not_before=not_before,
        expires=False,
        hidden=bool(hidden.of_call(entry.request)),
    )
    await requests.address(effects, request)
    effects.requested[requests.place_of(entry.path, entry.attempt)] = str(request.id)
    async with effects.performing():
        await requests.announce(effects, request, "uncertain")
    return str(request.id)


def arguments_of(entry: Entry) -> Any:
    """The arguments of the call, as changed by middleware."""
    request = entry.request or {}
    return request.get("ran_with", request.get("arguments"))


def may_decide_at(effects: Effects, begun: Entry | Recorded | None, tool: Tool | None) -> datetime:
    """When the effect has ended in any case: no effect begins after the end of its lease, and each has a timeout.
    `begun` is None for a call of this lease whose timeout has ended."""
    if begun is None:
        return effects.present() + timedelta(seconds=conf.LEASE_S)
    seconds = timeout_of(tool) if tool else conf.TOOL_TIMEOUT_S
    if not isinstance(begun, Recorded):
        return effects.present() + timedelta(seconds=seconds + conf.LEASE_S)
    ends = effects.journal.lost_leases(begun.seq)
    if effects.lease.expired_at is not None:
        ends.append(effects.lease.expired_at)
    end = max(ends, default=begun.finished_at + timedelta(seconds=conf.LEASE_S))
    return end + timedelta(seconds=seconds)


def content_of(value: Any) -> list[Any]:
    """The result that a person gave, as content blocks."""
    if isinstance(value, list):
        try:
            return blocks_adapter.validate_python(value)
        except ValidationError:
            pass
    text = value if isinstance(value, str) else "" if value is None else to_json(value).decode()
    return blocks_adapter.validate_python([{"type": "text", "text": text}])
