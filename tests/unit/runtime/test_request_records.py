"""What is kept of a request for ever, and who is told: written with what it tells of, never without, never changed."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import Addressees, AgentId, ConflictError
from ravi_django.models import AuditRecord, HumanRequest, Run, Session, Status
from ravi_django.signals import request_answered, request_changed, request_closed, request_opened
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, in_background, make_run, on_postgresql, take_over
from tests.support.tool_calls import calling
from tests.support.world import cancel, retry

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
SIGNALS = {"opened": request_opened, "answered": request_answered, "closed": request_closed, "changed": request_changed}


@pytest.fixture
def ann(django_user_model):
    return django_user_model.objects.create_user("ann", is_staff=True)


@pytest.fixture
def told():
    """(signal, status of the row by then)."""
    seen, receivers = [], {}
    for name, signal in SIGNALS.items():

        def receiver(request, name=name, **more):
            seen.append((name, HumanRequest.objects.get(pk=request.pk).status))

        receivers[name] = receiver
        signal.connect(receiver)
    yield seen
    for name, signal in SIGNALS.items():
        signal.disconnect(receivers[name])


def asking(*questions, owner=None, fails=False, **options):
    async def story(ctx, inbox):
        import asyncio

        answers = [asyncio.ensure_future(ctx.ask_human(question, **options)) for question in questions]
        for answer in answers:  # the end of one, a suspension too, may go unread
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = [(await answer)["action"] for answer in answers]
        if fails:
            raise ValueError("no")
        return ", ".join(found)

    code(story)
    return drive(make_run(owner=owner))


def request_of(run):
    return HumanRequest.objects.get(run=run)


def records(name=None):
    found = AuditRecord.objects.filter(event="request").order_by("id")
    return list(found.filter(name=name) if name else found)


def names():
    return [record.name for record in records()]


def test_what_was_asked_and_what_was_answered_by_whom(ann, told):
    run = asking("Which colour?", owner=ann)
    request = request_of(run)

    world.answer(request, text="red", by=ann, reason="it is hers")

    opened, answered = records()
    assert (opened.name, opened.detail["text"], opened.run_id, opened.session_id) == (
        "opened",
        "Which colour?",
        run.id,
        run.session_id,
    )
    assert (opened.agent, opened.owner, opened.detail["to"]) == ("test/code", ann, "owner")
    kept = {"action": "answer", "text": "red", "reason": "it is hers", "by": "ann"}
    assert (answered.name, answered.detail["answer"], answered.detail["by"]) == ("answered", kept, "ann")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.change_message) == (
        ann,
        str(request.pk),
        "Answered: answer: red: it is hers",
    )
    assert told == [("opened", "pending"), ("answered", "answered")]


def test_a_crash_in_between_leaves_one_record_of_each(clock, told):
    async def story(ctx, inbox):
        return (await ctx.ask_human("Which?"))["action"]

    code(story)
    run = take_over(clock, drive(make_run(), dies=1, written=True))
    world.answer(request_of(run), "skip")
    run = drive(run, dies=1, written=True)
    run = take_over(clock, run)

    assert (run.output, names()) == ("skip", ["opened", "answered"])
    assert [name for name, _ in told] == ["opened", "answered"]


def test_a_request_that_its_run_closes_is_recorded_as_cancelled(told):
    run = asking("Which?", "Where?")
    cancel(run.id, "enough")

    assert names() == ["opened", "opened", "cancelled", "cancelled"]
    assert {record.detail["request"] for record in records("cancelled")} == {
        str(request.pk) for request in HumanRequest.objects.filter(run=run)
    }
    assert told == [("opened", "pending")] * 2 + [("closed", "cancelled")] * 2


def test_many_are_closed_in_as_many_statements_as_two():
    costs = []
    for number in (2, 12):
        run = asking(*map(str, range(number)))
        with CaptureQueriesContext(connection) as queries:
            cancel(run.id, "enough")
        costs.append(
            len([query for query in queries if '"ravi_humanrequest"' in query["sql"] or "audit" in query["sql"]])
        )
        assert HumanRequest.objects.filter(run=run, status="cancelled").count() == number

    assert costs[0] == costs[1]


def test_a_run_that_asks_nobody_pays_one_look():
    async def story(ctx, inbox):
        return "done"

    code(story)
    run = make_run()
    with CaptureQueriesContext(connection) as queries:
        world.request_cancel(run.id, "enough")

    about = [query["sql"] for query in queries if "ravi_humanrequest" in query["sql"]]
    assert len(about) == 2, "what ends with it, for whoever watches; and what is to be closed"
    assert not AuditRecord.objects.exists()


# ----------------------------------------------------------------------------------------------------- a retry


def failed(run):
    """A worker has failed it, whatever it waited for."""
    Run.objects.filter(pk=run.pk).update(status=Status.PENDING, waiting_on=None, wake_at=None)
    lease = world.claim(run.pk, "w")
    from tests.support.world import Entry

    world.finish(
        lease, Status.FAILED, [Entry("run.failed", "@failed.1")], error={"type": "E", "message": "x"}, entangled=True
    )
    run.refresh_from_db()
    assert run.status == Status.FAILED
    return run


@pytest.fixture
def chain(django_user_model):
    from django.contrib.auth.models import Group

    for name in ("finance", "directors"):
        django_user_model.objects.create_user(f"of-{name}").groups.add(Group.objects.create(name=name))
    return [("group:finance", HOUR), ("group:directors", HOUR)]


def test_a_retry_asks_again_from_the_first_step_with_all_its_time(clock, chain, told):
    run = asking("Which?", to=chain)
    before = request_of(run)
    clock.advance(HOUR)
    world.escalate(before.pk)
    HumanRequest.objects.update(notified=1)
    clock.advance(HOUR / 2)
    run = failed(run)
    assert request_of(run).status == "cancelled"

    retry(run.id)

    request = request_of(run)
    assert (request.status, request.to, request.level, request.notified) == ("pending", "group:finance", 0, -1)
    assert (request.escalates_at - clock.now).total_seconds() == HOUR
    assert (request.expires_at - clock.now).total_seconds() == 2 * HOUR
    assert names() == ["opened", "escalated", "cancelled", "opened"]
    assert [record.detail["version"] for record in records()] == [1, 2, 3, 4] and request.version == 4
    assert [name for name, _ in told] == ["opened", "changed", "closed", "opened"]

    drive(run)
    clock.advance(HOUR)
    world.escalate(request.pk)
    assert request_of(run).to == "group:directors"
    clock.advance(HOUR)
    assert drive(run).output == "expired"


def test_a_retry_passes_over_a_step_that_means_nobody_by_then(clock, chain, django_user_model):
    run = failed(asking("Which?", to=chain))
    django_user_model.objects.filter(username="of-finance").update(is_active=False)

    retry(run.id)

    assert request_of(run).to == "group:directors"


def test_an_uncertain_effect_that_was_decided_to_fail_is_asked_as_a_new_request(clock, ann, told):
    @tool(effect="at_most_once", timeout=5)
    def send(to: str) -> str:
        """Send."""
        return "sent"

    code(calling("send", to="ACME"), tools=[send])
    run = take_over(clock, drive(make_run(), dies=2))
    clock.advance(conf.LEASE_S + 10)
    first = request_of(run)
    world.human_resolve(first, "fail", by=ann)
    drive(run)

    retry(run.id)

    old, new = HumanRequest.objects.filter(run=run).order_by("id")
    assert (old.pk, old.status, old.answer["outcome"], old.answered_by) == (first.pk, "answered", "fail", ann)
    assert (new.status, new.answer, new.answered_by, new.version, new.to) == ("pending", None, None, 1, "staff")
    assert names() == ["opened", "answered", "opened"]
    assert records()[-1].detail["request"] == str(new.pk)
    assert told[-1] == ("opened", "pending")


# ----------------------------------------------------------------------------------------------- for ever


def test_the_records_outlive_the_run_and_the_user(ann, settings):
    settings.RAVI = {**settings.RAVI, "ON_USER_DELETE": "keep"}
    run = asking("Which?", owner=ann)
    world.answer(request_of(run), text="red", by=ann)

    Session.objects.filter(pk=run.session_id).delete()
    ann.delete()

    assert not HumanRequest.objects.exists()
    opened, answered = records()
    assert (opened.detail["text"], answered.detail["by"], answered.owner) == ("Which?", "ann", None)
    assert answered.run_id == run.id


def test_pruning_leaves_the_records(clock, ann):
    run = asking("Which?", owner=ann)
    world.answer(request_of(run), text="red", by=ann)
    assert drive(run).status == Status.COMPLETED
    before = names()
    clock.advance(400 * world.DAY_S)

    assert world.prune(dict.fromkeys(world.PRUNE_KINDS, world.DAY_S))["journal"] > 0

    assert names() == before == ["opened", "answered"]


def test_the_answer_names_who_gave_it_when_the_user_is_gone(ann):
    run = asking("Which?", owner=ann)
    world.answer(request_of(run), text="red", by=ann)
    ann.delete()

    request = request_of(run)
    assert (request.answered_by, request.answer["by"]) == (None, "ann")
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request, "skip")


ACTS = {
    "answer": lambda request: world.answer(request.pk, text="blue"),
    "skip": lambda request: world.answer(request.pk, "skip"),
    "cancel": lambda request: world.human_cancel(request.pk),
    "reassign": lambda request: world.reassign(request.pk, "staff"),
    "store.answer": lambda request: world.answer_request(request.pk, {"action": "skip"}, by=None),
    "store.reassign": lambda request: world.reassign_request(
        request.pk, "staff", by=None, name="", reason="", version=request.version
    ),
    "escalate": lambda request: world.escalate(request.pk),
    "end": lambda request: cancel(request.run_id, "enough"),
    "retry": lambda request: retry(failed(request.run).id),
    "expire": lambda request: drive(request.run),
}
KEPT = (
    "status",
    "answer",
    "answered_by_id",
    "answered_at",
    "arguments",
    "arguments_hash",
    "text",
    "to",
    "steps",
    "version",
)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("status", ["answered", "expired"])
def test_nothing_changes_a_request_that_is_decided(clock, ann, act, status):
    run = asking("Which?", timeout=60, to=[("user:ann", 30), "staff"])
    request = request_of(run)
    if status == "answered":
        world.answer(request, text="red", by=ann)
    clock.advance(61)
    if status == "expired":
        run = drive(run)
    before = HumanRequest.objects.filter(pk=request.pk).values(*KEPT).get()
    assert before["status"] == status

    try:
        ACTS[act](HumanRequest.objects.select_related("run").get(pk=request.pk))
    except Exception as error:
        assert type(error).__name__ in ("ConflictError", "IllegalTransitionError", "AssertionError"), error

    assert HumanRequest.objects.filter(pk=request.pk).values(*KEPT).get() == before


# ---------------------------------------------------------------------------------------------- who is told


def test_nobody_is_told_of_what_is_rolled_back(told):
    run = asking("Which?")
    told.clear()
    with transaction.atomic():
        world.answer(request_of(run), "skip")
        assert told == []
        transaction.set_rollback(True)

    assert (told, names(), LogEntry.objects.count()) == ([], ["opened"], 0)


def test_a_receiver_that_raises_harms_nothing(caplog):
    heard = []

    def bad(request, **more):
        raise ValueError("the mail server is away")

    def good(request, **more):
        heard.append(request.status)

    for signal in SIGNALS.values():
        signal.connect(bad)
        signal.connect(good)
    try:
        run = asking("Which?")
        world.answer(request_of(run), "skip")
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(bad)
            signal.disconnect(good)

    assert heard == ["pending", "answered"]
    assert drive(run).output == "skip"


def test_a_second_answer_is_not_recorded(ann, told):
    run = asking("Which?")
    world.answer(request_of(run), "skip")
    told.clear()

    with pytest.raises(ConflictError):
        world.answer(request_of(run), "cancel", by=ann)
    with pytest.raises(ConflictError):
        world.answer_request(request_of(run).pk, {"action": "cancel"}, by=ann)

    assert (names(), told, LogEntry.objects.count()) == (["opened", "answered"], [], 0)


# --------------------------------------------------------------------------------------------- at the same time


def attempt(act, *args, **kwargs):
    from ravi_django.kernel import IllegalTransitionError

    try:
        act(*args, **kwargs)
    except (ConflictError, IllegalTransitionError):
        return False
    return True


@on_postgresql
def test_answers_an_expiry_and_the_end_of_the_run_at_once(clock):
    """One of them is what became of the request: one record beside its opening, and none lost."""
    for number in range(6):
        run = asking("Which?", "Where?", timeout=60)
        first, second = HumanRequest.objects.filter(run=run).order_by("id")

        racing = [
            in_background(attempt, world.answer, first.pk, "skip"),
            in_background(attempt, world.answer, first.pk, "cancel"),
            in_background(attempt, world.answer, second.pk, "skip"),
            in_background(attempt, cancel, run.id, "enough"),
        ]
        won = [future.result(BOUND_S) for future in racing]

        assert won[0] + won[1] <= 1 and won[3], number
        for request in (first, second):
            became = AuditRecord.objects.filter(detail__request=str(request.pk)).exclude(name="opened")
            request.refresh_from_db()
            assert [record.detail["version"] for record in became] == [2] and request.version == 2
            assert (request.status == "answered") is (request.answer is not None)


@on_postgresql
def test_an_answer_and_an_expiry_at_once(clock):
    for _ in range(5):
        run = asking("Which?", timeout=60)
        request = request_of(run)
        clock.advance(59.9)
        answering = in_background(attempt, world.answer, request.pk, "skip")
        clock.advance(1)
        Run.objects.filter(pk=run.pk, status="suspended").update(status="pending")

        run = drive(run)

        counted = answering.result(BOUND_S)
        if run.status == Status.PENDING:
            run = drive(run)
        assert run.output == ("skip" if counted else "expired")
        assert request_of(run).version == 2


@on_postgresql
def test_an_answer_and_a_retry_at_once():
    """The request is closed until the retry opens it: an answer is refused before, and counts after."""
    for _ in range(5):
        run = failed(asking("Which?"))
        request = request_of(run)

        retrying = in_background(attempt, partial(retry, send=lambda run_id: None), run.id)
        answering = in_background(attempt, world.answer, request.pk, "skip")
        assert retrying.result(BOUND_S)

        if not answering.result(BOUND_S):
            assert request_of(run).status == "pending"
            world.answer(request.pk, "skip")
        run.refresh_from_db()
        assert run.status == "pending"
        assert drive(run).output == "skip"


@on_postgresql
def test_requests_of_a_tree_are_closed_with_it_while_people_answer(django_user_model):
    async def leaf(ctx, inbox):
        return (await ctx.ask_human("Which?"))["action"]

    async def boss(ctx, inbox):
        await ctx.ask(AgentId("test", "leaf"), "paint")
        await ctx.ask_human("And?")

    from ravi_django import register
    from tests.support.runs import CodeAgent

    register(CodeAgent(leaf, key="leaf"))
    code(boss)
    for _ in range(4):
        root = drive(make_run())
        child = drive(Run.objects.get(parent=root))
        request = request_of(child)

        racing = [
            in_background(attempt, world.answer, request.pk, "skip"),
            in_background(attempt, cancel, root.id, "enough"),
        ]
        answered = racing[0].result(BOUND_S)
        assert racing[1].result(BOUND_S)

        child.refresh_from_db()
        assert (child.status, request_of(child).status) == ("cancelled", "answered" if answered else "cancelled")


def test_addressees_of_the_sites_settings_are_what_is_recorded(settings, ann):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"question": {"to": "user:ann"}}}

    asking("Which?")

    assert records()[0].detail["to"] == "user:ann" == Addressees.of("user:ann").steps[0].to
