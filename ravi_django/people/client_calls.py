"""Calls of tools that live in the client. A call is a request of the kind `client_tool`, which waits like a question.

Only the user who began the run may answer it, once. The page has WAIT_S for it. A new message of that user ends it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import Addressees, ConflictError, HumanInput
from ravi_django.models import HumanRequest
from ravi_django.people import requests, rows as people_rows
from ravi_django.runs import hints
from ravi_django.runs.signals import wake

WAIT_S = 600.0


async def ask(ctx: RunState, tool: str, arguments: dict[str, Any]) -> HumanInput:
    """Ask the page to run its tool, and wait. The action is answer, cancel or expired."""
    recorder, path, call_id = ctx.recorder, ctx.path(), ctx.here().around
    row = await recorder.recall(path, requests.KIND, requests.NAME, {"tool": tool, "arguments": arguments})
    if row is not None:
        return requests.answer_of(row.result)
    begun = recorder.journal.started(path)
    if begun is not None:
        return await requests.outcome_of(ctx, path, begun.request)
    recorder.state.check_may_wait(path)
    request = requests.new(
        recorder.lease.run,
        path,
        HumanRequest.Kind.CLIENT_TOOL,
        present=recorder.state.present(),
        to=Addressees.of("owner"),
        tool=tool,
        arguments=arguments,
        details={"call_id": call_id},
        expires_at=requests.expiry(ctx, WAIT_S),
    )
    return await requests.outcome_of(ctx, path, await requests.open_question(ctx, path, request))


def of_call(session_id: UUID, call_id: str) -> HumanRequest | None:
    """The newest request of this call of the session's own runs: a model may use the id of a call again."""
    rows = HumanRequest.objects.select_related("run", "answered_by").filter(kind=HumanRequest.Kind.CLIENT_TOOL)
    rows = rows.filter(run__session_id=session_id, run__parent=None, details__call_id=call_id)
    request: HumanRequest | None = rows.order_by("-id").first()
    return request


def close(session_id: UUID | None, user: Any) -> None:
    """End the pending calls of the user's runs in the session without an answer: the user goes on."""
    rows = HumanRequest.objects.filter(kind=HumanRequest.Kind.CLIENT_TOOL, status=HumanRequest.Status.PENDING)
    for request in rows.filter(run__session_id=session_id, owner=user) if session_id and user is not None else ():
        with suppress(ConflictError):  # answered or expired meanwhile
            stored = {"action": "cancel", "reason": "", "text": "", "by": str(user.get_username())}
            woke = people_rows.answer_request(request.id, stored, by=user)
            hints.on_commit(request.run_id, None if woke else wake)
