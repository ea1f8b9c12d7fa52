"""Approvals by people: `ctx.approve`. Each call has one request, which a replay finds by the path of the call.

The call writes a started row with the request and a result row with the decision. In between the run may suspend. Only
a person's "approve" or "edit" approves: for this call, or for the tool in this session. Everything else denies, an
error too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError
from pydantic_core import to_json

from ravi_django.agents.react.approval import nobody
from ravi_django.agents.tools.schemas import check_schema
from ravi_django.engine.journal.entries import Entry, Recorded, as_recorded
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.appender import Write
from ravi_django.engine.lease.lease_state import StickyRevoked, Stop
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import Addressees, DeterminismError, HumanInput, InvalidInputError, Risk, Tool
from ravi_django.kernel.json_values import check_json, storable
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, is_too_deep
from ravi_django.live.streams.hidden import MARK
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.people import requests, rights, rows as people_rows, site_rules, sticky
from ravi_django.people.sticky import KIND, RecordedDecision, as_decision, decided, denied, is_used, recalled

log = logging.getLogger("ravi.approvals")

MAX_SCHEMA = 20_000  # bytes; only the tool checks the arguments of a larger one
MAX_DESCRIPTION = 2000  # characters
MAX_SHOWN = 10  # arguments in the request's sentence
MAX_VALUE = 80  # characters of each


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that needs an approval."""

    tool: str
    arguments: dict[str, Any]
    risk: Risk
    to: Addressees | None  # None: those of RAVI["ADDRESSEES"]
    call_id: str
    schema: dict[str, Any] | None
    description: str
    expires_at: datetime | None
    hidden: bool  # from the owner of the run

    @property
    def request(self) -> dict[str, Any]:
        """For the rows: a replay must ask for the same."""
        return {"arguments": self.arguments, "risk": self.risk.value, **({MARK: True} if self.hidden else {})}


def checked(
    tool: Any,
    arguments: Any,
    *,
    risk: Any,
    to: Any,
    call_id: str,
    schema: Any,
    description: Any,
    expires_at: datetime | None,
    hidden: bool = False,
) -> Asked:
    """Raises InvalidInputError that names the parameter."""
    if not isinstance(tool, str) or not tool.strip():
        raise InvalidInputError(f"tool is the name of a tool, not {tool!r}", field="tool")
    if not isinstance(arguments, dict):
        raise InvalidInputError(f"arguments is a dict of the tool's parameters, not {arguments!r}", field="arguments")
    if is_too_deep(arguments):
        message = f"the arguments are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"
        raise InvalidInputError(message, field="arguments")
    try:
        level = Risk(risk)
    except ValueError:
        message = f"risk is one of {', '.join(one.value for one in Risk)}, not {risk!r}"
        raise InvalidInputError(message, field="risk") from None
    if description is not None and not isinstance(description, str):
        raise InvalidInputError(f"description is a text, not {description!r}", field="description")
    name = str(storable(tool))[:200]
    return Asked(
        tool=name,
        arguments=as_recorded(name, arguments),
        risk=level,
        to=None if to is None else Addressees.of(to),
        call_id=call_id,
        schema=_checked_schema(schema),
        description=description or "",
        expires_at=expires_at,
        hidden=hidden,
    )


def _checked_schema(schema: Any) -> dict[str, Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise InvalidInputError(f"schema is the JSON schema of the arguments, not {schema!r}", field="schema")
    check_json("schema", schema)
    return schema


def request_for(ctx: RunState, path: str, asked: Asked, to: Addressees) -> HumanRequest:
    """The request, not saved yet."""
    details: dict[str, Any] = {"call_id": asked.call_id, "description": asked.description[:MAX_DESCRIPTION]}
    if asked.schema is not None and _may_be_shown(asked):
        details["schema"] = asked.schema
    return requests.new(
        ctx.recorder.lease.run,
        path,
        HumanRequest.Kind.APPROVAL,
        present=ctx.recorder.state.present(),
        to=to,
        text=_sentence(str(ctx.agent_id), asked),
        tool=asked.tool,
        arguments=asked.arguments,
        risk=asked.risk.value,
        details=storable(details),
        expires_at=asked.expires_at,
        hidden=asked.hidden,
    )


def _may_be_shown(asked: Asked) -> bool:
    """Whether a person's arguments can be checked against the schema. Else only the tool checks them."""
    if len(to_json(asked.schema)) > MAX_SCHEMA:
        return False
    try:
        check_schema(asked.schema or {})
    except InvalidInputError as error:
        message = "approvals: the schema of %s is left out of the request: %s"
        log.warning(message, asked.tool, error, extra={"action": "approval.schema_dropped"})
        return False
    return True


def _sentence(agent: str, asked: Asked) -> str:
    parts = [f"{name}={_short(value)}" for name, value in list(asked.arguments.items())[:MAX_SHOWN]]
    if len(asked.arguments) > MAX_SHOWN:
        parts.append(f"{len(asked.arguments) - MAX_SHOWN} more")
    how = f" with {', '.join(parts)}" if parts else ""
    return f"May {agent} call {asked.tool}{how}? It is of {asked.risk.value} risk."


def _short(value: Any) -> str:
    text = " ".join(to_json(value).decode().split())
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


async def ask(ctx: RunState, asked: Asked) -> HumanInput:
    """See `RunContext.approve`."""
    recorder, path = ctx.recorder, ctx.path()
    if (logged := _logged(ctx, path, asked)) is not None:
        return logged
    row = await recorder.recall(path, KIND, asked.tool, asked.arguments)
    if row is not None:
        decision = as_decision(recalled(ctx, row))
        if decision.allows:
            await _check_risk(ctx, row, asked)
        return decision
    begun = recorder.journal.started(path)
    if begun is not None:
        answer = requests.answered(recorder, (path, 1), begun.request["id"])
        if answer is None or as_decision(decided(answer)).allows:
            await _check_risk(ctx, begun, asked)
        with recorder.state.tool_usage.asking(asked.tool):
            return as_decision(await _outcome(ctx, path, asked, begun.request))
    try:
        to = asked.to or site_rules.addressees("approval", asked.tool, asked.risk.value)
    except InvalidInputError:
        log.exception("approvals: no person to ask about %s", asked.tool, extra={"action": "approval.unasked"})
        to = None
    if to is None:
        denial = {"tool": asked.tool, "call_id": asked.call_id, "risk": asked.risk.value, "decision": "denied"}
        recorder.record_with_next(Entry("log", path, "approval", result=denial))
        return HumanInput("deny", reason=nobody(asked.tool, asked.risk))
    recorder.state.check_may_wait(path)
    return as_decision(await _first(ctx, path, asked, to))


async def withdraw(ctx: RunState, begun: Recorded, entry: Entry) -> None:
    """Record `entry` in the place of a call that waits for a decision, close its request: the code continues without
    the decision."""
    recorder = ctx.recorder
    request = recorder.state.wake_state.requests.get((begun.path, 1))
    request_id = UUID(begun.request["id"]) if request is None else request.id
    result = {"id": str(request_id), "answer": {"action": "cancel"}}
    async with recorder.effect():
        recorder.record_with_next_once(
            Entry("request.closed", f"@closed{requests.journal_path(begun.path)}", KIND, result=result)
        )
        await recorder.record(entry, partial(people_rows.withdraw_request, request_id=request_id))


def _logged(ctx: RunState, path: str, asked: Asked) -> HumanInput | None:
    """The denial of a call that has a log entry in place of a decision, because nobody could be asked."""
    row = ctx.recorder.journal.find(path)
    if row is None or (row.kind, row.name) != ("log", "approval"):
        return None
    ctx.recorder.take_now(row)
    denial = row.result if isinstance(row.result, dict) else {}
    fits = denial.get("decision") != "invalid"
    return HumanInput("deny", reason=nobody(asked.tool, asked.risk) if fits else "its arguments did not fit")


async def _check_risk(ctx: RunState, row: Recorded, asked: Asked) -> None:
    """Block the run if its call is not made yet, and has a higher risk than the one that a person was shown."""
    known = (row.request or {}).get("risk")
    is_riskier = known is not None and Risk(known).rank < asked.risk.rank
    if is_riskier and not (row.phase == "result" and is_used(ctx, row)):
        message = (
            f"at {row.path!r} a call of {asked.tool} was of {known} risk when a person was asked (entry {row.seq}), "
            f"and is of {asked.risk.value} risk now"
        )
        diff = {"path": row.path, "seq": row.seq, "recorded": {"risk": known}, "asked": {"risk": asked.risk.value}}
        await ctx.waits.end(Stop(Stop.Kind.BLOCK, DeterminismError(message, diff=diff)))


async def _first(ctx: RunState, path: str, asked: Asked, to: Addressees) -> RecordedDecision:
    """The decision of a call that has no row yet."""
    tool = ctx.toolbox.get(asked.tool)
    is_counted = paths.in_middleware()  # the call has begun
    if (
        tool is not None
        and not is_counted
        and (refusal := ctx.recorder.state.tool_usage.refusal_to_ask(tool)) is not None
    ):
        return _unasked(ctx, path, asked, refusal)
    with ctx.recorder.state.tool_usage.asking(asked.tool):
        return await _by_sticky_decision(ctx, path, asked, tool, request_for(ctx, path, asked, to))


def _unasked(ctx: RunState, path: str, asked: Asked, reason: str) -> RecordedDecision:
    decision = denied(reason)
    ctx.recorder.record_with_next(Entry(KIND, path, asked.tool, request=asked.request, result=decision))
    return decision


async def _by_sticky_decision(
    ctx: RunState, path: str, asked: Asked, tool: Tool | None, request: HumanRequest
) -> RecordedDecision:
    recorder = ctx.recorder
    while True:
        try:
            with recorder.waits.busy():
                prior = await recorder.database.call(_look, ctx, tool, request)
        except DatabaseError:
            raise
        except Exception:  # raised by the site's MAY_ANSWER
            log.exception("approvals: no person to ask about %s", asked.tool, extra={"action": "approval.unasked"})
            prior = "nobody could be asked"
        if isinstance(prior, str):
            return _unasked(ctx, path, asked, prior)
        if prior is None:
            return await _outcome(ctx, path, asked, await _open(ctx, path, asked, request))
        answer = {"action": prior.action, "reason": prior.reason, "by": prior.decided_by_name}
        decision = {**decided(answer), "sticky": str(prior.id)}
        entry = Entry(KIND, path, asked.tool, request=asked.request, result=decision)
        async with recorder.effect(), ctx.deciding:
            try:
                await recorder.record(entry, partial(sticky.use_sticky, decision=prior, request=request))
                return decision
            except StickyRevoked:
                pass  # revoked meanwhile: look again


def _look(ctx: RunState, tool: Tool | None, request: HumanRequest) -> str | StickyDecision | None:
    """On a database thread. The reason why nobody is asked, or the session's sticky decision. None: ask; the request
    is addressed to the first step that has a recipient."""
    if tool is not None and tool.permission and not rights.permitted(ctx.user_id, tool.permission):
        return f"not permitted: {tool.name} needs the permission {tool.permission}, which the run's owner does not have"
    if (stands := sticky.decision_for(ctx.recorder.lease.run, request)) is not None:
        return stands
    if not requests.place_first(request, ctx.recorder.state.present()):
        return f"it needs a person's approval, and {requests.nobody_at(request)}"
    return None


async def _open(ctx: RunState, path: str, asked: Asked, request: HumanRequest) -> dict[str, Any]:
    recorder = ctx.recorder
    opened = {**requests.opened(request), **asked.request}
    async with recorder.effect():
        recorder.record_with_next(
            Entry(KIND, path, asked.tool, phase="started", request=opened)
        )  # in one commit with the next row
        await requests.announce(recorder, request, KIND)
    return opened


async def _outcome(ctx: RunState, path: str, asked: Asked, opened: dict[str, Any]) -> RecordedDecision:
    """Wait for the answer, or the timeout."""

    async def record(answer: Any, write: Write | None) -> RecordedDecision:
        decision = decided(answer)
        closed = {"status": answer["status"]} if "status" in answer else {}
        result = {"id": opened["id"], **decision, **closed}
        async with ctx.recorder.effect(), ctx.deciding:
            await ctx.recorder.record(Entry(KIND, path, asked.tool, request=asked.request, result=result), write)
        return decision

    return await requests.outcome(ctx.recorder, (path, 1), opened, record)
