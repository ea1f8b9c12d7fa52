"""The one service behind every surface: admin, REST, websocket, e-mail and command line answer through here.

Whoever asks opens a request: `questions` (`ctx.ask_human`), `approvals`, `tool_pauses`, `uncertain`, `topups`. Who may
answer is `people`, what an answer may say `answers`, and the one write `store.answer_request`: the first answer wins,
and commits with its records and the run's wake-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError

from ravi_django.kernel import NotFoundError
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.runtime import answers, dispatch, people, reassignment, requests, topups
from ravi_django.runtime.answers import Given
from ravi_django.runtime.people import Authority
from ravi_django.runtime.signals import wake
from ravi_django.runtime.store import escalations
from ravi_django.runtime.store import people as people_rows
from ravi_django.runtime.store import topups as topups_rows


def answer(
    request: HumanRequest | UUID | str,
    action: str = "answer",
    *,
    text: str = "",
    values: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    outcome: str | None = None,
    result: Any = None,
    sticky: bool = False,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """Answer a request; the first answer wins. Returns the run's id.

    A question, or what a tool asks for: "answer" with `text`, or with `values` by key where several things are asked;
    "skip", "cancel". An approval: "approve", "deny", "edit" (approves with `arguments` in place of the model's),
    "skip", "cancel"; `sticky` with approve or deny holds for this tool in this session. More budget: "approve", "deny",
    or "edit" with `arguments`, the new limits. An uncertain effect: "resolve" with `outcome` "happened" (and its
    `result`), "run_again" or "fail". `reason` goes with all of them, and is read by the model that is denied.

    `by` is the authenticated user, None for the site's own operator. `version`: the one that the person has seen.
    Raises InvalidInputError that names the field, NotFoundError, ForbiddenError when `by` may only read it, and
    ConflictError when it is answered, closed, expired or changed.
    """
    row = find(request)
    authority = people.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        people_rows.refuse_late(row)
    given = Given(
        action=action,
        text=text,
        values=values,
        arguments=arguments,
        outcome=outcome,
        result=result,
        sticky=sticky,
        reason=reason,
    )
    kept = {**answers.checked(row, given), **_signed(authority)}
    if "arguments" in kept and kept["action"] != "deny":
        people.check_changed(authority, _with_arguments(row, kept["arguments"]))
    seen = row.version if version is None else version
    if topups.is_top_up(row):
        for run_id in topups_rows.answer_top_up(row, kept, kept["arguments"], by=by, version=seen):
            dispatch.on_commit(run_id)
    else:
        decision = _sticky(row, kept, by) if kept.get("sticky") else None
        woke = people_rows.answer_request(row.id, kept, by=by, version=seen, sticky=decision)
        dispatch.on_commit(row.run_id, None if woke else wake)
    found: UUID = row.run_id
    return found


def cancel(request: HumanRequest | UUID | str, *, reason: str = "", by: Any = None, version: int | None = None) -> UUID:
    """`answer(request, "cancel", …)`: withdraw a question, an input or an approval. Whoever asked is told so."""
    return answer(request, "cancel", reason=reason, by=by, version=version)


def reassign(
    request: HumanRequest | UUID | str, to: str, *, by: Any = None, reason: str = "", version: int | None = None
) -> HumanRequest:
    """Ask somebody else in place of whoever is asked now: `to` is an address. The time that was left stays, and so do
    the later steps and four eyes. Returns the request as it is then.

    `by` may answer it, or holds `ravi.change_humanrequest`, may see it and puts it to others than themselves; None is
    the site's own operator. Raises InvalidInputError for an address that means nobody who could answer, and otherwise
    as `answer`.
    """
    row = find(request)
    right = reassignment.check(by, row)
    if row.status != HumanRequest.Status.PENDING:
        people_rows.refuse_late(row)
    address = reassignment.address_for(row, to, by, right)
    words = answers.text_of("reason", reason).strip()
    name = "" if by is None else str(by.get_username())
    seen = row.version if version is None else version
    return escalations.reassign_request(row.id, address, by=by, name=name, reason=words, version=seen)


def resolve(
    request: HumanRequest | UUID | str,
    outcome: str,
    *,
    result: Any = None,
    reason: str = "",
    by: Any = None,
    version: int | None = None,
) -> UUID:
    """`answer(request, "resolve", …)`: what became of an uncertain effect."""
    return answer(request, "resolve", outcome=outcome, result=result, reason=reason, by=by, version=version)


def find(request: HumanRequest | UUID | str) -> HumanRequest:
    """The row as it is now. Raises NotFoundError."""
    given = request.pk if isinstance(request, HumanRequest) else request
    try:
        found: HumanRequest | None = HumanRequest.objects.select_related("run", "answered_by").filter(id=given).first()
    except (DjangoValidationError, ValueError):
        raise NotFoundError(f"{str(given)[:100]!r} is no request's id") from None
    if found is None:
        raise NotFoundError(f"there is no request {given}")
    return found


def _with_arguments(request: HumanRequest, arguments: dict[str, Any]) -> HumanRequest:
    """What the site's rule is asked about: a copy, whatever it does to that."""
    changed = copy(request)
    changed.arguments, changed.arguments_hash = deepcopy(arguments), requests.hash_of(arguments)
    return changed


def _signed(authority: Authority) -> dict[str, str]:
    """Who, in words that stay when the user goes."""
    if authority.user is None:
        return {"by": ""}
    found = {"by": str(authority.user.get_username())}
    if authority.instead_of is not None:
        found["instead_of"] = str(authority.instead_of.get_username())
    return found


def _sticky(request: HumanRequest, kept: dict[str, Any], by: Any) -> StickyDecision:
    return StickyDecision(
        session_id=request.run.session_id,
        agent=request.run.agent,
        tool=request.tool,
        risk=request.risk,
        action=kept["action"],
        reason=kept["reason"],
        request_id=request.id,
        decided_by=by,
        decided_by_name=kept["by"],
    )
