"""Somebody else is asked in place of whoever is; and a request is withdrawn."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission

from ravi_django.kernel import Addressees, ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest
from ravi_django.signals import request_changed
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, in_background, make_run, on_postgresql
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0


@pytest.fixture
def users(django_user_model):
    """fay and fred of finance, dan of the directors, ann who owns the run, op who operates the site, eve is nobody."""
    found = {name: django_user_model.objects.create_user(name) for name in ("fay", "fred", "dan", "ann", "op", "eve")}
    finance, directors = Group.objects.create(name="finance"), Group.objects.create(name="directors")
    found["fay"].groups.add(finance)
    found["fred"].groups.add(finance)
    found["dan"].groups.add(directors)
    codenames = ["change_humanrequest", "view_humanrequest"]
    found["op"].user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return found


def approving(owner=None, *, to="group:finance", four_eyes=None):
    async def story(ctx, inbox):
        steps = Addressees.of(to).model_copy(update={"four_eyes": four_eyes})
        found = await ctx.approve("pay", {"amount": 7}, to=steps)
        return f"{found.decision}: {found.reason}"

    code(story)
    run = drive(make_run(owner=owner))
    return HumanRequest.objects.get(run=run)


def now_asked(request):
    return HumanRequest.objects.get(pk=request.pk)


def test_who_may_answer_it_hands_it_to_another(users):
    told = []

    def receiver(request, **more):
        told.append((request.to, request.version))

    request_changed.connect(receiver)
    request = approving(users["ann"])

    found = world.reassign(request, "user:dan", by=users["fay"], reason="his cost centre")

    request_changed.disconnect(receiver)
    assert (found.to, found.version, found.level, told) == ("user:dan", 2, 0, [("user:dan", 2)])
    assert now_asked(request).steps == [{"to": "user:dan", "within": None}]
    record = AuditRecord.objects.get(event="request", name="reassigned")
    expected = {"from": "group:finance", "to": "user:dan", "by": "fay", "reason": "his cost centre", "version": 2}
    assert {name: record.detail[name] for name in expected} == expected
    entry = LogEntry.objects.get(object_id=str(request.pk))
    words = "Reassigned from group:finance to user:dan: his cost centre"
    assert (entry.user, entry.change_message) == (users["fay"], words)
    with pytest.raises(NotFoundError):
        world.answer(request.pk, "approve", by=users["fay"])
    world.answer(request.pk, "approve", by=users["dan"])
    assert drive(request.run).output.startswith("approved")


def test_an_operator_of_the_site_may_though_not_answer(users):
    request = approving()
    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=users["op"])

    world.reassign(request, "user:dan", by=users["op"])

    assert now_asked(request).to == "user:dan"


@pytest.mark.parametrize("to", ["user:op", "staff", "group:directors", "owner", "user:dan"])
def test_an_operator_makes_nobody_an_approver_but_others(users, settings, to):
    """Neither themselves, by whatever address, nor one in whose place they would answer; the site's rule aside."""
    op = users["op"]
    request = approving(op if to == "owner" else None)
    if to == "user:dan":
        Delegation.objects.create(user=users["dan"], delegate=op)
    elif to == "group:directors":
        op.groups.add(Group.objects.get(name="directors"))
    op.is_staff = True
    op.save()
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: user.username != "op"}

    with pytest.raises(ForbiddenError, match="means you"):
        world.reassign(request, to, by=op)

    assert now_asked(request).version == 1
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": None}
    with pytest.raises((ForbiddenError, NotFoundError)):
        world.answer(request.pk, "approve", by=op)
    assert world.reassign(request, "user:ann", by=op).to == "user:ann"


def test_who_may_answer_it_already_may_keep_it_to_themselves(users):
    assert world.reassign(approving(), "user:fay", by=users["fay"]).to == "user:fay"


def test_an_operator_of_one_tenant_reassigns_none_of_anothers(users, settings):
    request = approving()
    HumanRequest.objects.update(tenant="acme")

    with pytest.raises(NotFoundError):
        world.reassign(request.pk, "user:dan", by=users["op"])


@pytest.mark.parametrize(("who", "error"), [("eve", NotFoundError), ("dan", NotFoundError), ("ann", ForbiddenError)])
def test_nobody_else_may(users, who, error):
    request = approving(users["ann"])

    with pytest.raises(error):
        world.reassign(request, "user:dan", by=users[who])

    assert now_asked(request).version == 1


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("user:nobody", "means nobody"),
        ("group:none", "means nobody"),
        ("user:gone", "means nobody"),
        ("permission:shop.pay", "means nobody"),
        ("group:finance", "is asked already"),
        ("nobody", "is no address"),
        ("", "is no address"),
        ([("user:dan", 60), "user:fay"], "one address"),
    ],
)
def test_an_address_that_means_nobody_is_refused(users, django_user_model, to, words):
    django_user_model.objects.create_user("gone", is_active=False)
    request = approving()

    with pytest.raises(InvalidInputError, match=words) as found:
        world.reassign(request, to, by=users["fay"])

    assert (found.value.field, now_asked(request).version) == ("to", 1)


def test_four_eyes_stay(users):
    request = approving(users["ann"], four_eyes=True)

    with pytest.raises(InvalidInputError, match="means nobody"):
        world.reassign(request, "user:ann", by=users["fay"])
    world.reassign(request, "group:directors", by=users["fay"])
    users["ann"].groups.add(Group.objects.get(name="directors"))

    with pytest.raises(ForbiddenError, match="four eyes"):
        world.answer(request.pk, "approve", by=users["ann"])


def test_the_owner_of_a_run_without_one_is_the_staff(users, django_user_model):
    request = approving()
    with pytest.raises(InvalidInputError, match="staff means nobody"):
        world.reassign(request, "owner", by=users["fay"])
    django_user_model.objects.create_user("sue", is_staff=True)

    assert world.reassign(request, "owner", by=users["fay"]).to == "staff"


def test_the_time_that_was_left_stays_and_so_do_the_later_steps(clock, users):
    request = approving(to=[("group:finance", HOUR), "group:directors"])
    clock.advance(HOUR / 2)

    found = world.reassign(request, "user:ann", by=users["fay"])

    assert (found.escalates_at, found.expires_at) == (request.escalates_at, request.expires_at)
    clock.advance(HOUR / 2)
    world.sweeper_sweep(lambda runs: None)
    assert now_asked(request).to == "group:directors"


def test_those_who_are_asked_now_are_written_to(users):
    request = approving()
    HumanRequest.objects.update(notified=0)

    assert world.reassign(request.pk, "user:dan").notified == -1


def test_a_page_of_before_reassigns_nothing(users):
    request = approving()
    world.reassign(request, "group:directors", by=users["fay"], version=1)

    with pytest.raises(ConflictError, match="version 2 now"):
        world.reassign(request.pk, "user:ann", version=1)

    assert now_asked(request).to == "group:directors"


def test_what_is_decided_closed_or_over_is_not_reassigned(clock, users):
    answered, cancelled, over = (approving(to=[("group:finance", HOUR)]) for _ in range(3))
    world.answer(answered, "deny")
    cancel(cancelled.run_id, "enough")
    clock.advance(HOUR)

    for request in (answered, cancelled, over):
        with pytest.raises(ConflictError):
            world.reassign(request.pk, "user:dan")

    assert not AuditRecord.objects.filter(name="reassigned").exists()


@pytest.mark.parametrize("kind", ["question", "approval"])
def test_a_request_is_withdrawn(users, kind):
    if kind == "approval":
        request = approving(users["ann"])
    else:

        async def story(ctx, inbox):
            return (await ctx.ask_human("Which?", to="group:finance"))["action"]

        code(story)
        request = HumanRequest.objects.get(run=drive(make_run()))

    world.human_cancel(request, by=users["fay"], reason="no longer needed")

    request = now_asked(request)
    assert (request.status, request.answer["action"], request.answered_by) == ("answered", "cancel", users["fay"])
    record = AuditRecord.objects.get(event="request", name="cancelled")
    assert (record.detail["by"], record.detail["answer"]["reason"]) == ("fay", "no longer needed")
    output = drive(request.run).output
    assert output == "cancel" if kind == "question" else output.startswith(("denied", "skipped"))


def test_an_uncertain_effect_cannot_be_withdrawn(users):
    request = HumanRequest.objects.create(run=make_run(), kind="uncertain", to="staff", path="p")

    with pytest.raises(InvalidInputError, match="resolve"):
        world.human_cancel(request)


# ------------------------------------------------------------------------------------------- at the same time


@on_postgresql
def test_an_answer_and_a_reassignment_at_once(users):
    """Whichever is first; who is asked no more does not answer."""
    for _ in range(8):
        request = approving()

        racing = [
            in_background(_done, world.answer, request.pk, "approve", users["fay"]),
            in_background(_done, world.reassign, request.pk, "user:dan", users["fred"]),
        ]
        answered, reassigned = (future.result(BOUND_S) for future in racing)

        request = now_asked(request)
        assert answered is not reassigned
        assert (request.status, request.version) == ("answered" if answered else "pending", 2)
        assert (request.run.status == "pending") is answered


@on_postgresql
def test_of_two_reassignments_one_counts(users):
    request = approving()

    racing = [in_background(_done, world.reassign, request.pk, f"user:{name}", None, 1) for name in ("dan", "ann")]

    assert sorted(future.result(BOUND_S) for future in racing) == [False, True]
    assert now_asked(request).version == 2


def _done(act, request_id, what, by, version=None):
    try:
        act(request_id, what, by=by, version=version)
    except (ConflictError, NotFoundError):
        return False
    return True


def test_the_rule_of_who_may_reassign_is_asked_of_the_user_as_they_are_now(users, django_user_model):
    request = approving()
    django_user_model.objects.filter(username="op").update(is_active=False)

    with pytest.raises(NotFoundError):
        world.reassignment_check(users["op"], request)
