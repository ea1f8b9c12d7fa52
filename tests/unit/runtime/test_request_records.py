"""What is kept of a request for ever, and who is told: written with what it tells of, never without, never changed."""

import asyncio
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import register, tool
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ConflictError, IllegalTransitionError
from ravi_django.models import AuditRecord, HumanRequest, Run, Session, Status
from ravi_django.signals import request_answered, request_changed, request_closed, request_opened
from tests.support import world
from tests.support.approvals import user
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, in_background, make_run, on_postgresql, take_over
from tests.support.tool_calls import calling
from tests.support.world import Entry, cancel, retry

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
SIGNALS = {"opened": request_opened, "answered": request_answered, "closed": request_closed, "changed": request_changed}


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
    assert (opened.name, opened.detail["text"]) == ("opened", "Which colour?")
    assert (opened.run_id, opened.session_id) == (run.id, run.session_id)
    assert (opened.agent, opened.owner, opened.detail["to"]) == ("test/code", ann, "owner")
    kept = {"action": "answer", "text": "red", "reason": "it is hers", "by": "ann"}
    assert (answered.name, answered.detail["answer"], answered.detail["by"]) == ("answered", kept, "ann")
    entry = LogEntry.objects.get()
    words = "Answered: answer: red: it is hers"
    assert (entry.user, entry.object_id, entry.change_message) == (ann, str(request.pk), words)
    assert told == [("opened", "pending"), ("answered", "answered")]


def test_requests_that_their_run_closes_are_recorded_as_cancelled_in_as_few_statements(told):
    costs = []
    for number in (2, 12):
        told.clear()
        run = asking(*map(str, range(number)))
        with CaptureQueriesContext(connection) as queries:
            cancel(run.id, "enough")
        looks = sum('"ravi_humanrequest"' in query["sql"] or "audit" in query["sql"] for query in queries)
        costs.append(looks - number)  # `told` looks at each
        closed = HumanRequest.objects.filter(run=run, status="cancelled")
        assert closed.count() == number
        assert told == [("opened", "pending")] * number + [("closed", "cancelled")] * number

    assert {record.detail["request"] for record in records("cancelled")} > {str(request.pk) for request in closed}
    assert costs[0] == costs[1]
    AuditRecord.objects.all().delete()
    run = make_run()
    with CaptureQueriesContext(connection) as queries:
        world.request_cancel(run.id, "enough")
    about = [query["sql"] for query in queries if "ravi_humanrequest" in query["sql"]]
    assert len(about) == 2, "of one that asks nobody: what ends with it, for whoever watches; and what is to be closed"
    assert not AuditRecord.objects.exists()


def failed(run):
    """A worker has failed it, whatever it waited for."""
    Run.objects.filter(pk=run.pk).update(status=Status.PENDING, waiting_on=None, wake_at=None)
    rows, error = [Entry("run.failed", "@failed.1")], {"type": "E", "message": "x"}
    world.finish(world.claim(run.pk, "w"), Status.FAILED, rows, error=error, entangled=True)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    return run


@pytest.fixture
def chain():
    user("of-finance", "finance"), user("of-directors", "directors")
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


def test_the_records_outlive_pruning_the_user_and_the_run(clock, ann, settings):
    settings.RAVI = {**settings.RAVI, "ON_USER_DELETE": "keep"}
    run = asking("Which?", owner=ann)
    world.answer(request_of(run), text="red", by=ann)
    assert drive(run).status == Status.COMPLETED
    clock.advance(400 * world.DAY_S)
    assert world.prune(dict.fromkeys(world.PRUNE_KINDS, world.DAY_S))["journal"] > 0
    ann.delete()

    request = request_of(run)
    assert (request.answered_by, request.answer["by"]) == (None, "ann")
    with pytest.raises(ConflictError, match="already answered by ann"):
        world.answer(request, "skip")

    Session.objects.filter(pk=run.session_id).delete()
    assert not HumanRequest.objects.exists()
    opened, answered = records()
    assert (opened.detail["text"], answered.detail["by"], answered.owner) == ("Which?", "ann", None)
    assert answered.run_id == run.id


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


def attempt(act, *args, **kwargs):
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
