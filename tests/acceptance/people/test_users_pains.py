"""What users of other systems report of people in the loop, each as a test: with the real engine, end to end."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest
from django.db import transaction

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, Role, ToolUseBlock
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import FakeClock, ScriptedModel
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import drive, in_background, make_run, on_postgresql, until, waiting_for_locks

pytestmark = pytest.mark.django_db(transaction=True)


def desk(pay: Any, *turns: dict[str, dict[str, Any]], key: str = "desk", **options: Any) -> ScriptedModel:
    """An agent whose model asks for these payments, by call id, a turn a mapping; then it answers with the results."""
    calls = [
        [ToolUseBlock(tool_name="pay", arguments=arguments, call_id=call_id) for call_id, arguments in turn.items()]
        for turn in turns
    ]
    model = ScriptedModel([*calls, _heard])
    context = ContextConfig(DjangoHistoryProvider())
    who = {"approvers": "group:finance", **options}
    register(ReActAgent(key, model=model, tools=[pay], context=context, **who))
    return model


def _heard(messages: Any, options: Any) -> str:
    """What each call of the last user's turn came to."""
    results = {}
    for message in messages:
        for block in message.content if message.role is Role.TOOL else ():
            results[block.call_id] = "".join(part.text for part in block.content)
    return " | ".join(f"{call_id}: {text}" for call_id, text in sorted(results.items()))


def waiting(run: Run) -> dict[str, HumanRequest]:
    """The open approvals of a run, by the one who gets the money."""
    assert run.status == Status.SUSPENDED, (run.status, run.error)
    return {row.arguments["to"]: row for row in HumanRequest.objects.filter(run=run, status="pending")}


# ------------------------------------------------------------------------------------- misrouted, doubled, lost


@on_postgresql
def test_two_answers_are_not_both_executed(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """Two people who decide at the same moment, differently; both had read the same page."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]
    barrier = Barrier(2)

    def give(amount: int, by: Any) -> str:
        barrier.wait(seconds(20))
        try:
            world.answer(request.id, "edit", arguments={"to": "ACME", "amount": amount}, by=by, version=request.version)
        except ConflictError as error:
            return str(error)
        return "won"

    with transaction.atomic():  # both are past the first look before either can write
        Run.objects.select_for_update().get(id=run.id)
        racing = [in_background(give, amount, by) for amount, by in zip((10, 20), finance, strict=True)]
        until(lambda: waiting_for_locks() >= 2)
    said = [future.result(BOUND_S) for future in racing]
    run = drive(run)

    winner = said.index("won")
    assert said[1 - winner] == f"Request {request.id} was already answered by {finance[winner].username}."
    assert paid == [f"ACME {(10, 20)[winner]}"]
    assert run.status == Status.COMPLETED


# ---------------------------------------------------------------------------------- answered, but never resumed


def test_a_run_goes_on_though_the_answerer_died_right_after_its_commit(paid, pay, finance) -> None:
    """Of an answer inside a larger transaction the wake-up comes after: a crash in between leaves it to the sweep."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    with transaction.atomic():
        world.answer_request(waiting(run)["ACME"].id, {"action": "approve", "by": "ann"}, by=finance[0])
    run.refresh_from_db()
    assert run.status == Status.SUSPENDED

    with FakeClock() as clock:
        clock.advance(conf.SWEEP_S + 1)
        world.sweeper_sweep(lambda run_ids: None)

    assert drive(run).status == Status.COMPLETED
    assert paid == ["ACME 1"]


# ---------------------------------------------------------------------------------------------------- ignored


def test_no_approval_is_ignored_because_the_agent_was_rebuilt_without_one(paid, pay, finance) -> None:
    """A worker of the next release has forgotten the approvers: what was asked still waits for its answer."""
    calls = {"c0": {"to": "ACME", "amount": 1}}
    desk(pay, calls)
    run = drive(make_run("react/desk"))
    desk(pay, calls, approvers=None)
    world.touch([run.id])

    run = drive(run)

    assert (set(waiting(run)), paid) == ({"ACME"}, [])
    world.answer(waiting(run)["ACME"], "deny", by=finance[0])
    assert drive(run).status == Status.COMPLETED
    assert paid == []
