"""What users of other systems report of people in the loop, each as a test: with the real engine, end to end."""

from __future__ import annotations

import os
from threading import Barrier
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection, transaction
from rest_framework.test import APIClient

from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ConflictError
from ravi_django.models import AuditRecord, HumanRequest, Run, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.acceptance.people.desk import desk, waiting
from tests.support import forks, world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import (
    CodeAgent,
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    take_over,
    until,
    waiting_for_locks,
)
from tests.support.world import register

pytestmark = pytest.mark.django_db(transaction=True)

IN_ANOTHER_PROCESS = """
import sys, django
django.setup()
from tests.support import world
world.answer(sys.argv[1], "approve")
"""


# ------------------------------------------------------------------------------------- misrouted, doubled, lost


def test_answers_are_not_misrouted_between_parallel_calls(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """Three calls of one turn, decided in another order than they were asked, each in its own way."""
    names = ("ACME", "Bolt", "Cobb")
    desk(pay, {f"c{number}": {"to": name, "amount": number} for number, name in enumerate(names)})
    run = drive(make_run("react/desk"))
    found = waiting(run)
    assert set(found) == set(names)

    world.answer(found["Cobb"], "deny", reason="Cobb is bankrupt", by=finance[0])
    world.answer(found["ACME"], "edit", arguments={"to": "ACME", "amount": 7}, by=finance[1])
    world.answer(found["Bolt"], "approve", by=finance[0])
    run = drive(run)

    assert run.status == Status.COMPLETED
    assert sorted(paid) == ["ACME 7", "Bolt 1"]
    told = dict(part.split(": ", 1) for part in run.output.split(" | "))
    assert told["c0"].endswith("paid ACME 7")
    assert told["c1"] == "paid Bolt 1"
    assert told["c2"] == "denied: Cobb is bankrupt; do not call it again unchanged"


def test_an_answer_of_some_parallel_calls_waits_for_the_others(paid: list[str], pay: Any, finance: list[Any]) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}, "c1": {"to": "Bolt", "amount": 2}})
    run = drive(make_run("react/desk"))
    found = waiting(run)

    world.answer(found["Bolt"], "approve", by=finance[0])
    run = drive(run)

    assert (set(waiting(run)), paid) == ({"ACME"}, ["Bolt 2"])
    world.answer(found["ACME"], "approve", by=finance[0])
    assert drive(run).output == "c0: paid ACME 1 | c1: paid Bolt 2"
    assert paid == ["Bolt 2", "ACME 1"]


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
    assert said[1 - winner] == f"request {request.id} is answered already by {finance[winner].username}"
    assert paid == [f"ACME {(10, 20)[winner]}"]
    assert run.status == Status.COMPLETED


def test_an_answer_given_twice_counts_once(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """A double click, or a client that tries again."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]

    world.answer(request, "approve", by=finance[0])
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request, "approve", by=finance[0])
    drive(run)
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request, "deny", by=finance[1])

    assert paid == ["ACME 1"]
    assert AuditRecord.objects.filter(event="request", name="answered").count() == 1


# ---------------------------------------------------------------------------------- answered, but never resumed


@on_postgresql
def test_a_run_that_was_answered_in_another_process_goes_on(paid: list[str], pay: Any, finance: list[Any]) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]

    env = {**os.environ, "DATABASE_URL": _database_url()}
    forks.run(["-c", IN_ANOTHER_PROCESS, str(request.id)], env=env, check=True, timeout=seconds(120))

    run.refresh_from_db()
    assert run.status == Status.PENDING
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, paid) == (Status.COMPLETED, ["ACME 1"])


def _database_url() -> str:
    """Of the test's own database."""
    given = connection.settings_dict
    who = f"{quote(given['USER'])}:{quote(given['PASSWORD'])}"
    return f"postgres://{who}@{given['HOST']}:{given['PORT']}/{given['NAME']}"


def test_a_run_that_was_answered_on_another_surface_goes_on(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """Asked in one place, answered over REST by somebody who never saw that place."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    client = APIClient()
    client.force_authenticate(finance[1])

    listed = client.get("/ravi/requests/?status=pending").json()["results"]
    answered = client.post(f"/ravi/requests/{listed[0]['id']}/answer/", {"action": "approve"}, format="json")

    assert answered.status_code == 200
    assert drive(run).status == Status.COMPLETED
    assert paid == ["ACME 1"]


def test_a_run_goes_on_though_no_hint_of_the_answer_arrives(
    paid: list[str], pay: Any, finance: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is away: the answer itself has made the run claimable, and the sweep says so."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))

    def broken(run_id: Any) -> None:
        raise ConnectionError("no broker")

    world.patch(monkeypatch, "dispatch_send", broken)
    world.answer(waiting(run)["ACME"], "approve", by=finance[0])

    run.refresh_from_db()
    assert run.status == Status.PENDING
    hinted: list[Any] = []
    with FakeClock() as clock:
        clock.advance(conf.SWEEP_S + 1)
        world.sweeper_sweep(lambda run_ids: hinted.extend(run_ids))
    assert run.id in hinted
    assert drive(run).status == Status.COMPLETED


def test_a_run_goes_on_though_the_answerer_died_right_after_its_commit(
    paid: list[str], pay: Any, finance: list[Any]
) -> None:
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


@pytest.mark.parametrize("action", ["deny", "skip", "cancel"])
def test_what_was_not_approved_is_not_done(paid: list[str], pay: Any, finance: list[Any], action: str) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))

    world.answer(waiting(run)["ACME"], action, by=finance[0])
    run = drive(run)

    assert (run.status, paid) == (Status.COMPLETED, [])


def test_no_approval_is_ignored_because_the_agent_was_rebuilt_without_one(
    paid: list[str], pay: Any, finance: list[Any]
) -> None:
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


def test_an_approval_is_for_the_arguments_that_were_shown(paid: list[str], finance: list[Any]) -> None:
    """Code that means another payment when it is replayed is stopped, not waved through."""
    amounts = [1, 1_000_000]

    async def story(ctx: Any, inbox: Any) -> str:
        amount = amounts.pop(0)
        decision = await ctx.approve("pay", {"to": "ACME", "amount": amount}, to="group:finance")
        paid.append(f"ACME {amount}" if decision.allows else "nobody")
        return "went on"

    code(story)
    run = drive(make_run())
    world.answer(waiting(run)["ACME"], "approve", by=finance[0])

    run = drive(run)

    assert (run.status, paid) == (Status.BLOCKED, [])


def test_nobody_to_ask_is_no_approval(paid: list[str], pay: Any) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}}, approvers=None)

    run = drive(make_run("react/desk"))

    assert (run.status, paid) == (Status.COMPLETED, [])
    assert "nobody is configured to give it" in run.output


# --------------------------------------------------------------------------------------------- no record of who


def test_who_approved_what_is_on_record_for_ever(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """Even when the request, its run and the person are gone."""
    from django.contrib.admin.models import LogEntry

    ann = finance[0]
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]
    world.answer(request, "edit", arguments={"to": "ACME", "amount": 7}, reason="their invoice says 7", by=ann)
    drive(run)
    assert LogEntry.objects.get(object_id=str(request.id)).user == ann

    run_id, request_id = run.id, str(request.id)
    ann.delete()
    run.delete()

    opened, answered = AuditRecord.objects.filter(event="request", run_id=run_id).order_by("id")
    assert (opened.name, answered.name) == ("opened", "answered")
    assert opened.detail["arguments"] == {"to": "ACME", "amount": 1}
    assert {opened.detail["request"], answered.detail["request"]} == {request_id}
    assert opened.detail["arguments_hash"] == answered.detail["arguments_hash"] != ""
    said = answered.detail["answer"]
    assert (answered.detail["by"], said["by"], said["action"]) == ("ann", "ann", "edit")
    assert (said["arguments"], said["reason"]) == ({"to": "ACME", "amount": 7}, "their invoice says 7")


def test_who_it_was_is_the_authenticated_user_whatever_the_body_says(pay: Any, finance: list[Any]) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]
    client = APIClient()
    client.force_authenticate(finance[1])

    refused = client.post(f"/ravi/requests/{request.id}/answer/", {"action": "approve", "by": "ann"}, format="json")
    client.post(f"/ravi/requests/{request.id}/answer/", {"action": "approve"}, format="json")

    assert refused.status_code == 400
    request.refresh_from_db()
    assert (request.answered_by, request.answer["by"]) == (finance[1], "bob")


# ----------------------------------------------------------------------------------------------- nested, crashed


def test_a_nested_approval_is_not_lost(paid: list[str], pay: Any, finance: list[Any]) -> None:
    """Of an agent that another agent's tool has asked, two levels down."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}}, key="clerk")
    _delegating("middle", "react/clerk")
    _delegating("top", "test/middle")
    run = make_run("test/top")
    run_until_idle()
    request = HumanRequest.objects.get(status="pending")
    assert (request.run.agent, request.run.depth, request.run.root_id) == ("react/clerk", 2, run.id)

    world.answer(request, "edit", arguments={"to": "ACME", "amount": 2}, by=finance[0])
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, paid) == (Status.COMPLETED, ["ACME 2"])
    assert "paid ACME 2" in str(run.output)


def _delegating(key: str, to: str) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        return str((await ctx.ask(AgentId.parse(to), "Pay them.")).result)

    register(CodeAgent(story, key=key))


@pytest.mark.parametrize("dies", [1, 2, 3, 4])
@pytest.mark.parametrize("written", [False, True])
def test_an_approved_call_is_made_once_wherever_its_worker_dies(
    paid: list[str], pay: Any, finance: list[Any], dies: int, written: bool
) -> None:
    with FakeClock() as clock:
        desk(pay, {"c0": {"to": "ACME", "amount": 1}})
        run = drive(make_run("react/desk"))
        world.answer(waiting(run)["ACME"], "approve", by=finance[0])
        drive(run, dies=dies, written=written)

        run = take_over(clock, run)

        if run.status == Status.SUSPENDED:  # it may have happened: a person says so
            clock.advance(conf.LEASE_S + 10)
            uncertain = HumanRequest.objects.get(run=run, status="pending")
            assert uncertain.kind == "uncertain"
            world.human_resolve(uncertain, "happened" if paid else "run_again", result="paid" if paid else None)
            run = drive(run)
        assert run.status == Status.COMPLETED
        assert paid == ["ACME 1"]
        assert HumanRequest.objects.filter(kind="approval").count() == 1
