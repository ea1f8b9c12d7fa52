"""What a person has decided on a tool for a session: found before anybody is asked, never for more risk, and while
whoever gave it could give it on this very call."""

import pytest
from django.contrib.auth.models import Permission
from django.db.models import F

from ravi_django.kernel import ForbiddenError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest, Session, Status, StickyDecision
from tests.support import world
from tests.support.approvals import PAYER, call, decisions, open_requests, payer, paying, results, run_of, user
from tests.support.runs import asked, drive, every_death

pytestmark = pytest.mark.django_db(transaction=True)

FOUR_EYES = {"steps": [{"to": "staff"}], "four_eyes": True}


def by_amount(arguments):
    return "high" if arguments["amount"] < 1000 else "critical"


@pytest.fixture
def session():
    return world.create_session(Session(agent=PAYER))


def decided(session, agent, by, action="approve", owner=None, **more):
    """A first run of the session, whose call is decided on for good."""
    run = drive(run_of(session=session, owner=owner))
    world.answer(asked(run), action, sticky=True, by=by, **more)
    assert drive(run).status == Status.COMPLETED
    return StickyDecision.objects.get(session=session, revoked_at=None)


def test_the_next_call_of_the_session_is_not_asked_about(ann, ran, session):
    agent = payer(paying(ran))
    sticky = decided(session, agent, ann)
    run = drive(run_of(session=session))
    assert (run.status, ran, open_requests(run)) == (Status.COMPLETED, [5, 5], [])
    assert decisions(run) == [{"decision": "approved", "reason": "", "by": "ann", "sticky": str(sticky.id)}]
    record = AuditRecord.objects.get(run_id=run.id, event="request")
    assert (record.name, record.detail["decision"], record.detail["by"]) == ("standing", str(sticky.id), "ann")
    assert (record.detail["tool"], record.detail["risk"]) == ("pay", "high")
    assert record.detail["arguments_hash"] == HumanRequest.objects.get().arguments_hash


def test_a_standing_denial_tells_its_reason(ann, ran, session):
    agent = payer(paying(ran))
    decided(session, agent, ann, "deny", reason="not this week")
    run = drive(run_of(session=session))
    assert (run.status, ran, open_requests(run)) == (Status.COMPLETED, [], [])
    assert results(agent) == {"c1": "denied: not this week; do not call it again unchanged"}


@pytest.mark.parametrize("action", ["approve", "deny"])
def test_it_covers_a_lower_risk_and_never_a_higher(ann, ran, session, action):
    pay = paying(ran, risk=by_amount)
    decided(session, payer(pay), ann, action)
    ran.clear()
    payer(pay, [call(5000, "c1"), call(7, "c2")])

    run = drive(run_of(session=session))

    (request,) = open_requests(run)
    made = [7] if action == "approve" else []
    assert (request.risk, ran) == ("critical", made)
    world.answer(request, action, sticky=True, by=ann)
    drive(run)
    payer(pay, call(8))
    run = drive(run_of(session=session))
    assert (run.status, open_requests(run)) == (Status.COMPLETED, [])
    assert ran == ([7, 5000, 8] if action == "approve" else [])


def test_it_covers_no_edit_to_a_riskier_call(ann, ran, session):
    payer(paying(ran, risk=by_amount))
    run = drive(run_of(session=session))
    world.answer(asked(run), "edit", arguments={"amount": 5000}, by=ann)
    mine = {"session": session, "agent": PAYER, "tool": "pay"}
    StickyDecision.objects.create(**mine, risk="high", action="approve", decided_by_name="ann")
    assert (asked(drive(run)).risk, ran) == ("critical", [])


@pytest.mark.parametrize("when", ["before", "at that moment"])
def test_a_revoked_one_is_not_used(ann, ran, session, monkeypatch, when):
    decided(session, payer(paying(ran)), ann)
    found = world.find_sticky

    def revoked_since(*args):
        decision = found(*args)
        StickyDecision.objects.update(revoked_at=F("created_at"))
        return decision

    if when == "before":
        StickyDecision.objects.update(revoked_at=F("created_at"), revoked_by=ann)
    else:
        world.patch(monkeypatch, "find_sticky", revoked_since)

    run = drive(run_of(session=session))
    assert (asked(run).tool, ran) == ("pay", [5])
    assert not AuditRecord.objects.filter(run_id=run.id, name="standing").exists()


def test_another_agents_tools_or_sessions_is_none(ann, ran, session):
    payer(paying(ran))
    mine = {"session": session, "agent": PAYER, "tool": "pay"}
    elsewhere = world.create_session(Session(agent=PAYER))
    for other in ({"agent": "react/another"}, {"tool": "refund"}, {"session": elsewhere}):
        StickyDecision.objects.create(**{**mine, **other}, risk="critical", action="approve", decided_by=ann)
    assert (asked(drive(run_of(session=session))).tool, ran) == ("pay", [])


def test_a_replay_does_not_look_again(clock, ann, ran):
    agent = payer(paying(ran))
    unused = set()

    def revoke():
        unused.update([] if decisions(runs[-1]) else [runs[-1].id])
        StickyDecision.objects.update(revoked_at=F("created_at"))

    def story(drive):
        session = world.create_session(Session(agent=PAYER))
        decided(session, agent, ann)
        ran.clear()
        runs.append(run_of(session=session))
        return drive(runs[-1], meanwhile=revoke)

    runs = []
    for run, _ in every_death(clock, story):
        if run.id in unused:
            assert (asked(run).tool, ran) == ("pay", [])
        else:
            assert (run.status, open_requests(run), len(decisions(run))) == (Status.COMPLETED, [], 1)
            assert AuditRecord.objects.filter(run_id=run.id, name="standing").count() == 1
    assert 0 < len(unused) < len(runs) - 1


def test_one_decided_in_the_same_turn_does_not_answer_for_those_that_are_asked_already(ann, ran, session):
    payer(paying(ran), [call(1, "c1"), call(2, "c2")])
    run = drive(run_of(session=session))
    first, second = open_requests(run)
    world.answer(first, "approve", sticky=True, by=ann)
    run = drive(run)
    assert (ran, run.status, open_requests(run)) == ([1], Status.SUSPENDED, [second])


# -------------------------------------------------------------------- while whoever gave it could give it on this call


def trusted(session, ran, by, action="approve", approvers="staff", owner=None):
    sticky = decided(session, payer(paying(ran), approvers=approvers), by, action, owner=owner)
    ran.clear()
    return sticky


def next_run(session, ran, approvers="staff", amount=7, **fields):
    """Whether a person is asked about the session's next call, which else is made."""
    ran.clear()
    payer(paying(ran), call(amount), approvers=approvers)
    run = drive(run_of(session=session, **fields))
    waiting = open_requests(run)
    assert ran == ([] if waiting else [amount])
    if waiting:
        world.answer(waiting[0], "deny")
        drive(run)
    return bool(waiting)


@pytest.mark.parametrize(
    ("action", "how"),
    [("approve", "dismissed"), ("approve", "deleted"), ("approve", "no longer of the staff"), ("deny", "deleted")],
)
def test_not_the_approval_of_somebody_who_has_left_but_their_denial(ann, ran, session, how, action):
    trusted(session, ran, ann, action)
    user("bob", is_staff=True)
    if how == "deleted":
        ann.delete()
    else:
        setattr(ann, "is_active" if how == "dismissed" else "is_staff", False)
        ann.save()
    payer(paying(ran), call(7))
    assert (bool(open_requests(drive(run_of(session=session)))), ran) == (action == "approve", [])


def test_not_for_addressees_to_whom_they_do_not_belong(ann, ran, session):
    user("fin", "finance")
    trusted(session, ran, ann)

    assert next_run(session, ran, approvers="group:finance")
    assert not next_run(session, ran, approvers=[("group:finance", 60), "staff"]), "one of the steps is theirs"
    ran.clear()
    payer(paying(ran), approvers=None)
    run = drive(run_of(session=session))
    assert (run.status, ran) == (Status.COMPLETED, []), "nobody may be asked any more: it is no approver"
    another = world.create_session(Session(agent=PAYER))
    StickyDecision.objects.update(revoked_at=F("created_at"))
    trusted(another, ran, None)
    assert not next_run(another, ran, approvers="group:finance"), "the site's own operator's"


def test_not_of_the_owner_where_it_takes_four_eyes(ann, ran, session):
    bob = user("bob", is_staff=True)
    trusted(session, ran, bob, approvers=FOUR_EYES, owner=ann)
    assert next_run(session, ran, approvers=FOUR_EYES, owner=bob)
    assert not next_run(session, ran, approvers=FOUR_EYES, owner=ann)


def test_not_of_another_tenant(ann, ran, session, settings):
    user("bob", is_staff=True)
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda one: "" if one.username == "ann" else None}
    trusted(session, ran, ann)
    assert next_run(session, ran, tenant="acme")


def test_not_for_arguments_that_the_sites_rule_refuses_them(ann, ran, session, settings):
    def may_answer(one, request):
        return request.arguments["amount"] < 100 or one.username == "boss"

    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": may_answer}
    user("boss", is_staff=True)
    trusted(session, ran, ann)

    assert next_run(session, ran, amount=1000)
    assert not next_run(session, ran, amount=99)


def test_given_in_anothers_place_while_that_lasts(ann, ran, session):
    dan = user("dan")
    absence = Delegation.objects.create(user=ann, delegate=dan)
    trusted(session, ran, dan, approvers="user:ann")
    assert not next_run(session, ran, approvers="user:ann")
    absence.delete()
    assert next_run(session, ran, approvers="user:ann")


def test_an_unsaved_request_at_any_of_its_steps(ann):
    fin = user("fin", "finance")
    asked_of = {"run": run_of(), "kind": "approval", "path": "p", "arguments": {}}
    request = HumanRequest(**asked_of, to="group:finance", steps=[{"to": "group:finance"}, {"to": "staff"}])
    assert world.may_answer_unsaved(ann, request) and world.may_answer_unsaved(fin, request)
    assert not world.may_answer_unsaved(user("eve"), request)
    assert request.to == "group:finance"


# ----------------------------------------------------------------------------------------------- taken back


@pytest.fixture
def sticky(ann, ran, session):
    return trusted(session, ran, ann)


def revocations():
    return list(AuditRecord.objects.filter(event="request", name="standing_revoked").order_by("id"))


def test_taking_it_back_is_recorded(ann, sticky):
    assert world.sticky_revoke([sticky], by=ann) == [sticky]
    assert world.sticky_revoke([sticky], by=ann) == []
    (record,) = revocations()
    request = HumanRequest.objects.get()
    assert (record.run_id, record.session_id, record.agent) == (request.run_id, sticky.session_id, PAYER)
    expected = {"decision": str(sticky.pk), "request": str(request.pk), "by": "ann", "revoked_by": "ann", "tool": "pay"}
    assert {name: record.detail[name] for name in expected} == expected


def test_of_a_run_that_is_gone_too(sticky):
    HumanRequest.objects.all().delete()
    world.sticky_revoke([sticky], by=None)
    assert [(record.run_id.int, record.detail["revoked_by"]) for record in revocations()] == [(0, "")]


def test_so_is_what_a_newer_one_replaces(ann, ran, session, sticky):
    bob = user("bob", is_staff=True)
    ann.is_staff = False
    ann.save()
    newer = trusted(session, ran, bob)
    (record,) = revocations()
    told = {name: record.detail[name] for name in ("decision", "revoked_by", "replaced_by")}
    assert told == {"decision": str(sticky.pk), "revoked_by": "bob", "replaced_by": str(newer.pk)}


def test_it_is_taken_back_by_who_gave_it_or_may_change_it(ann, sticky):
    clerk, viewer, eve = user("clerk"), user("viewer"), user("eve")
    clerk.user_permissions.add(Permission.objects.get(codename="change_stickydecision"))
    viewer.user_permissions.add(Permission.objects.get(codename="view_stickydecision"))
    type(ann).objects.filter(pk=ann.pk).update(is_active=False)  # who gave it was dismissed
    for by, error in ((eve, NotFoundError), (viewer, ForbiddenError), (ann, NotFoundError)):
        with pytest.raises(error):
            world.sticky_revoke([sticky], by=by)
    assert not revocations()
    assert world.sticky_revoke([sticky], by=clerk) == [sticky]
