"""A tool that asks a person: its attempt is closed, the call waits as rows, and the next attempt gets the answer."""

import asyncio

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from ravi_django import answer, tool
from ravi_django.agents import FunctionMiddleware
from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, HumanInput, PauseForInputResult, RunContext, Tool
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import asked, code, drive, every_death, make_run, take_over
from tests.support.tool_calls import calling, output_of

pytestmark = pytest.mark.django_db(transaction=True)

EFFECTS = ["idempotent", "at_most_once"]


def rows_of(run):
    """(phase, attempt) of the run's tool calls."""
    return [(row.phase, row.attempt) for row in journal_of(run) if row.kind == "tool.call"]


def asking(ran, effect="idempotent", *, asks="Which colour?", then="{0.action}|{0.text}|{0.by}", **options):
    """A tool that asks once and tells what came of it."""

    @tool(effect=effect)
    def paint(what: str, told: HumanInput | None = None) -> str:
        """Paint."""
        ran.append(None if told is None else told.action)
        return PauseForInputResult(asks, **options) if told is None else then.format(told)

    return paint


def pausing(ran, effect="idempotent", owner=None, **options):
    """A run whose agent has called such a tool, which waits for its answer."""
    code(calling("paint", what="door"), tools=[asking(ran, effect, **options)])
    return drive(make_run(owner=owner))


# --------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_tool_is_called_again_with_the_answer(ann, ran, effect):
    run = pausing(ran, effect, ann, choices=["red", "blue"], context="For the door.")
    request = asked(run)
    assert (request.kind, request.text, request.choices, request.tool) == (
        "input", "Which colour?", ["red", "blue"], "paint",
    )  # fmt: skip
    assert request.arguments == {"what": "door"}  # as of an approval or an uncertain effect
    assert request.details == {"context": "For the door.", "free_text": False}
    (frame,) = [frame for frame in world.events_page(run.id)[0] if frame["type"] == "request"]
    assert frame["arguments"] == request.arguments
    assert {name: frame[name] for name in request.details} == request.details
    steps = [frame["content"] for frame in world.events_page(run.id)[0] if frame.get("step") == "paused"]
    (paused,) = [content for content in steps if "tool" in content]
    assert paused == {"tool": "paint", "call_id": "", "path": request.path, "attempt": 1, "request": str(request.id)}

    answer(request.id, text="red", by=ann)
    run = drive(run)

    assert (run.status, run.output, ran) == (Status.COMPLETED, "ok: answer|red|ann", [None, "answer"])
    begun = [("started", 1), ("paused", 1), ("started", 2), ("result", 2)]
    assert rows_of(run) == (begun if effect == "at_most_once" else [("paused", 1), ("result", 2)])
    assert [row.seq for row in journal_of(run)] == list(range(1, run.next_seq))
    kinds = [frame["type"] for frame in world.events_page(run.id)[0]]
    assert kinds.count("request") == kinds.count("request.closed") == 1
    closed = next(row for row in journal_of(run) if row.kind == "request.closed")
    assert (closed.result["answer"]["by"], closed.result["id"]) == ("ann", str(request.id))


def test_an_async_tool_and_one_of_a_class_are_given_it_too(ran):
    class Paint(Tool):
        name, input_parameter = "paint", "told"

        async def execute(self, **arguments):
            told = arguments["told"]
            ran.append(told)
            return PauseForInputResult("Which colour?") if told is None else f"{arguments['what']} {told.text}"

    code(calling("paint", what="door"), tools=[Paint()])
    run = drive(make_run())
    answer(asked(run).id, text="red")

    assert drive(run).output == "ok: door red"
    assert ran == [None, HumanInput("answer", "red")]


def test_what_a_model_puts_into_the_parameter_of_a_class_counts_for_nothing(ran):
    class Paint(Tool):
        name, input_parameter = "paint", "told"

        def execute(self, **arguments):
            return f"{arguments['told']}"

    code(calling("paint", told="mine"), tools=[Paint()])
    assert drive(make_run()).output == "ok: None"

    paint = asking(ran)  # the model does not see the parameter of a function
    assert paint.parameters["properties"].keys() == {"what"}
    code(calling("paint", what="door", told={"action": "answer", "text": "mine"}), tools=[paint])
    assert drive(make_run()).output.startswith("error: unknown argument 'told'")
    assert ran == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_one_that_expires_calls_the_tool_again_without_an_answer(clock, ran, effect):
    run = pausing(ran, effect, timeout=60)
    request = HumanRequest.objects.get(run=run)
    assert run.waiting_on[0]["until"] is not None
    clock.advance(61)
    with pytest.raises(ConflictError):
        answer(request.id, text="red")

    run = drive(run)

    assert (run.output, ran) == ("ok: expired||", [None, "expired"])
    request.refresh_from_db()
    assert request.status == "expired"
    for action in ("skip", "cancel"):
        run = pausing(ran, effect)
        answer(asked(run).id, action)
        assert drive(run).output == f"ok: {action}||", "no consent"


def test_several_questions_at_once_are_answered_by_their_keys_also_by_the_command(ann, ran):
    questions = {"colour": "Which colour?", "coats": "How many coats?"}
    run = pausing(ran, owner=ann, asks=questions, then="{0.values[coats]} {0.text}.")
    request = asked(run)
    assert request.text == "colour: Which colour?\ncoats: How many coats?"
    assert request.details["questions"] == questions
    more, empty = {"colour": "red", "coats": "2", "more": "x"}, {"colour": "red", "coats": " "}
    for wrong in ({"colour": "red"}, more, empty, None):
        with refused("values"):
            answer(request.id, values=wrong)

    answer(request.id, values={"colour": "red", "coats": " 2 "}, by=ann)

    assert drive(run).output == "ok: 2 ."
    run = pausing(ran, asks=questions, then="{0.values[colour]} {0.values[coats]}")
    call_command("ravi_answer", str(asked(run).id), "answer", "--value", "colour=red", "--value", "coats=2=3")
    assert drive(run).output == "ok: red 2=3"


# ----------------------------------------------------------------------------------------------- several pauses


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_wizard_asks_one_thing_after_the_other(ran, effect):
    @tool(effect=effect)
    def order(told: HumanInput | None = None) -> str:
        """Order."""
        ran.append(told and told.text)
        return PauseForInputResult(f"Question {len(ran)}?") if len(ran) < 4 else " ".join(filter(None, ran))

    code(calling("order"), tools=[order])
    run = drive(make_run())
    for number in (1, 2, 3):
        request = asked(run)
        assert (request.text, request.attempt) == (f"Question {number}?", number)
        answer(request.id, text=f"answer{number}")
        run = drive(run)
        with pytest.raises(ConflictError):
            answer(request.id, text="it is no answer to the next question")

    assert (run.status, run.output) == (Status.COMPLETED, "ok: answer1 answer2 answer3")
    attempts = [attempt for phase, attempt in rows_of(run) if phase != "started"]
    assert attempts == [1, 2, 3, 4]


@pytest.mark.parametrize("effect", EFFECTS)
def test_of_two_tools_that_pause_at_once_each_gets_its_own_answer_and_others_go_on(ran, effect):
    @tool
    def other() -> str:
        """Other."""
        ran.append("other")
        return "done"

    @tool(effect=effect)
    def paint(what: str, told: HumanInput | None = None) -> str:
        """Paint."""
        return PauseForInputResult(f"Which colour for the {what}?") if told is None else f"{what}={told.text}"

    async def story(ctx, inbox):
        paints = [ctx.tool("paint", what=what) for what in ("door", "wall")]
        return " ".join(result.text for result in await asyncio.gather(*paints, ctx.tool("other")))

    code(story, tools=[paint, other])
    run = drive(make_run())
    door, wall = HumanRequest.objects.filter(run=run).order_by("text")
    assert ("door" in door.text, ran) == (True, ["other"])

    answer(wall.id, text="white")
    run = drive(run)
    assert run.status == Status.SUSPENDED
    answer(door.id, text="red")

    assert drive(run).output == "door=red wall=white done"
    assert ran == ["other"]


def test_a_row_of_another_request_at_the_same_place_is_no_answer(ran):
    run = pausing(ran)
    mine = asked(run)
    HumanRequest(
        run=run, path=mine.path, attempt=mine.attempt, kind="question", status="answered", answer={"action": "answer"}
    ).save()
    Run.objects.filter(id=run.id).update(status=Status.PENDING, wake_seq=1)

    run = drive(run)

    assert (run.status, ran) == (Status.SUSPENDED, [None])


def test_a_tool_that_always_asks_again_is_ended_with_words(ran):
    @tool
    def nag(told: HumanInput | None = None) -> str:
        """Nag."""
        ran.append(told)
        return PauseForInputResult("Now?")

    code(calling("nag"), tools=[nag])
    run = drive(make_run())
    while run.status == Status.SUSPENDED:
        answer(asked(run).id, text="no")
        run = drive(run)

    assert run.output == "error: nag has paused 20 times in one call, which is the limit; it was ended"
    assert len(ran) == world.MAX_PAUSES + 1


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_tool_without_a_parameter_for_the_answer_is_told_so_once(ran, effect):
    @tool(effect=effect)
    def paint() -> str:
        """Paint."""
        ran.append(1)
        return PauseForInputResult("Which colour?")

    assert "error: paint cannot pause: it has no parameter for the answer" in output_of(paint)
    assert (ran, HumanRequest.objects.count()) == ([1], 0)


def test_a_pause_that_nobody_could_answer_is_an_error_with_words(ran):
    for options, words in [
        ({"asks": ""}, "request is a text"),
        ({"asks": 7}, "request is a text"),
        ({"asks": {}}, "1 to 20 questions"),
        ({"choices": ["one"]}, "choices are 2 to 20"),
        ({"timeout": -1}, "timeout is a number"),
        ({"asks": {"a": "A?"}, "choices": ["x", "y"]}, "single question"),
    ]:
        output = pausing(ran, **options).output
        with case(options):
            assert output.startswith("error: paint cannot pause: ") and words in output


# --------------------------------------------------------------------------------------------- crashes and replay


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_worker_that_dies_anywhere_asks_once_and_answers_once(clock, ran, effect):
    """An at-most-once tool is uncertain while it is begun; its pause is no uncertainty."""

    def story(drive):
        ran.clear()
        code(calling("paint", what="door"), tools=[asking(ran, effect)])
        run = drive(make_run())
        if asked(run).kind == "input":
            answer(asked(run).id, text="red")
            run = drive(run)
        return run

    uncertain = []
    for run, death in every_death(clock, story):
        if run.status == Status.SUSPENDED:
            uncertain.append(str(death))
            assert (effect, asked(run).kind, rows_of(run)[-1][0]) == ("at_most_once", "uncertain", "started"), death
            continue
        assert (run.status, run.output) == (Status.COMPLETED, "ok: answer|red|")
        assert [row for row in rows_of(run) if row[0] != "started"] == [("paused", 1), ("result", 2)]
        assert len(ran) == 2 + (death.lost("tool.call") if effect == "idempotent" else 0)
        assert HumanRequest.objects.filter(run=run).count() == 1
    assert len(uncertain) == (4 if effect == "at_most_once" else 0), uncertain


def test_an_at_most_once_tool_that_died_in_its_second_attempt_is_uncertain_and_keeps_its_answer(clock, ran):
    run = pausing(ran, "at_most_once")
    answer(asked(run).id, text="red")
    drive(run, dies=2)
    run = take_over(clock, run)
    assert (asked(run).kind, asked(run).attempt, ran) == ("uncertain", 2, [None, "answer"])
    clock.advance(conf.TOOL_TIMEOUT_S + conf.LEASE_S + 1)

    world.human_resolve(asked(run).id, "run_again")
    run = drive(run)

    assert (run.output, ran) == ("ok: answer|red|", [None, "answer", "answer"])
    assert rows_of(run) == [("started", 1), ("paused", 1), ("started", 2), ("started", 3), ("result", 3)]


def test_what_an_attempt_did_through_the_run_is_not_done_again_by_the_next(clock, ran):
    """The calls of an attempt have places of their own: code that does something else then meets nobody's rows."""

    @tool
    def look(what: str) -> str:
        """Look."""
        ran.append(what)
        return what

    @tool
    async def paint(ctx: RunContext, told: HumanInput | None = None) -> str:
        """Paint."""
        seen = await ctx.tool("look", what="before" if told is None else "after")
        if told is None:
            return PauseForInputResult("Which colour?")
        await ctx.tool("look", what="last")
        return f"{seen.text} {told.text}"

    code(calling("paint"), tools=[look, paint])
    run = drive(make_run())
    answer(asked(run).id, text="red")
    drive(run, dies=2)

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "ok: after red")
    assert ran == ["before", "after", "last", "last"]
    again = world.store_fork(run.id, run.next_seq - 2)
    assert drive(again).output == "ok: after red", "a replay of all of it, on the same rows"


def test_the_idempotency_key_stays_the_same_and_that_of_another_call_does_not():
    keys = []

    @tool
    async def pay(ctx: RunContext, told: HumanInput | None = None) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        if told is None:
            return PauseForInputResult("Sure?")
        return ""

    async def story(ctx, inbox):
        await ctx.tool("pay")
        await ctx.tool("pay")

    code(story, tools=[pay])
    run = drive(make_run())
    for _ in range(2):
        answer(asked(run).id, text="yes")
        run = drive(run)

    assert run.status == Status.COMPLETED
    assert keys[0] == keys[1] != keys[2] == keys[3]


# ------------------------------------------------------------------------------------------------ the other calls


def test_inside_an_at_most_once_tool_a_call_cannot_pause(ran):
    def outer_of(effect):
        @tool(effect=effect)
        async def outer(ctx: RunContext) -> str:
            """Outer."""
            return (await ctx.tool("paint", what="door")).text

        code(calling("outer"), tools=[outer, asking(ran)])
        return drive(make_run())

    assert outer_of("at_most_once").output.startswith("ok: paint cannot pause: the tool at ")
    assert HumanRequest.objects.count() == 0

    ran.clear()
    run = outer_of("idempotent")
    answer(asked(run).id, text="red")
    assert (drive(run).output, ran) == ("ok: answer|red|", [None, "answer"])


def test_a_transactional_tool_that_asks_is_rolled_back_with_the_fix(ran):
    def enrol() -> str:
        """Enrol."""
        get_user_model().objects.create_user("before")
        return PauseForInputResult("Sure?")

    output = output_of(tool(effect="transactional")(enrol))
    assert "error: enrol is transactional, and a transaction cannot wait" in output
    assert (get_user_model().objects.count(), HumanRequest.objects.count()) == (0, 0)
    with pytest.raises(ValueError, match='use effect="at_most_once"'):
        asking(ran, "transactional")


# -------------------------------------------------------------------------------------------- time, caps, middleware


def test_a_call_that_was_let_in_is_not_refused_behind_its_pause():
    @tool(max_calls=2)
    def paint(what: str, told: HumanInput | None = None) -> str:
        """Paint."""
        return PauseForInputResult(f"{what}?") if told is None else told.text

    async def story(ctx, inbox):
        results = await asyncio.gather(*(ctx.tool("paint", what=what) for what in ("door", "wall", "roof")))
        return " ".join(result.text[:5] for result in results)

    code(story, tools=[paint])
    run = drive(make_run())
    for request in HumanRequest.objects.filter(run=run):
        answer(request.id, text=request.text)
    run = drive(run)

    assert run.output == "door? wall? the r"


def test_every_attempt_goes_through_the_function_middlewares(ran):
    seen = []

    class Watch(FunctionMiddleware):
        async def process(self, context, call_next):
            seen.append(("before", context.attempt))
            try:
                await call_next()
            except Exception:
                seen.append("error")
                raise
            seen.append(("after", context.result.text))

    agent = code(calling("paint", what="door"), tools=[asking(ran, "at_most_once")])
    agent.middleware = [Watch()]
    run = drive(make_run())
    answer(asked(run).id, text="red")

    assert drive(run).output == "ok: answer|red|"
    assert seen == [("before", 1), ("before", 2), ("after", "answer|red|")]


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_middleware_that_swallows_everything_does_not_swallow_a_pause(ran, effect):
    class Deaf(FunctionMiddleware):
        async def process(self, context, call_next):
            try:
                await call_next()
            except BaseException:
                context.result = None

    agent = code(calling("paint", what="door"), tools=[asking(ran, effect)])
    agent.middleware = [Deaf()]
    run = drive(make_run())
    answer(asked(run).id, text="red")

    assert drive(run).output == "ok: answer|red|"


# ------------------------------------------------------------------------------------------------- retry and fork


def test_a_fork_shares_the_answer_or_begins_before_the_call(ran):
    run = pausing(ran)
    paused = next(row for row in journal_of(run) if row.phase == "paused")
    inside = drive(world.store_fork(run.id, paused.seq + 1))
    assert inside.fork_seq < paused.seq
    answer(HumanRequest.objects.get(run=inside).id, text="blue")
    assert (drive(inside).output, ran) == ("ok: answer|blue|", [None, None, "answer"])

    ran.clear()
    answer(asked(run).id, text="red")
    run = drive(run)
    result = next(row for row in journal_of(run) if row.kind == "tool.call" and row.phase == "result")
    new = world.store_fork(run.id, result.seq)
    assert (new.fork_seq, drive(new).output, ran) == (result.seq, "ok: answer|red|", ["answer"])
