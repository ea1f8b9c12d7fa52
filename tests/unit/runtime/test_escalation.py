"""A request that nobody decides goes to the next ones in time, and in the end to nobody: that denies, or skips."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group

from ravi_django.kernel import Addressees, ConflictError, ForbiddenError, NotFoundError
from ravi_django.models import AuditRecord, HumanRequest, Run, Status
from ravi_django.signals import request_changed
from ravi_django.testing import journal_of
from tests.support import world
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
def staff(django_user_model):
    """fay of finance, dan of the directors, bea of the board."""
    found = {}
    for name, group in (("fay", "finance"), ("dan", "directors"), ("bea", "board")):
        found[name] = django_user_model.objects.create_user(name)
        found[name].groups.add(Group.objects.create(name=group))
    return found


def approving(to=CHAIN):
    """A run that asks whether it may pay, and says what was decided."""

    async def story(ctx, inbox):
        found = await ctx.approve("pay", {"amount": 7}, to=Addressees.of(to))
        return f"{found.decision}: {found.reason}"

    code(story)
    return drive(make_run())


def request_of(run):
    return HumanRequest.objects.get(run=run)


def sweep():
    """Returns the runs that it hints."""
    hinted = []
    world.sweeper_sweep(lambda runs: hinted.extend(runs))
    return hinted


@pytest.fixture
def changed():
    seen = []

    def receiver(request, **more):
        seen.append((request.to, request.version))

    request_changed.connect(receiver)
    yield seen
    request_changed.disconnect(receiver)


@pytest.mark.sqlite
def test_first_one_group_then_another_then_denied(clock, staff, changed):
    run = approving()
    request = request_of(run)
    assert (request.to, request.level) == ("group:finance", 0)
    assert request.expires_at - clock.now == timedelta(hours=5)

    clock.advance(4 * HOUR - 1)
    sweep()
    assert request_of(run).to == "group:finance"

    clock.advance(2)
    assert sweep() == [], "the run is not driven for it"
    request = request_of(run)
    assert (request.to, request.level, request.version, request.escalates_at) == ("group:directors", 1, 2, None)
    assert world.is_open_to(staff["dan"], request)
    with pytest.raises((ForbiddenError, NotFoundError)):
        world.answer(request, "approve", by=staff["fay"])
    sweep()
    assert request_of(run).version == 2

    clock.advance(HOUR)
    assert sweep() == [run.id]
    run = drive(run)
    assert (run.status, request_of(run).status) == (Status.COMPLETED, "expired")
    assert run.output.startswith("denied")
    assert changed == [("group:directors", 2)]
    names = list(AuditRecord.objects.filter(event="request").order_by("id").values_list("name", flat=True))
    assert names == ["opened", "escalated", "expired"]


def test_whoever_is_asked_then_decides(clock, staff):
    run = approving()
    clock.advance(4 * HOUR)
    sweep()

    world.answer(request_of(run), "approve", by=staff["dan"])

    assert drive(run).output.startswith("approved")


def test_a_question_that_nobody_answers_is_passed_over(clock, staff):
    async def story(ctx, inbox):
        return (await ctx.ask_human("Which colour?", to=[("group:finance", 60), ("group:directors", 60)]))["action"]

    code(story)
    run = drive(make_run())
    clock.advance(61)
    sweep()
    assert request_of(run).to == "group:directors"
    clock.advance(60)
    assert sweep() == [run.id]

    assert drive(run).output == "expired"


def test_a_step_that_means_nobody_leaves_its_time_to_the_next(clock, staff):
    staff["dan"].groups.clear()
    run = approving([("group:finance", HOUR), ("group:directors", HOUR), ("group:board", HOUR), "staff"])
    opened = clock.now
    clock.advance(HOUR)

    sweep()

    request = request_of(run)
    assert (request.to, request.level) == ("group:board", 2)
    assert request.escalates_at == opened + timedelta(hours=3), "when it was said to be, no sooner and no later"


def test_a_sweep_that_comes_late_asks_the_step_whose_time_it_is(clock, staff):
    run = approving([("group:finance", HOUR), ("group:directors", HOUR), ("group:board", HOUR)])
    end = request_of(run).expires_at
    clock.advance(2.5 * HOUR)

    sweep()

    request = request_of(run)
    assert (request.to, request.expires_at) == ("group:board", end)


def test_where_nobody_is_left_to_ask_it_stays_with_whoever_is_asked(clock, staff, changed):
    staff["dan"].groups.clear()
    run = approving()
    clock.advance(4 * HOUR)

    sweep()

    request = request_of(run)
    assert (request.to, request.version, request.escalates_at, changed) == ("group:finance", 1, None, [])
    world.answer(request, "approve", by=staff["fay"])
    assert drive(run).output.startswith("approved")


def test_the_last_step_may_wait_for_ever(clock, staff):
    run = approving([("group:finance", HOUR), "group:directors"])
    assert request_of(run).expires_at is None
    clock.advance(1000 * HOUR)

    assert sweep() == []

    assert request_of(run).to == "group:directors"
    assert asked(run).status == "pending"


def test_the_time_of_the_question_ends_before_its_steps(clock, staff):
    async def story(ctx, inbox):
        return (await ctx.ask_human("Which colour?", timeout=90, to=CHAIN))["action"]

    code(story)
    run = drive(make_run())
    clock.advance(91)

    assert sweep() == [run.id]

    assert drive(run).output == "expired"


@pytest.mark.parametrize("kind", ["uncertain", "budget"])
def test_what_only_a_person_can_decide_goes_on_and_never_expires(clock, staff, settings, kind):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {kind: CHAIN}}
    run = make_run()
    given = {"to": world.site_rules_addressees("budget"), "tool": "budget"} if kind == "budget" else {}
    kinds = HumanRequest.Kind
    request = world.requests_new(
        run,
        "p",
        kinds.APPROVAL if kind == "budget" else kinds.UNCERTAIN,
        present=clock.now,
        expires=False,
        **given,
    )
    request.save(force_insert=True)
    assert request.expires_at is None
    clock.advance(100 * HOUR)

    sweep()

    assert (request_of(run).to, request_of(run).escalates_at) == ("group:directors", None)


def test_one_that_fails_does_not_stop_the_rest(clock, staff, monkeypatch):
    runs = [approving() for _ in range(3)]
    clock.advance(4 * HOUR)
    bad = request_of(runs[0])
    meant = world.means_somebody

    def fails_for_one(to, request):
        if request.pk == bad.pk:
            raise ValueError("bad")
        return meant(to, request)

    world.patch(monkeypatch, "means_somebody", fails_for_one)

    sweep()

    assert [request_of(run).level for run in runs] == [0, 1, 1]


def test_a_bounded_batch_at_a_time(clock, staff):
    runs = [approving() for _ in range(3)]
    clock.advance(4 * HOUR)

    assert world.due_to_escalate(2) == [request_of(run).pk for run in runs[:2]]


def test_one_that_is_decided_closed_or_over_is_left_alone(clock, staff):
    answered, cancelled, over, early = (approving() for _ in range(4))
    rows = [request_of(run) for run in (answered, cancelled, over, early)]
    world.answer(rows[0], "deny", by=staff["fay"])
    cancel(cancelled.id, "enough")
    HumanRequest.objects.filter(pk=rows[2].pk).update(expires_at=clock.now)
    assert not world.escalate(rows[3].pk), "not before its time"
    clock.advance(4 * HOUR)

    assert world.due_to_escalate(10) == [rows[3].pk]
    assert [world.escalate(row.pk) for row in rows] == [False, False, False, True]
    assert [request_of(run).version for run in (answered, cancelled, over, early)] == [2, 2, 1, 2]


def test_an_answer_from_a_page_of_before_is_refused(clock, staff, django_user_model):
    root = django_user_model.objects.create_superuser("root")
    run = approving()
    clock.advance(4 * HOUR)
    sweep()

    with pytest.raises(ConflictError, match="has changed since"):
        world.answer(request_of(run), "approve", by=root, version=1)

    assert request_of(run).status == "pending"


# ------------------------------------------------------------------------------------------- at the same time


@on_postgresql
def test_an_answer_and_an_escalation_at_once(clock, staff):
    """Whichever is first; and if it is the escalation, the answer of those who are asked no more does not count."""
    for _ in range(8):
        run = approving()
        clock.advance(4 * HOUR)
        request = request_of(run)

        racing = [in_background(_answered, request.pk, staff["fay"]), in_background(world.escalate, request.pk)]
        counted, escalated = (future.result(BOUND_S) for future in racing)

        assert counted is not escalated
        assert request_of(run).status == ("answered" if counted else "pending")
        assert (Run.objects.get(pk=run.pk).status == "pending") is counted, "no lost wake-up, and none for nothing"


def _answered(request_id, by):
    try:
        world.answer(request_id, "approve", by=by)
    except (ConflictError, NotFoundError):
        return False
    return True


@on_postgresql
def test_of_two_sweeps_one_escalates(clock, staff):
    run = approving([("group:finance", HOUR), ("group:directors", HOUR), "group:board"])
    clock.advance(HOUR)
    request = request_of(run)
    from django.db import transaction

    with transaction.atomic():
        HumanRequest.objects.select_for_update().get(pk=request.pk)
        racing = [in_background(world.escalate, request.pk) for _ in range(2)]
        until(somebody_waits_for_a_lock)

    assert sorted(future.result(BOUND_S) for future in racing) == [False, True]
    assert request_of(run).level == 1
    assert AuditRecord.objects.filter(event="request", name="escalated").count() == 1


@on_postgresql
def test_a_run_that_is_cancelled_while_its_request_is_escalated(clock, staff):
    for _ in range(5):
        run = approving()
        clock.advance(4 * HOUR)
        request = request_of(run)

        racing = [in_background(world.escalate, request.pk), in_background(cancel, run.id, "enough")]
        for future in racing:
            future.result(BOUND_S)

        assert request_of(run).status == "cancelled"
        versions = AuditRecord.objects.filter(detail__request=str(request.pk)).order_by("id")
        numbers = list(versions.values_list("detail__version", flat=True))
        assert numbers == list(range(1, request_of(run).version + 1))


def test_the_journal_says_nothing_of_it(clock, staff):
    run = approving()
    before = [entry.kind for entry in journal_of(run)]
    clock.advance(4 * HOUR)

    sweep()

    assert [entry.kind for entry in journal_of(run)] == before
