"""What a person has decided on a tool for a whole session: found before anybody is asked, and never for more risk."""

from __future__ import annotations

import pytest
from django.db.models import F

from ravi_django.kernel import InvalidInputError
from ravi_django.models import AuditRecord, HumanRequest, Session, Status, StickyDecision
from tests.support import world
from tests.support.approvals import PAYER, call, decisions, open_requests, payer, paying, results, run_of, user
from tests.support.runs import asked, drive, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann():
    return user("ann", is_staff=True)


@pytest.fixture
def done():
    return []


def by_amount(arguments):
    return "high" if arguments["amount"] < 1000 else "critical"


@pytest.fixture
def session():
    return world.create_session(Session(agent=PAYER))


def decided(session, agent, by, action="approve", **more):
    """A first run of the session, whose call is decided on for good."""
    run = drive(run_of(session=session))
    world.answer(asked(run), action, sticky=True, by=by, **more)
    run = drive(run)
    assert run.status == Status.COMPLETED
    return StickyDecision.objects.get(revoked_at=None)


def test_the_next_call_of_the_session_is_not_asked_about(ann, done, session):
    agent = payer(paying(done))
    sticky = decided(session, agent, ann)

    run = drive(run_of(session=session))

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [5, 5], [])
    assert decisions(run) == [{"decision": "approved", "reason": "", "by": "ann", "sticky": str(sticky.id)}]
    record = AuditRecord.objects.get(run_id=run.id, event="request")
    assert (record.name, record.detail["decision"], record.detail["by"]) == ("standing", str(sticky.id), "ann")
    assert (record.detail["tool"], record.detail["risk"]) == ("pay", "high")
    assert record.detail["arguments_hash"] == HumanRequest.objects.get().arguments_hash


def test_a_standing_denial_tells_its_reason(ann, done, session):
    agent = payer(paying(done))
    decided(session, agent, ann, "deny", reason="not this week")

    run = drive(run_of(session=session))

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])
    assert results(agent) == {"c1": "denied: not this week; do not call it again unchanged"}


@pytest.mark.parametrize("action", ["approve", "deny"])
def test_it_never_covers_a_higher_risk(ann, done, session, action):
    pay = paying(done, risk=by_amount)
    agent = payer(pay)
    decided(session, agent, ann, action)
    done.clear()
    agent = payer(pay, [call(5000, "c1"), call(7, "c2")])

    run = drive(run_of(session=session))

    assert [request.risk for request in open_requests(run)] == ["critical"]
    assert done == ([7] if action == "approve" else [])


def test_it_covers_a_lower_risk(ann, done, session):
    pay = paying(done, risk=by_amount)
    decided(session, payer(pay, call(5000)), ann)
    payer(pay, call(7))

    run = drive(run_of(session=session))

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [5000, 7], [])


def test_an_edit_to_a_riskier_call_is_not_covered_either(ann, done, session):
    pay = paying(done, risk=by_amount)
    payer(pay)
    run = drive(run_of(session=session))
    world.answer(asked(run), "edit", arguments={"amount": 5000}, by=ann)
    StickyDecision.objects.create(
        session=session, agent=PAYER, tool="pay", risk="high", action="approve", decided_by_name="ann"
    )

    run = drive(run)

    assert (done, asked(run).risk) == ([], "critical")


def test_a_revoked_one_is_not_used(ann, done, session):
    agent = payer(paying(done))
    decided(session, agent, ann)
    StickyDecision.objects.update(revoked_at=F("created_at"), revoked_by=ann)

    run = drive(run_of(session=session))

    assert (asked(run).tool, done) == ("pay", [5])


def test_one_that_is_revoked_at_that_moment_is_not_used(ann, done, session, monkeypatch):
    agent = payer(paying(done))
    decided(session, agent, ann)
    found = world.standing

    def revoked_since(*args):
        decision = found(*args)
        StickyDecision.objects.update(revoked_at=F("created_at"))
        return decision

    world.patch(monkeypatch, "standing", revoked_since)

    run = drive(run_of(session=session))

    assert (asked(run).tool, done) == ("pay", [5])
    assert not AuditRecord.objects.filter(run_id=run.id, name="standing").exists()


@pytest.mark.parametrize(
    "other", [{"agent": "react/another"}, {"tool": "refund"}, {"session": None}], ids=["agent", "tool", "session"]
)
def test_another_agents_tools_or_sessions_is_none(ann, done, session, other):
    payer(paying(done))
    values = {"session": session, "agent": PAYER, "tool": "pay", **other}
    values["session"] = values["session"] or world.create_session(Session(agent=PAYER))
    StickyDecision.objects.create(**values, risk="critical", action="approve", decided_by=ann)

    run = drive(run_of(session=session))

    assert (asked(run).tool, done) == ("pay", [])


def test_it_is_no_approver(ann, done, session):
    """Whom the site has stopped from being asked has decided before that: nobody is named any more."""
    pay = paying(done)
    decided(session, payer(pay), ann)
    payer(pay, approvers=None)

    run = drive(run_of(session=session))

    assert (run.status, done) == (Status.COMPLETED, [5])


@pytest.mark.parametrize("dies", range(1, 6))
@pytest.mark.parametrize("written", [False, True])
def test_a_replay_does_not_look_again(clock, ann, done, session, dies, written):
    agent = payer(paying(done))
    decided(session, agent, ann)
    done.clear()
    run = drive(run_of(session=session), dies=dies, written=written)
    used = bool(decisions(run))
    StickyDecision.objects.update(revoked_at=F("created_at"))

    if run.status != Status.COMPLETED:
        run = take_over(clock, run)

    if used:
        assert (run.status, open_requests(run)) == (Status.COMPLETED, [])
        assert len(decisions(run)) == 1
        assert AuditRecord.objects.filter(run_id=run.id, name="standing").count() == 1
    else:
        assert (asked(run).tool, done) == ("pay", [])


def test_an_edit_cannot_stand(ann, done, session):
    payer(paying(done))
    run = drive(run_of(session=session))

    with pytest.raises(InvalidInputError, match="sticky goes with approve or deny"):
        world.answer(asked(run), "edit", arguments={"amount": 1}, sticky=True, by=ann)


def test_one_decided_in_the_same_turn_does_not_answer_for_those_that_are_asked_already(ann, done, session):
    payer(paying(done), [call(1, "c1"), call(2, "c2")])
    run = drive(run_of(session=session))
    first, second = open_requests(run)

    world.answer(first, "approve", sticky=True, by=ann)
    run = drive(run)

    assert (done, run.status, open_requests(run)) == ([1], Status.SUSPENDED, [second])
