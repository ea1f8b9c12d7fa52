"""Requests for more budget for a tree, one at a time: approvals whose arguments are the new limits.

`model/admission.py` asks when a model call finds no budget left. An answer wakes all runs that wait for it. The
first of them raises the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import F, Q, QuerySet

from ravi_django.db import transaction
from ravi_django.engine.journal.append import append_rows, store_big_values
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.outbox import TOP_UP
from ravi_django.engine.lease.lease_state import TooManyRequests, Wait
from ravi_django.kernel import InvalidInputError
from ravi_django.models import TERMINAL, BudgetAccount, HumanRequest, JournalEntry, Run
from ravi_django.people import requests, site_rules
from ravi_django.people.rows import answer_request, waiting_for, write_request
from ravi_django.runs.budgets.accounts import TOP_COST, UNITS, dollars, limits_of, states
from ravi_django.runs.wake import lock, touch

if TYPE_CHECKING:
    from ravi_django.engine.lease.recorder import Recorder

RAISED: Any = object()  # an approved request has raised the limits now


def is_top_up(request: HumanRequest) -> bool:
    return request.kind == HumanRequest.Kind.APPROVAL and request.tool == TOP_UP


async def ask(recorder: Recorder, path: str, account: str) -> HumanRequest | bool | None:
    """The open request of the tree; opens one if there is none. False: nobody may be asked, or the request was denied.
    None: look again, another run opened one first or the budget has room now."""
    root = recorder.lease.run.root or recorder.lease.run
    if not account.startswith("tree:") or (root.budget or {}).get("when_exhausted") != "ask":
        return False
    pending = await recorder.database.call(pending_top_up, recorder.lease)
    if pending is RAISED:
        return None
    try:
        recorder.state.check_may_wait(path)
    except InvalidInputError:
        return False
    return await _open(recorder, path) if pending is None else pending


async def wait(recorder: Recorder, path: str, request: HumanRequest, seen: int) -> None:
    """Wait until the run is woken, by the answer or by the end of the request. `seen` is its `wake_seq` before."""

    def met() -> bool | None:
        return True if recorder.state.wake_state.wake_seq != seen else None

    await recorder.waits.wait(Wait("request", str(request.id), met), path)


async def _open(recorder: Recorder, path: str) -> HumanRequest | None:
    run = recorder.lease.run
    text, arguments, schema = await recorder.database.call(suggestion, recorder.lease)
    if not arguments:
        return None
    attempt = 1
    while (
        recorder.journal.find(path_of_request := requests.journal_path(path, attempt))
        or path_of_request in recorder.state.requested
    ):
        attempt += 1
    request = requests.new(
        run,
        path,
        HumanRequest.Kind.APPROVAL,
        present=recorder.state.present(),
        to=site_rules.addressees("budget"),
        expires=False,
        attempt=attempt,
        text=text,
        tool=TOP_UP,
        arguments=arguments,
        details={"schema": schema},
    )
    await requests.address(recorder, request)
    try:
        await requests.announce(recorder, request, request.tool, partial(open_top_up, request=request))
    except TooManyRequests:
        return None
    recorder.state.requested[path_of_request] = str(request.id)
    return request


def note_closed(recorder: Recorder, path: str) -> None:
    """Report in the stream that the request at `path` is answered."""
    for (request_path, attempt), request in recorder.state.wake_state.requests.items():
        if request_path == path and request.tool == TOP_UP and request.answer:
            result = {"id": str(request.id), "answer": request.answer}
            closed = f"@closed{requests.journal_path(path, attempt)}"
            recorder.record_with_next_once(Entry("request.closed", closed, request.tool, result=result))


USERS = 5  # runs in the text of a request


def pending_top_up(lease: Lease) -> Any:
    """The tree's open request. False: the latest was denied, and no run was retried since. None: ask. RAISED: it was
    approved, and its limits were not raised yet."""
    latest = _requests(lease.run.tree_id).order_by("-created_at", "-id").first()
    if latest is None or latest.status not in (HumanRequest.Status.PENDING, HumanRequest.Status.ANSWERED):
        return None
    if latest.status == HumanRequest.Status.PENDING:
        return latest
    answer = latest.answer or {}
    if answer.get("action") in ("approve", "edit"):
        return RAISED if _raise(lease.run.tree_id, answer.get("arguments") or latest.arguments or {}) else None
    again = JournalEntry.objects.filter(
        run__in=_tree(lease.run.tree_id).values("id"), kind="run.retried", finished_at__gt=latest.answered_at
    )
    return None if again.exists() else False


def suggestion(lease: Lease) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The text of a request, the limits that it suggests (as much again for each one that is used up), and the schema
    of possible limits."""
    root = lease.run.root or lease.run
    account = BudgetAccount.objects.get(key=f"tree:{root.id}")
    first = limits_of(root.budget)
    known = {name: (limit, spent) for name, limit, spent, _ in states(account)}
    used = {name: (limit, spent) for name, (limit, spent) in known.items() if spent >= limit}
    arguments = {
        name: _as_number(name, max(limit, spent) + (first.get(name) or limit)) for name, (limit, spent) in used.items()
    }
    detail = ", ".join(
        f"{_as_number(name, spent)} of {name} {_as_number(name, limit)}" for name, (limit, spent) in used.items()
    )
    tree = _tree(root.id).annotate(tokens=F("input_tokens") + F("output_tokens")).order_by("-tokens", "id")
    by = [f"{run.agent} ({run.id}): {run.tokens} tokens, {run.cost.normalize():f} dollars" for run in tree[:USERS]]
    text = (
        f"The budget of {root.agent} is used up: {detail}. "
        f"Its run {lease.run_id} ({lease.run.agent}) wants to continue. "
        f"Used by: {'; '.join(by)}. Approve these limits or others, or reject."
    )
    return text, arguments, _schema({name: spent for name, (_, spent) in known.items()})


def _schema(spent: Mapping[str, Decimal]) -> dict[str, Any]:
    """The JSON schema of new limits: each above the amount that is used already."""
    properties = {
        name: {
            "type": "number" if name == "max_cost_usd" else "integer",
            "exclusiveMinimum": _as_number(name, amount),
            "exclusiveMaximum": TOP_COST if name == "max_cost_usd" else 2**62,
            "description": "The new limit for the run and its sub-agents.",
        }
        for name, amount in spent.items()
    }
    return {"type": "object", "properties": properties, "minProperties": 1, "additionalProperties": False}


def open_top_up(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, request: HumanRequest) -> int:
    """Write the request with the row that announces it. Raises TooManyRequests when the tree has an open one, or its
    budget has room again."""
    store_big_values(entries)
    with transaction.atomic():
        lock([lease.run.tree_id, lease.run_id])  # the root's: of two runs that ask at once one waits
        first = append_rows(lease, entries, turns)
        if _requests(lease.run.tree_id).filter(status=HumanRequest.Status.PENDING).exists():
            raise TooManyRequests
        account = BudgetAccount.objects.get(key=f"tree:{lease.run.tree_id}")
        if all(spent < limit for _, limit, spent, _ in states(account)):
            raise TooManyRequests
        write_request(request, lease.run)
        return first


def answer_top_up(request: HumanRequest, answer: dict[str, Any], *, by: Any, version: int | None = None) -> list[UUID]:
    """Answer the request and wake all runs that wait for it, in one transaction. Returns the runs to hint. Raises
    NotFoundError and ConflictError."""
    with transaction.atomic():
        tree = Run.objects.values_list("root_id", flat=True).get(id=request.run_id) or request.run_id
        live = _tree(tree).exclude(status__in=TERMINAL)
        lock([request.run_id, *live.values_list("id", flat=True)])
        answer_request(request.id, answer, by=by, version=version)
        waiting = sorted({request.run_id, *waiting_for(tree, {str(request.id)})})
        touch(waiting)
        HumanRequest.objects.filter(id=request.id).update(woke=True)
        return waiting


def _raise(tree: UUID, limits: Mapping[str, Any]) -> bool:
    """Raise the limits of a tree to these; whether one was lower. A limit that a later answer has raised stays."""
    with transaction.atomic():
        account = BudgetAccount.objects.select_for_update().get(key=f"tree:{tree}")
        changes = {
            f"max_{UNITS[name]}": dollars(limits[name]) if name == "max_cost_usd" else int(limits[name])
            for name, limit, _, _ in states(account)
            if name in limits and Decimal(str(limits[name])) > limit
        }
        return bool(changes and BudgetAccount.objects.filter(key=account.key).update(**changes))


def _as_number(name: str, value: Decimal) -> int | float:
    return float(value) if name == "max_cost_usd" else int(value)


def _tree(root: UUID) -> QuerySet[Run]:
    return Run.objects.filter(Q(id=root) | Q(root_id=root)).order_by("id")


def _requests(root: UUID) -> QuerySet[HumanRequest]:
    return HumanRequest.objects.filter(
        Q(run_id=root) | Q(run__root_id=root), kind=HumanRequest.Kind.APPROVAL, tool=TOP_UP
    )
