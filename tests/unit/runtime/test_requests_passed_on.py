"""Others are asked in place of whoever is: in time, by a person's word, or while one stands in for another.

Every order of this is the state machine's: `test_requests_stateful`.
"""

from datetime import timedelta
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission
from django.db import transaction

from ravi_django.kernel import Addressees, ConflictError, ForbiddenError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import user
from tests.support.cases import case, refused
from tests.support.patience import BOUND_S
from tests.support.runs import (
    asked,
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
CHAIN = [("group:finance", 4 * HOUR), ("group:directors", HOUR)]


@pytest.fixture
def users():
    """fay and fred of finance, dan of the directors, ann who owns the run, op who operates the site, eve is nobody."""
    groups = {"fay": ["finance"], "fred": ["finance"], "dan": ["directors"], "ann": [], "op": [], "eve": []}
    found = {name: user(name, *of) for name, of in groups.items()}
    held = ("change_humanrequest", "view_humanrequest")
    found["op"].user_permissions.set(Permission.objects.filter(codename__in=held))
    return found


def approving(to="group:finance", owner=None):
    """A request of a run that asks whether it may pay, and says what was decided."""

    async def story(ctx, inbox):
        found = await ctx.approve("pay", {"amount": 7}, to=Addressees.of(to))
        return f"{found.decision} by {found.by}: {found.reason}"

    code(story)
    return HumanRequest.objects.get(run=drive(make_run(owner=owner)))


def now_asked(request):
    return HumanRequest.objects.get(pk=request.pk)


def sweep():
    """Returns the runs that it hints."""
    hinted = []
    world.sweeper_sweep(lambda runs: hinted.extend(runs))
    return hinted


@pytest.mark.sqlite
def test_first_one_group_then_another_then_denied(clock, users):
    request = approving(CHAIN)
    before = [entry.kind for entry in journal_of(request.run)]
    assert request.expires_at - clock.now == timedelta(hours=5)

    clock.advance(4 * HOUR + 1)
    assert sweep() == [], "the run is not driven for it"
    request = now_asked(request)
    assert (request.to, request.level, request.version, request.escalates_at) == ("group:directors", 1, 2, None)
    assert [entry.kind for entry in journal_of(request.run)] == before, "nor is it in the journal"

    clock.advance(HOUR)
    assert sweep() == [request.run_id]
    run = drive(request.run)
    assert (run.status, now_asked(request).status) == (Status.COMPLETED, "expired")
    assert run.output.startswith("denied")


def test_the_time_of_the_question_ends_before_its_steps_and_whoever_is_asked_at_last_is_waited_for(clock, users):
    async def story(ctx, inbox):
        return (await ctx.ask_human("Which colour?", timeout=90, to=CHAIN))["action"]

    code(story)
    run = drive(make_run())
    clock.advance(91)
    assert sweep() == [run.id]
    assert drive(run).output == "expired"

    request = approving([("group:finance", HOUR), "group:directors"])
    clock.advance(1000 * HOUR)
    assert sweep() == []
    world.answer(asked(request.run), "approve", by=users["dan"])
    assert drive(request.run).output.startswith("approved")


@pytest.mark.parametrize("kind", ["uncertain", "budget"])
def test_what_only_a_person_can_decide_goes_on_and_never_expires(clock, users, settings, kind):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {kind: CHAIN}}
    given = {"to": world.site_rules_addressees("budget"), "tool": "budget"} if kind == "budget" else {}
    kinds = HumanRequest.Kind
    of = kinds.APPROVAL if kind == "budget" else kinds.UNCERTAIN
    request = world.requests_new(make_run(), "p", of, present=clock.now, expires=False, **given)
    request.save(force_insert=True)
    clock.advance(100 * HOUR)

    sweep()

    request = now_asked(request)
    assert (request.to, request.escalates_at, request.expires_at) == ("group:directors", None, None)


def test_a_bounded_batch_at_a_time_in_which_one_that_fails_does_not_stop_the_rest(clock, users, monkeypatch):
    requests = [approving(CHAIN) for _ in range(3)]
    clock.advance(4 * HOUR)
    meant = world.has_recipient

    def fails_for_one(to, request):
        if request.pk == requests[0].pk:
            raise ValueError("bad")
        return meant(to, request)

    assert world.due_to_escalate(2) == [request.pk for request in requests[:2]]
    world.patch(monkeypatch, "has_recipient", fails_for_one)

    sweep()

    assert [now_asked(request).level for request in requests] == [0, 1, 1]


def test_who_may_answer_it_hands_it_to_another(users):
    request = approving(owner=users["ann"])

    found = world.reassign(request, "user:dan", by=users["fay"], reason="his cost centre")

    assert now_asked(request).steps == [{"to": "user:dan", "within": None}] == found.steps
    record = AuditRecord.objects.get(event="request", name="reassigned")
    expected = {"from": "group:finance", "to": "user:dan", "by": "fay", "reason": "his cost centre", "version": 2}
    assert {name: record.detail[name] for name in expected} == expected
    entry = LogEntry.objects.get(object_id=str(request.pk))
    words = "Reassigned from group:finance to user:dan: his cost centre"
    assert (entry.user, entry.change_message) == (users["fay"], words)
    world.answer(request.pk, "approve", by=users["dan"])
    assert drive(request.run).output.startswith("approved by dan")


@pytest.mark.parametrize("to", ["user:op", "staff", "group:directors", "owner", "user:dan"])
def test_an_operator_makes_nobody_an_approver_but_others(users, settings, to):
    """Neither themselves, by whatever address, nor one in whose place they would answer; the site's rule aside."""
    op = users["op"]
    request = approving(owner=op if to == "owner" else None)
    if to == "user:dan":
        Delegation.objects.create(user=users["dan"], delegate=op)
    op.groups.set(Group.objects.filter(name="directors") if to == "group:directors" else [])
    op.is_staff = True
    op.save()
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: user.username != "op"}

    with pytest.raises(ForbiddenError, match="includes you"):
        world.reassign(request, to, by=op)

    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": None}
    with pytest.raises((ForbiddenError, NotFoundError)):
        world.answer(request.pk, "approve", by=op)
    assert world.reassign(request, "user:ann", by=op).to == "user:ann"


def test_an_address_that_means_nobody_is_refused(users):
    user("gone", is_active=False)
    request = approving()

    for to, words in (
        ("user:nobody", "Nobody at"),
        ("group:none", "Nobody at"),
        ("user:gone", "Nobody at"),
        ("permission:shop.pay", "Nobody at"),
        ("owner", "Nobody at staff"),
        ("group:finance", "already addressed to"),
        ("nobody", "is no address"),
        ("", "is no address"),
        ([("user:dan", 60), "user:fay"], "one address"),
    ):
        with case(to), refused("to", words):
            world.reassign(request, to, by=users["fay"])

    assert now_asked(request).version == 1
    HumanRequest.objects.update(tenant="acme")
    with pytest.raises(NotFoundError):  # an operator of another tenant
        world.reassign(request.pk, "user:dan", by=users["op"])
    HumanRequest.objects.update(tenant="")
    user("sue", is_staff=True)
    assert world.reassign(request, "owner", by=users["fay"]).to == "staff", "the run belongs to nobody"


def test_what_is_withdrawn_is_told_the_run_and_recorded(users):
    request = approving(owner=users["ann"])

    world.human_cancel(request, by=users["fay"], reason="no longer needed")

    request = now_asked(request)
    assert (request.status, request.answer["action"], request.answered_by) == ("answered", "cancel", users["fay"])
    record = AuditRecord.objects.get(event="request", name="cancelled")
    assert (record.detail["by"], record.detail["answer"]["reason"]) == ("fay", "no longer needed")
    with pytest.raises(ConflictError, match="already answered by fay"):
        world.reassign(request, "user:dan")
    assert drive(request.run).output.startswith("denied")


def test_a_delegate_answers_while_it_lasts_and_it_is_recorded_in_whose_place(clock, users):
    request = approving()
    span = {"since": clock.now + timedelta(days=1), "until": clock.now + timedelta(days=3)}
    Delegation.objects.create(user=users["fay"], delegate=users["dan"], **span)
    Delegation.objects.create(user=users["dan"], delegate=users["eve"])

    seen = []
    for _ in range(4):
        seen.append(tuple(not world.rights_refusal(users[name], request) for name in ("dan", "eve")))
        clock.advance(86400)
    assert seen == [(False, False), (True, False), (True, False), (False, False)], "and it is not passed on"
    clock.advance(-2 * 86400)

    world.answer(request, "approve", by=users["dan"])

    answer = now_asked(request).answer
    assert (answer["by"], answer["instead_of"]) == ("dan", "fay")
    assert AuditRecord.objects.get(name="answered").detail["answer"]["instead_of"] == "fay"
    assert "(in place of fay)" in LogEntry.objects.get(user=users["dan"]).change_message
    assert drive(request.run).output == "approved by dan: "


def test_the_owner_under_four_eyes_is_in_nobodys_place_nor_anybody_in_theirs(users):
    users["ann"].groups.add(Group.objects.get(name="finance"))
    request = approving({"steps": [{"to": "group:finance"}], "four_eyes": True}, users["ann"])
    Delegation.objects.create(user=users["fay"], delegate=users["ann"])
    Delegation.objects.create(user=users["ann"], delegate=users["dan"])

    with pytest.raises(ForbiddenError, match="four eyes"):
        world.answer(request, "approve", by=users["ann"])
    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=users["dan"])


def attempt(act, *args, **kwargs):
    try:
        act(*args, **kwargs)
    except (ConflictError, NotFoundError):
        return False
    return True


@on_postgresql
@pytest.mark.parametrize("other", ["escalated", "reassigned"])
def test_an_answer_and_another_addressee_at_once(clock, users, other):
    """Whichever is first; who is asked no more does not answer."""
    for _ in range(8):
        request = approving(CHAIN)
        clock.advance(4 * HOUR)
        reassign = partial(world.reassign, to="user:dan", by=users["fred"])

        answering = in_background(attempt, partial(world.answer, by=users["fay"]), request.pk, "approve")
        passing = in_background(*((world.escalate,) if other == "escalated" else (attempt, reassign)), request.pk)
        counted, passed_on = answering.result(BOUND_S), passing.result(BOUND_S)

        request = now_asked(request)
        assert counted is not passed_on
        assert (request.status, request.version) == ("answered" if counted else "pending", 2)
        assert (Run.objects.get(pk=request.run_id).status == "pending") is counted, "no lost wake-up, none for nothing"


@on_postgresql
@pytest.mark.parametrize("other", ["escalated", "reassigned"])
def test_of_two_that_pass_it_on_at_once_one_does(clock, users, other):
    request = approving([("group:finance", HOUR), ("group:directors", HOUR), "user:eve"])
    clock.advance(HOUR)

    def reassign(to):
        return attempt(world.reassign, request.pk, to, version=1)

    works = (
        [(world.escalate, request.pk)] * 2 if other == "escalated" else [(reassign, f"user:{to}") for to in users][:2]
    )
    with transaction.atomic():
        HumanRequest.objects.select_for_update().get(pk=request.pk)
        racing = [in_background(*work) for work in works]
        until(somebody_waits_for_a_lock)

    assert sorted(future.result(BOUND_S) for future in racing) == [False, True]
    assert now_asked(request).version == 2
    assert AuditRecord.objects.filter(event="request", name=other).count() == 1


@on_postgresql
def test_a_run_that_is_cancelled_while_its_request_is_escalated(clock, users):
    for _ in range(5):
        request = approving(CHAIN)
        clock.advance(4 * HOUR)

        racing = [in_background(world.escalate, request.pk), in_background(cancel, request.run_id, "enough")]
        for future in racing:
            future.result(BOUND_S)

        assert now_asked(request).status == "cancelled"
        records = AuditRecord.objects.filter(detail__request=str(request.pk)).order_by("id")
        numbers = list(records.values_list("detail__version", flat=True))
        assert numbers == list(range(1, now_asked(request).version + 1))
