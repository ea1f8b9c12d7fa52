"""A decision for a session stands while whoever gave it could give it on this very call; and who takes it back."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission

from ravi_django.kernel import ForbiddenError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest, Session, Status, StickyDecision
from tests.support import world
from tests.support.approvals import PAYER, call, open_requests, payer, paying, run_of, user
from tests.support.runs import asked, drive

pytestmark = pytest.mark.django_db(transaction=True)

FOUR_EYES = {"steps": [{"to": "staff"}], "four_eyes": True}


@pytest.fixture
def ann():
    return user("ann", is_staff=True)


@pytest.fixture
def done():
    return []


@pytest.fixture
def session():
    return world.create_session(Session(agent=PAYER))


def decided(session, done, by, action="approve", approvers="staff", owner=None):
    payer(paying(done), approvers=approvers)
    run = drive(run_of(session=session, owner=owner))
    world.answer(asked(run), action, sticky=True, by=by)
    assert drive(run).status == Status.COMPLETED
    done.clear()
    return StickyDecision.objects.get(revoked_at=None)


def next_run(session, done, approvers="staff", amount=7, **fields):
    """Whether a person is asked about the session's next call, which else is made."""
    done.clear()
    payer(paying(done), call(amount), approvers=approvers)
    run = drive(run_of(session=session, **fields))
    waiting = open_requests(run)
    assert done == ([] if waiting else [amount])
    if waiting:
        world.answer(waiting[0], "deny")
        drive(run)
    return bool(waiting)


@pytest.mark.parametrize("how", ["dismissed", "deleted", "no longer of the staff"])
def test_not_the_approval_of_somebody_who_has_left(ann, done, session, how):
    decided(session, done, ann)
    user("bob", is_staff=True)
    if how == "deleted":
        ann.delete()
    else:
        setattr(ann, "is_active" if how == "dismissed" else "is_staff", False)
        ann.save()

    assert next_run(session, done)


def test_not_for_addressees_to_whom_they_do_not_belong(ann, done, session):
    user("fin", "finance")
    decided(session, done, ann)

    assert next_run(session, done, approvers="group:finance")
    assert not next_run(session, done, approvers=[("group:finance", 60), "staff"]), "one of the steps is theirs"


def test_not_of_the_owner_where_it_takes_four_eyes(ann, done, session):
    bob = user("bob", is_staff=True)
    decided(session, done, bob, approvers=FOUR_EYES, owner=ann)

    assert next_run(session, done, approvers=FOUR_EYES, owner=bob)
    assert not next_run(session, done, approvers=FOUR_EYES, owner=ann)


def test_not_of_another_tenant(ann, done, session, settings):
    user("bob", is_staff=True)
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda one: "" if one.username == "ann" else None}
    decided(session, done, ann)

    assert next_run(session, done, tenant="acme")


def test_not_for_arguments_that_the_sites_rule_refuses_them(ann, done, session, settings):
    settings.RAVI = {
        **settings.RAVI,
        "MAY_ANSWER": lambda one, request: request.arguments["amount"] < 100 or one.username == "boss",
    }
    user("boss", is_staff=True)
    decided(session, done, ann)

    assert next_run(session, done, amount=1000)
    assert not next_run(session, done, amount=99)


def test_given_in_anothers_place_while_that_lasts(ann, done, session):
    dan = user("dan")
    absence = Delegation.objects.create(user=ann, delegate=dan)
    decided(session, done, dan, approvers="user:ann")
    assert not next_run(session, done, approvers="user:ann")
    absence.delete()

    assert next_run(session, done, approvers="user:ann")


def test_the_operators_own_stands(ann, done, session):
    decided(session, done, None)

    assert not next_run(session, done)


def test_a_denial_stands_whoever_gave_it(ann, done, session):
    decided(session, done, ann, "deny")
    user("bob", is_staff=True)
    ann.delete()
    payer(paying(done))

    run = drive(run_of(session=session))

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])


def test_an_unsaved_request_at_any_of_its_steps(ann):
    fin = user("fin", "finance")
    asked_of = {"run": run_of(), "kind": "approval", "path": "p", "arguments": {}}
    request = HumanRequest(**asked_of, to="group:finance", steps=[{"to": "group:finance"}, {"to": "staff"}])

    assert world.could_answer(ann, request) and world.could_answer(fin, request)
    assert not world.could_answer(user("eve"), request)
    assert request.to == "group:finance"


# ----------------------------------------------------------------------------------------------- taken back


@pytest.fixture
def sticky(ann, done, session):
    return decided(session, done, ann)


def revocations():
    return list(AuditRecord.objects.filter(event="request", name="standing_revoked").order_by("id"))


def test_taking_it_back_is_recorded(ann, sticky):
    assert world.standing_revoke([sticky], by=ann) == [sticky]
    assert world.standing_revoke([sticky], by=ann) == []

    (record,) = revocations()
    request = HumanRequest.objects.get()
    assert (record.run_id, record.session_id, record.agent) == (request.run_id, sticky.session_id, PAYER)
    expected = {"decision": str(sticky.pk), "request": str(request.pk), "by": "ann", "revoked_by": "ann", "tool": "pay"}
    assert {name: record.detail[name] for name in expected} == expected


def test_of_a_run_that_is_gone_too(sticky):
    HumanRequest.objects.all().delete()

    world.standing_revoke([sticky], by=None)

    assert [(record.run_id.int, record.detail["revoked_by"]) for record in revocations()] == [(0, "")]


def test_so_is_what_a_newer_one_replaces(ann, done, session, sticky):
    bob = user("bob", is_staff=True)
    ann.is_staff = False
    ann.save()

    newer = decided(session, done, bob)

    (record,) = revocations()
    told = {name: record.detail[name] for name in ("decision", "revoked_by", "replaced_by")}
    assert told == {"decision": str(sticky.pk), "revoked_by": "bob", "replaced_by": str(newer.pk)}


def test_it_is_taken_back_by_who_gave_it_or_may_change_it(sticky):
    clerk, viewer, eve = user("clerk"), user("viewer"), user("eve")
    clerk.user_permissions.add(Permission.objects.get(codename="change_stickydecision"))
    viewer.user_permissions.add(Permission.objects.get(codename="view_stickydecision"))

    with pytest.raises(NotFoundError):
        world.standing_revoke([sticky], by=eve)
    with pytest.raises(ForbiddenError, match="whoever gave it"):
        world.standing_revoke([sticky], by=viewer)
    assert not revocations()
    assert world.standing_revoke([sticky], by=clerk) == [sticky]


def test_not_by_who_gave_it_and_was_dismissed(ann, sticky):
    type(ann).objects.update(is_active=False)

    with pytest.raises(NotFoundError):
        world.standing_revoke([sticky], by=ann)
