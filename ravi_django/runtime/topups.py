"""More budget for a tree, of a person: the tree's one request, the wait for its answer, and what an answer may say.

`store.topups` has the writes; `admission` asks when a model call finds the budget used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ravi_django.kernel import InvalidInputError
from ravi_django.models import HumanRequest
from ravi_django.runtime import requests, site_rules
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.shown import request_shown
from ravi_django.runtime.store import topups
from ravi_django.runtime.store.accounts import LIMITS, faults_of_limits
from ravi_django.runtime.store.outbox import TOP_UP
from ravi_django.runtime.store.people import TooManyRequests

if TYPE_CHECKING:
    from ravi_django.runtime.effects import Effects

ACTIONS = ("approve", "deny", "edit")


def is_top_up(request: HumanRequest) -> bool:
    return request.kind == HumanRequest.Kind.APPROVAL and request.tool == TOP_UP


async def ask(effects: Effects, path: str, account: str) -> HumanRequest | bool | None:
    """The tree's one request, which is opened unless another run has. False: nobody may be asked, or it was denied.
    None: another run was quicker, or there is room by now."""
    if not _may_ask(effects, path, account):
        return False
    pending = await effects.database.call(topups.pending_top_up, effects.lease)
    return await _open(effects, path) if pending is None else pending


async def wait(effects: Effects, path: str, request: HumanRequest, seen: int) -> None:
    """Until it is answered. `seen`: the run's wake_seq before it was asked."""

    def met() -> bool | None:  # when it is answered, and when its run ends without that, who waits is woken
        return True if effects.facts.wake_seq != seen else None

    await effects.wait(Wait("request", str(request.id), met), path)


def _may_ask(effects: Effects, path: str, account: str) -> bool:
    root = effects.lease.run.root or effects.lease.run
    if not account.startswith("tree:") or (root.budget or {}).get("when_exhausted") != "ask":
        return False
    try:
        effects.check_may_wait(path)
    except InvalidInputError:
        return False
    return True


async def _open(effects: Effects, path: str) -> HumanRequest | None:
    run = effects.lease.run
    text, arguments = await effects.database.call(topups.suggestion, effects.lease)
    if not arguments:
        return None
    attempt = 1
    while effects.journal.system(_place(path, attempt)) or _place(path, attempt) in effects.requested:
        attempt += 1
    request = requests.new(
        run,
        path,
        HumanRequest.Kind.APPROVAL,
        present=effects.present(),
        to=site_rules.addressees("budget"),
        expires=False,
        attempt=attempt,
        text=text,
        tool=TOP_UP,
        arguments=arguments,
    )
    await requests.address(effects, request)
    place = _place(path, attempt)
    effects.entangled = True  # first: the commit may stand though this task is cancelled over it
    try:
        await effects.record(
            Entry("request.opened", place, request.tool, result=request_shown(request)),
            partial(topups.open_top_up, request=request),
        )
    except TooManyRequests:
        return None
    effects.requested[place] = str(request.id)
    return request


def _place(path: str, attempt: int) -> str:
    return f"@request.{path}.{attempt}"


def note_closed(effects: Effects, path: str) -> None:
    """For whoever watches: the run goes on, or ends, by what was answered."""
    for (place, attempt), request in effects.facts.requests.items():
        if place == path and request.tool == TOP_UP and request.answer:
            result = {"id": str(request.id), "answer": request.answer}
            effects.note_once(Entry("request.closed", f"@closed{_place(path, attempt)}", request.tool, result=result))


def check(request: HumanRequest, action: str, arguments: Any) -> dict[str, Any]:
    """The limits that this answer sets: those suggested, or the person's own. Raises InvalidInputError."""
    if action == "deny":
        if arguments:
            raise InvalidInputError("arguments go with approve or edit, not with deny", field="arguments")
        return {}
    given = dict(request.arguments or {}) if arguments is None and action == "approve" else arguments
    if not isinstance(given, Mapping) or not given or set(given) - set(LIMITS) or None in given.values():
        raise InvalidInputError(f"arguments are new limits: {', '.join(LIMITS)}", field="arguments")
    if fault := next(faults_of_limits(given), None):
        raise InvalidInputError(f"arguments{fault}", field="arguments")
    return dict(given)
