"""Somebody answers in the place of another: recorded so, and never more than that other may."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group

from ravi_django.kernel import Addressees, ForbiddenError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest
from tests.support import world
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def users(django_user_model):
    found = {name: django_user_model.objects.create_user(name) for name in ("ann", "fay", "dan", "eve")}
    found["fay"].groups.add(Group.objects.create(name="finance"))
    return found


def approving(owner=None, **options):
    async def story(ctx, inbox):
        steps = Addressees.model_validate({"steps": [{"to": "group:finance"}], **options})
        found = await ctx.approve("pay", {"amount": 7}, to=steps)
        return f"{found.decision} by {found.by}"

    code(story)
    return HumanRequest.objects.get(run=drive(make_run(owner=owner)))


def test_a_delegate_answers_and_it_is_recorded_in_whose_place(users):
    request = approving()
    Delegation.objects.create(user=users["fay"], delegate=users["dan"])

    world.answer(request, "approve", by=users["dan"])

    request.refresh_from_db()
    assert request.answered_by == users["dan"]
    assert {name: request.answer[name] for name in ("by", "instead_of")} == {"by": "dan", "instead_of": "fay"}
    assert AuditRecord.objects.get(name="answered").detail["answer"]["instead_of"] == "fay"
    assert "(in place of fay)" in LogEntry.objects.get(user=users["dan"]).change_message
    assert drive(request.run).output == "approved by dan"


def test_only_while_it_lasts(clock, users):
    request = approving()
    span = {"since": clock.now + timedelta(days=1), "until": clock.now + timedelta(days=2)}
    Delegation.objects.create(user=users["fay"], delegate=users["dan"], **span)

    seen = []
    for _ in range(3):
        seen.append(world.is_open_to(users["dan"], request))
        clock.advance(86400)

    assert seen == [False, True, False]


def test_what_was_delegated_is_not_passed_on(users):
    request = approving()
    Delegation.objects.create(user=users["fay"], delegate=users["dan"])
    Delegation.objects.create(user=users["dan"], delegate=users["eve"])

    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=users["eve"])


def test_not_of_somebody_who_has_left(users):
    request = approving()
    Delegation.objects.create(user=users["fay"], delegate=users["dan"])
    users["fay"].is_active = False
    users["fay"].save()

    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=users["dan"])


def test_an_owner_under_four_eyes_does_not_answer_in_anothers_place(users):
    request = approving(users["ann"], four_eyes=True)
    Delegation.objects.create(user=users["fay"], delegate=users["ann"])

    with pytest.raises(ForbiddenError, match="four eyes"):
        world.answer(request, "approve", by=users["ann"])


def test_nor_does_another_in_the_owners(users):
    users["ann"].groups.add(Group.objects.get(name="finance"))
    request = approving(users["ann"], four_eyes=True)
    Delegation.objects.create(user=users["ann"], delegate=users["dan"])

    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=users["dan"])


def test_the_questions_put_to_a_runs_owner_too(users):
    async def story(ctx, inbox):
        told = await ctx.ask_human("Which colour?")
        return f"{told['text']} by {told['by']}"

    code(story)
    run = drive(make_run(owner=users["ann"]))
    Delegation.objects.create(user=users["ann"], delegate=users["dan"])

    world.answer(HumanRequest.objects.get(run=run), text="red", by=users["dan"])

    assert drive(run).output == "red by dan"
