"""Questions to people: asked once, waited for as rows, answered once, the same on every replay."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, InvalidInputError, NotFoundError, RunContext
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.runs import asked, code, drive, in_background, leased, make_run, take_over
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(django_user_model):
    return django_user_model.objects.create_user("ann")


def asking(*args, **options):
    """An agent that asks one question and tells what came of it."""

    async def story(ctx, inbox):
        told = await ctx.ask_human(*args, **options)
        return f"{told['action']}|{told['text']}|{told['by']}"

    return code(story)


def aside(coro):
    """A task of its own whose end, a suspension too, may go unread."""
    task = asyncio.ensure_future(coro)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def questions(run):
    return list(HumanRequest.objects.filter(run=run).order_by("id"))


def kinds(run):
    return [(entry.kind, entry.phase) for entry in journal_of(run) if not entry.kind.startswith("run.")]


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
    assert kinds(run) == [("ask_human", "started"), ("request.opened", "result"), ("ask_human", "result")]
    request.refresh_from_db()
    assert (request.status, request.answered_by, request.version) == ("answered", ann, 2)


@pytest.mark.parametrize("action", ["skip", "cancel"])
def test_a_question_that_is_not_answered_gives_no_text(action):
    asking("Which colour?")
    run = drive(make_run())

    world.answer(asked(run).id, action)

    assert drive(run).output == f"{action}||"


@pytest.mark.parametrize(("dies", "written"), [(1, False), (1, True)])
def test_a_worker_that_dies_over_the_question_asks_it_once(clock, dies, written):
    asking("Which colour?")
    run = drive(make_run(), dies=dies, written=written)
    before = [request.id for request in questions(run)]

    run = take_over(clock, run)

    assert len(before) == written
    assert [request.id for request in questions(run)][: len(before)] == before
    assert len(questions(run)) == 1
    world.answer(asked(run).id, text="red")
    assert drive(run).output == "answer|red|"


@pytest.mark.parametrize(("dies", "written"), [(1, False), (1, True), ("end", False)])
def test_a_worker_that_dies_over_the_answer_gives_the_same_one(clock, dies, written):
    asking("Which colour?")
    run = drive(make_run())
    world.answer(asked(run).id, text="red")
    drive(run, dies=dies, written=written)

    run = take_over(clock, run)

    assert (run.status, run.output, len(questions(run))) == (Status.COMPLETED, "answer|red|", 1)
    assert kinds(run).count(("ask_human", "result")) == 1


def test_an_answer_while_the_worker_is_dead_is_found_by_the_next(clock):
    asking("Which colour?")
    run = drive(make_run(), dies=1, written=True)
    assert run.status == Status.RUNNING

    world.answer(questions(run)[0].id, text="red")

    assert take_over(clock, run).output == "answer|red|"


def test_an_answer_while_the_run_is_being_suspended_is_not_lost():
    async def story(ctx, inbox):
        wait = ctx.effects.wait

        async def answered_first(*args):  # the question is open, the run not suspended yet
            if not answered:
                answered.append(await asyncio.to_thread(in_background(_answer).result, 10))
            return await wait(*args)

        ctx.effects.wait = answered_first
        return (await ctx.ask_human("Which colour?"))["text"]

    answered = []
    code(story)

    run = drive(make_run())

    assert run.status == Status.PENDING
    assert drive(run).output == "yes"


def test_two_questions_at_once_get_their_own_answers_in_any_order():
    async def story(ctx, inbox):
        told = await asyncio.gather(ctx.ask_human("First?"), ctx.ask_human("Second?"))
        return " ".join(answer["text"] for answer in told)

    code(story)
    run = drive(make_run())
    first, second = questions(run)
    assert (first.text, second.text) == ("First?", "Second?")
    assert {wait["id"] for wait in run.waiting_on} == {str(first.id), str(second.id)}

    world.answer(second.id, text="two")
    run = drive(run)
    assert (run.status, [wait["id"] for wait in run.waiting_on]) == (Status.SUSPENDED, [str(first.id)])
    world.answer(first.id, text="one")

    assert (drive(run).output, len(questions(run))) == ("one two", 2)


def test_a_branch_goes_on_with_its_answer_while_the_other_waits(step, ran):
    async def branch(ctx, question):
        told = await ctx.ask_human(question)
        await ctx.tool("step", name=told["text"])

    async def story(ctx, inbox):
        await asyncio.gather(branch(ctx, "First?"), branch(ctx, "Second?"))

    code(story, tools=[step])
    run = drive(make_run())
    first, second = questions(run)

    world.answer(second.id, text="two")
    run = drive(run)

    assert (ran, run.status) == (["two"], Status.SUSPENDED)
    world.answer(first.id, text="one")
    assert (drive(run).status, ran) == (Status.COMPLETED, ["two", "one"])


def test_whoever_watches_sees_the_question_come_and_go_once(clock):
    asking("Which colour?", ["red", "blue"], context="For the door.", timeout=3600)
    run = take_over(clock, drive(make_run(), dies=1, written=True))
    (request,) = questions(run)
    world.answer(request.id, text="red")
    run = take_over(clock, drive(run, dies="end"))

    frames = [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]
    assert [frame["type"] for frame in frames] == ["request", "request.closed"]
    opened, closed = frames
    assert (opened["id"], opened["kind"], opened["text"]) == (str(request.id), "question", "Which colour?")
    assert (opened["choices"], opened["context"]) == (["red", "blue"], "For the door.")
    assert datetime.fromisoformat(opened["expires_at"]) == request.expires_at
    assert closed["id"] == str(request.id)


def test_a_replay_check_finds_nothing_wrong_with_an_open_question():
    asking("Which colour?")
    drive(make_run())
    out = StringIO()

    call_command("ravi_replay_check", stdout=out)

    assert "runs=1 broken=0 drifted=0" in out.getvalue()


# -------------------------------------------------------------------------------------------------- answering


def test_the_first_answer_wins(ann):
    asking("Which colour?")
    run = drive(make_run(owner=ann))
    request = asked(run)

    world.answer(request.id, text="red", by=ann)
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request.id, text="blue")

    assert drive(run).output == "answer|red|ann"
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request.id, "skip")


def test_an_answer_to_an_older_version_is_refused():
    asking("Which colour?")
    run = drive(make_run())

    with pytest.raises(ConflictError, match="has changed since"):
        world.answer(asked(run).id, text="red", version=0)


def test_without_free_text_only_a_choice_is_an_answer():
    asking("Which colour?", ["red", "blue"], free_text=False)
    run = drive(make_run())

    with pytest.raises(InvalidInputError, match="one of 'red', 'blue'") as found:
        world.answer(asked(run).id, text="green")

    assert found.value.field == "text"
    world.answer(asked(run).id, text="blue")
    assert drive(run).output == "answer|blue|"


def test_a_question_of_before_there_were_details_keeps_its_rule():
    asking("Which colour?", ["red", "blue"], free_text=False)
    run = drive(make_run())
    request = asked(run)
    request.arguments, request.details = request.details, None
    request.save()

    with pytest.raises(InvalidInputError, match="one of 'red', 'blue'"):
        world.answer(request.id, text="green")


@pytest.mark.parametrize(
    ("action", "text", "field"),
    [("answer", " ", "text"), ("skip", "x", "text"), ("approve", "x", "action"), ("answer", "x" * 10_001, "text")],
)
def test_a_bad_answer_names_its_field_and_changes_nothing(action, text, field):
    asking("Which colour?")
    run = drive(make_run())

    with pytest.raises(InvalidInputError) as found:
        world.answer(asked(run).id, action, text=text)

    assert found.value.field == field
    assert asked(run).answer is None


def test_a_question_is_not_resolved_like_an_uncertain_effect():
    asking("Which colour?")
    run = drive(make_run())

    with pytest.raises(InvalidInputError, match="of kind question is one of answer, skip, cancel"):
        world.human_resolve(asked(run).id, "fail")

    assert asked(run).answer is None


@pytest.mark.parametrize("request_id", ["nonsense", "0192f0c0-0000-7000-8000-000000000000"])
def test_there_is_no_such_request(request_id):
    with pytest.raises(NotFoundError):
        world.answer(request_id, text="red")


def test_a_cancelled_run_closes_its_question():
    asking("Which colour?")
    run = drive(make_run())
    request = asked(run)

    cancel(run.id, "no")

    request.refresh_from_db()
    assert request.status == "cancelled"
    with pytest.raises(ConflictError, match="cancelled already"):
        world.answer(request.id, text="red")


def test_an_ended_run_takes_no_answer():
    asking("Which colour?")
    run = drive(make_run())
    request = asked(run)
    Run.objects.filter(id=run.id).update(status=Status.FAILED)  # whatever has let the request stay open

    with pytest.raises(ConflictError, match="is failed already"):
        world.answer(request.id, text="red")

    request.refresh_from_db()
    assert request.answer is None


def test_a_run_that_ends_without_the_answer_closes_its_question():
    async def story(ctx, inbox):
        asking = aside(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("enough")
        asking.cancel()
        return "done"

    code(story)
    run = drive(make_run())
    (request,) = questions(run)
    world.send_signal(run.id, "enough", None)

    assert drive(run).output == "done"

    request.refresh_from_db()
    assert request.status == "cancelled"


def test_a_run_that_begins_anew_closes_its_question():
    async def story(ctx, inbox):
        if inbox[0].payload.kind == "data":
            return "anew"
        asking = aside(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("enough")
        asking.cancel()
        await ctx.continue_as_new({"round": 2})

    code(story)
    run = drive(make_run())
    (request,) = questions(run)
    world.send_signal(run.id, "enough", None)

    run = drive(run)

    request.refresh_from_db()
    assert (run.status, run.generation, request.status) == (Status.PENDING, 1, "cancelled")
    assert drive(run).output == "anew"


def test_a_request_that_somebody_has_closed_is_waited_for_no_more():
    asking("Which colour?")
    run = drive(make_run())
    HumanRequest.objects.filter(run=run).update(status="cancelled")
    world.touch([run.id])

    assert drive(run).output == "cancel||"


# ----------------------------------------------------------------------------------------------------- expiry


@pytest.mark.parametrize("timeout", [60, timedelta(minutes=1)])
def test_a_question_expires(clock, timeout):
    asking("May I?", timeout=timeout)
    run = drive(make_run())
    (request,) = questions(run)
    assert request.expires_at == clock.now + timedelta(seconds=60)
    assert run.waiting_on == [{"kind": "request", "id": str(request.id), "until": run.waiting_on[0]["until"]}]
    assert run.wake_at == request.expires_at
    clock.advance(61)

    run = drive(run)

    request.refresh_from_db()
    assert (run.output, request.status, request.answer) == ("expired||", "expired", None)
    with pytest.raises(ConflictError, match="expired already"):
        world.answer(request.id, text="yes")


@pytest.mark.parametrize(("dies", "written"), [(1, False), (1, True)])
def test_a_worker_that_dies_over_the_expiry_expires_it_once(clock, dies, written):
    asking("May I?", timeout=60)
    run = drive(make_run())
    clock.advance(61)
    drive(run, dies=dies, written=written)

    run = take_over(clock, run)

    assert (run.output, questions(run)[0].version) == ("expired||", 2)


def test_an_answer_after_the_time_is_refused_though_nobody_has_closed_the_question(clock):
    asking("May I?", timeout=60)
    run = drive(make_run())
    (request,) = questions(run)
    clock.advance(61)

    with pytest.raises(ConflictError, match="expired at"):
        world.answer(request.id, text="yes")

    assert drive(run).output == "expired||"


def test_an_answer_that_came_in_time_counts_however_late_the_worker_is(clock):
    asking("May I?", timeout=60)
    run = drive(make_run())
    (request,) = questions(run)
    clock.advance(59)
    world.answer(request.id, text="yes")
    clock.advance(600)

    assert drive(run).output == "answer|yes|"


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
    (request,) = questions(run)
    world.touch([run.id])
    lease = leased(run)

    with pytest.raises(world.NotDue):
        world.expire_request(lease, [], request_id=request.id)

    request.refresh_from_db()
    assert request.status == "pending"


# ------------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("options", "field"),
    [
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
    ],
)
def test_a_bad_question_names_its_field_and_asks_nobody(options, field):
    async def story(ctx, inbox):
        try:
            await ctx.ask_human(**{"question": "Which colour?", **options})
        except InvalidInputError as error:
            return error.field

    code(story)
    run = drive(make_run())

    assert (run.output, questions(run)) == (field, [])


def test_text_that_no_row_can_hold_is_asked_all_the_same():
    asking("Which\0 colour\ud800?")

    run = drive(make_run())

    assert asked(run).text == "Which\ufffd colour??"


def test_an_at_most_once_tool_asks_nobody():
    @tool(effect="at_most_once")
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        await ctx.ask_human("Really?")
        return "paid"

    async def story(ctx, inbox):
        return (await ctx.tool("pay")).text

    code(story, tools=[pay])

    run = drive(make_run())

    assert [request.kind for request in questions(run)] == ["uncertain"]


def test_other_code_at_the_place_of_a_question_blocks_the_run():
    asking("Which colour?")
    run = drive(make_run())

    async def changed(ctx, inbox):
        await ctx.sleep_until_signal("x")

    code(changed)
    world.answer(asked(run).id, text="red")

    assert drive(run).status == Status.BLOCKED


def test_the_sweep_wakes_a_run_whose_question_has_expired(clock):
    asking("May I?", timeout=60)
    run = drive(make_run())
    hinted = []
    clock.advance(61 + conf.SWEEP_S)

    world.sweeper_sweep(lambda run_ids: hinted.extend(run_ids))

    assert run.id in hinted


@pytest.mark.sqlite
def test_a_retried_run_waits_for_the_answer_again():
    async def story(ctx, inbox):
        asking = aside(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("go")
        if broken:
            raise ValueError("broken")
        return (await asking)["text"]

    broken = [1]
    code(story)
    run = drive(make_run())
    (request,) = questions(run)
    world.send_signal(run.id, "go", None)
    assert drive(run).status == Status.FAILED
    broken.clear()

    world.store_retry(run.id)
    run = drive(run)

    assert asked(run).id == request.id
    world.answer(request.id, text="red")
    assert drive(run).output == "red"


def test_a_fork_leaves_an_open_question_behind_and_asks_its_own():
    asking("Which colour?")
    run = drive(make_run())

    fork = drive(world.store_fork(run.id, run.next_seq - 1))

    assert asked(fork).id != asked(run).id
    world.answer(asked(fork).id, text="red")
    assert (drive(fork).output, Run.objects.get(id=run.id).status) == ("answer|red|", Status.SUSPENDED)
