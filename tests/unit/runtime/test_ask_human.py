"""Questions to people: asked once, waited for as rows, answered once, the same on every replay."""

import asyncio
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import tool
from ravi_django.kernel import ConflictError, NotFoundError, RunContext
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import case, refused
from tests.support.runs import asked, code, drive, every_death, in_background, leased, make_run
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)


def asking(*args, **options):
    """An agent that asks one question and tells what came of it."""

    async def story(ctx, inbox):
        told = await ctx.ask_human(*args, **options)
        return f"{told['action']}|{told['text']}|{told['by']}"

    return code(story)


def questions(run):
    return list(HumanRequest.objects.filter(run=run).order_by("id"))


@pytest.mark.sqlite
def test_a_question_suspends_the_run_and_the_answer_is_its_value(ann):
    asking("Which colour?", ["red", "blue"], context="For the door.")
    run = drive(make_run(owner=ann))
    request = asked(run)
    assert (request.kind, request.text, request.choices) == ("question", "Which colour?", ["red", "blue"])
    assert (request.arguments, request.details) == (None, {"context": "For the door.", "free_text": True})

    world.answer(request.id, text=" green\n", by=ann)
    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "answer|green|ann")
    kinds = [(entry.kind, entry.phase) for entry in journal_of(run) if not entry.kind.startswith("run.")]
    assert kinds == [("ask_human", "started"), ("request.opened", "result"), ("ask_human", "result")]
    request.refresh_from_db()
    assert (request.status, request.answered_by, request.version) == ("answered", ann, 2)


def test_a_question_that_is_not_answered_gives_no_text():
    asking("Which colour?")
    for action in ("skip", "cancel"):
        run = drive(make_run())
        world.answer(asked(run).id, action)
        assert drive(run).output == f"{action}||"


def test_a_worker_that_dies_asks_once_and_gives_the_same_answer(clock):
    """Over the question or over the answer, which may come before the next worker does."""
    asking("Which colour?", ["red", "blue"], context="For the door.", timeout=3600)

    def answer():
        for request in HumanRequest.objects.filter(status="pending"):
            world.answer(request.id, text="red")

    def story(drive):
        run = drive(make_run(), meanwhile=answer)
        answer()
        return run if run.is_terminal else drive(run)

    for run, _ in every_death(clock, story):
        (request,) = questions(run)
        assert (run.status, run.output) == (Status.COMPLETED, "answer|red|")
        opened, closed = [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]
        assert (opened["type"], opened["context"]) == ("request", "For the door.")
        assert (closed["type"], closed["id"]) == ("request.closed", str(request.id))


def test_two_questions_at_once_get_their_own_answers_and_each_branch_goes_on_with_its_own(step, ran):
    async def branch(ctx, question):
        told = await ctx.ask_human(question)
        await ctx.tool("step", name=told["text"])

    async def story(ctx, inbox):
        await asyncio.gather(branch(ctx, "First?"), branch(ctx, "Second?"))

    code(story, tools=[step])
    run = drive(make_run())
    first, second = questions(run)
    assert {wait["id"] for wait in run.waiting_on} == {str(first.id), str(second.id)}

    world.answer(second.id, text="two")
    run = drive(run)

    assert (ran, run.status, [wait["id"] for wait in run.waiting_on]) == (["two"], Status.SUSPENDED, [str(first.id)])
    world.answer(first.id, text="one")
    assert (drive(run).status, ran) == (Status.COMPLETED, ["two", "one"])


def test_a_replay_check_finds_nothing_wrong_with_an_open_question():
    asking("Which colour?")
    drive(make_run())
    out = StringIO()
    call_command("ravi_replay_check", stdout=out)
    assert "runs=1 broken=0 drifted=0" in out.getvalue()


# -------------------------------------------------------------------------------------------------- answering


def test_without_free_text_only_a_choice_is_an_answer():
    asking("Which colour?", ["red", "blue"], free_text=False)
    run = drive(make_run())
    request = asked(run)

    with refused("text", "one of 'red', 'blue'"):
        world.answer(request.id, text="green")

    world.answer(request.id, text="blue")
    assert drive(run).output == "answer|blue|"


def test_a_bad_answer_names_its_field_and_changes_nothing():
    run = make_run()
    question, uncertain = asked_by(run), asked_by(run, Kind.UNCERTAIN, "staff", tool="pay")
    for request, given, field, words in (
        (question, {"action": "answer", "text": " "}, "text", "answer is empty"),
        (question, {"action": "skip", "text": "x"}, "text", "allowed with: answer"),
        (question, {"action": "approve", "text": "x"}, "action", "answer, skip, cancel"),
        (question, {"action": "answer", "text": "x" * 10_001}, "text", "10000 characters"),
        (question, {"action": "resolve", "outcome": "fail"}, "action", "actions: answer, skip, canc"),
        (uncertain, {"action": "resolve", "outcome": "maybe"}, "outcome", "happened, run_again, fail"),
        (uncertain, {"action": "resolve", "outcome": "fail", "result": "x"}, "result", "with the outcome happened"),
        (uncertain, {"action": "resolve", "outcome": "happened", "result": b"\xff"}, "result", "not JSON"),
        (uncertain, {"action": "cancel"}, "action", "resolve"),
        (approval_of(run), {"action": "edit", "arguments": {"amount": "much"}}, "arguments", "not valid for pay"),
        (
            approval_of(run),
            {"action": "edit", "arguments": {}, "sticky": True},
            "sticky",
            "allowed with: approve, deny",
        ),
    ):
        with case(request.kind, given), refused(field, words):
            world.answer(request.id, **given)

    assert set(HumanRequest.objects.values_list("status", "answer")) == {("pending", None)}
    for unknown in ("nonsense", "0192f0c0-0000-7000-8000-000000000000"):
        with pytest.raises(NotFoundError):
            world.answer(unknown, text="red")


def test_an_ended_run_takes_no_answer():
    asking("Which colour?")
    run = drive(make_run())
    request = asked(run)
    Run.objects.filter(id=run.id).update(status=Status.FAILED)  # whatever has let the request stay open
    with pytest.raises(ConflictError, match="has already ended"):
        world.answer(request.id, text="red")
    request.refresh_from_db()
    assert request.answer is None


# ----------------------------------------------------------------------------------------------------- expiry


def test_a_question_expires_and_a_late_answer_is_refused(clock):
    asking("May I?", timeout=timedelta(minutes=1))
    run = drive(make_run())
    (request,) = questions(run)
    assert request.expires_at == clock.now + timedelta(seconds=60) == run.wake_at
    assert run.waiting_on == [{"kind": "request", "id": str(request.id), "until": run.waiting_on[0]["until"]}]
    clock.advance(61)
    with pytest.raises(ConflictError, match="expired at"):
        world.answer(request.id, text="yes")

    run = drive(run)

    request.refresh_from_db()
    assert (run.output, request.status, request.answer) == ("expired||", "expired", None)
    with pytest.raises(ConflictError, match="already expired"):
        world.answer(request.id, text="yes")


def test_a_worker_that_dies_over_the_expiry_expires_it_once(clock):
    asking("May I?", timeout=60)

    def story(drive_to_death):
        run = drive(make_run())
        clock.advance(61)
        return drive_to_death(run)

    for run, _ in every_death(clock, story):
        assert (run.output, questions(run)[0].version) == ("expired||", 2)


def test_an_answer_between_the_look_and_the_expiry_counts(clock):
    """The worker has read that there is no answer; by the time it closes the question there is one."""
    asking("May I?", timeout=60)
    run = drive(make_run())
    clock.advance(59)

    def late(engine):
        call = engine.database.call

        async def answering(function, *args, **kwargs):
            found = await call(function, *args, **kwargs)
            if function is world.load_with_facts:
                await asyncio.to_thread(in_background(_answer).result, 10)
                clock.advance(2)
            return found

        engine.database.call = answering

    Run.objects.filter(id=run.id).update(wake_at=clock.now)
    assert drive(run, setup=late).output == "answer|yes|"


def _answer():
    world.answer(HumanRequest.objects.get(status="pending").id, text="yes")


def test_the_time_is_the_databases(clock):
    """A worker whose own clock is ahead does not close the question early."""
    asking("May I?", timeout=60)
    run = drive(make_run())
    world.touch([run.id])
    lease = leased(run)
    with pytest.raises(world.NotExpired):
        world.expire_request(lease, [], request_id=questions(run)[0].id)
    assert questions(run)[0].status == "pending"


# ------------------------------------------------------------------------------------------------- what is asked


BAD_QUESTIONS = [
    ({"question": " "}, "question"),
    ({"question": "x" * 10_001}, "question"),
    ({"choices": ["red"]}, "choices"),
    ({"choices": "red"}, "choices"),
    ({"choices": ["red", "red"]}, "choices"),
    ({"choices": ["red", ""]}, "choices"),
    ({"choices": ["c" + str(number) for number in range(21)]}, "choices"),
    ({"free_text": False}, "choices"),
    ({"context": 7}, "context"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "soon"}, "timeout"),
    ({"signal": "paid"}, "signal"),
]


def test_a_bad_question_names_its_field_and_asks_nobody():
    async def story(ctx, inbox):
        for options, field in BAD_QUESTIONS:
            with case(options), refused(field):
                await ctx.ask_human(**{"question": "Which colour?", **options})

    code(story)
    run = drive(make_run())

    assert (run.status, run.error, questions(run)) == (Status.COMPLETED, None, [])


def test_text_that_no_row_can_hold_is_asked_all_the_same():
    asking("Which\0 colour\ud800?")
    assert asked(drive(make_run())).text == "Which\ufffd colour??"


def test_an_at_most_once_tool_asks_nobody():
    @tool(effect="at_most_once")
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        await ctx.ask_human("Really?")
        return "paid"

    code(calling("pay"), tools=[pay])
    run = drive(make_run())
    assert [request.kind for request in questions(run)] == ["uncertain"]


def test_a_fork_leaves_an_open_question_behind_and_asks_its_own():
    asking("Which colour?")
    run = drive(make_run())
    fork = drive(world.store_fork(run.id, run.next_seq - 1))
    assert asked(fork).id != asked(run).id
    world.answer(asked(fork).id, text="red")
    assert (drive(fork).output, Run.objects.get(id=run.id).status) == ("answer|red|", Status.SUSPENDED)
