"""Guardrails: what trips, what it leaves behind, and that a replay comes to the same."""

import asyncio

import pytest
from django.contrib.auth.models import Group

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import (
    CancellationError,
    ChatMessage,
    GuardrailError,
    ModelResponse,
    TextBlock,
    ToolUseBlock,
    TransientError,
    Usage,
)
from ravi_django.middleware import InputGuardrail, OutputGuardrail, ToolGuardrail
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import refused
from tests.support.runs import asked, code, drive, every_death, make_run, take_over
from tests.support.tool_calls import calling, phases

pytestmark = pytest.mark.django_db(transaction=True)


def rude(text, ctx):
    return "it is rude" if "damn" in text else None


def react(script, *middleware, hooks=None, tools=()):
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    agent = ReActAgent("code", id="test/code", model=model, tools=tools, middleware=list(middleware), hooks=hooks)
    register(agent)
    return agent


def trips(told):
    return {"guardrail_trip": told.append}


# ---------------------------------------------------------------------------------------------------- input


def test_an_input_that_trips_fails_the_run_before_the_model_is_called():
    told = []
    agent = react([], InputGuardrail(rude), hooks=[trips(told)])
    run = drive(make_run(text="damn"))
    assert run.error == {"type": "GuardrailError", "message": "guardrail 'rude' tripped: it is rude"}
    assert (run.status, run.attempts, agent.model.calls) == (Status.FAILED, 0, [])
    assert [dict(call.data) for call in told] == [{"guardrail": "rude", "level": "input", "reason": "it is rude"}]
    assert JournalEntry.objects.get(kind="pinned", run=run).result == "it is rude"


def test_an_input_that_trips_is_answered_in_the_agents_place_and_another_goes_on():
    agent = react(["fine"], InputGuardrail(rude, on_trip="reply", reply="Be polite."))
    assert drive(make_run(text="damn")).output == "Be polite."
    assert not agent.model.calls
    assert drive(make_run(text="hello")).output == "fine"


@pytest.mark.parametrize("found", [True, "", 1])
def test_what_is_not_none_or_false_is_a_trip(found):
    async def check(text, ctx):
        return found

    react(["fine"], InputGuardrail(check, name="odd"))
    run = drive(make_run())
    assert run.status == Status.FAILED
    assert found != "" or run.error["message"] == "guardrail 'odd' tripped: no reason was given"


def test_a_check_that_raises_lets_nothing_through():
    def broken(text, ctx):
        raise KeyError("gone")

    agent = react(["fine"], InputGuardrail(broken))
    assert drive(make_run()).error["message"] == "guardrail 'broken' tripped: the check failed: KeyError: 'gone'"
    assert not agent.model.calls


@pytest.mark.parametrize("said", ["yes", "no"])
def test_a_check_may_ask_a_model_and_a_replay_does_not_ask_again(clock, said):
    async def judge(text, ctx):
        answer = await ctx.llm([ChatMessage.of("user", f"Is this polite? {text}")])
        return None if answer.text == "yes" else "the judge says no"

    def story(drive):
        model.calls.clear()
        return drive(make_run())

    model = ScriptedModel([lambda messages, options: said if "polite" in messages[-1].text else "fine"])
    react(model, InputGuardrail(judge))
    for run, death in every_death(clock, story):
        assert run.output == "fine" if said == "yes" else run.error["type"] == "GuardrailError"
        assert len(model.calls) == (2 if said == "yes" else 1) + death.lost("llm.call")


def test_two_guardrails_of_one_name_have_verdicts_of_their_own():
    react(["fine"], InputGuardrail(lambda text, ctx: None), InputGuardrail(lambda text, ctx: "no"))
    assert drive(make_run()).error["message"] == "guardrail '<lambda>' tripped: no"


# --------------------------------------------------------------------------------------------------- output


PAID = ModelResponse.of([TextBlock(text="damn it")], usage=Usage(input_tokens=7, output_tokens=3), cost=0.5)


@pytest.mark.parametrize("dies", [1, "end"])
def test_an_answer_that_trips_fails_the_run_and_was_paid(clock, dies):
    told = []
    model = ScriptedModel([PAID])
    react(model, OutputGuardrail(rude), hooks=[trips(told)])
    run = take_over(clock, drive(make_run(), dies=dies))
    assert run.error == {"type": "GuardrailError", "message": "guardrail 'rude' tripped: it is rude"}
    assert len(model.calls) == len(told) == 1 + (dies == 1)
    row = JournalEntry.objects.get(kind="llm.call")
    assert (row.error["type"], row.result, row.input_tokens, row.cost) == ("GuardrailError", None, 7, 0.5)
    assert (run.input_tokens, float(run.cost)) == (7, 0.5)
    note = JournalEntry.objects.get(kind="log", run=run)
    assert note.result == {"guardrail": "rude", "level": "output", "reason": "it is rude"}


def test_an_answer_that_trips_is_replaced_and_not_one_word_of_it_was_shown(monkeypatch, clock):
    shown = []
    delta = world.frames_delta
    world.patch(monkeypatch, "frames_delta", lambda *args, **kwargs: shown.append(args[2]) or delta(*args, **kwargs))
    react(ScriptedModel([PAID], chunk="words"), OutputGuardrail(rude, on_trip="reply", reply="No."))
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.output, shown, run.input_tokens) == ("No.", ["No."], 7)


def test_an_answer_that_calls_tools_is_looked_at_only_when_asked_to(ran, step):
    call = ToolUseBlock(tool_name="step", arguments={"name": "a"}, call_id="c")
    script = [[TextBlock(text="damn"), call], "fine"]
    react(script, OutputGuardrail(rude), tools=[step])
    assert drive(make_run()).output == "fine"
    react(script, OutputGuardrail(rude, every=True), tools=[step])
    assert drive(make_run()).error["type"] == "GuardrailError"
    assert ran == ["a"]


def test_what_a_judge_says_is_no_answer():
    def says_no(text, ctx):
        return "a no" if text == "no" else None

    async def judge(text, ctx):
        await ctx.llm([ChatMessage.of("user", "judge")])

    model = ScriptedModel([lambda messages, options: "no" if messages[-1].text == "judge" else "fine"])
    react(model, InputGuardrail(judge), OutputGuardrail(says_no))
    assert drive(make_run()).output == "fine"


@pytest.mark.parametrize(("error", "status"), [(TransientError("later"), Status.PENDING), (KeyError(), Status.FAILED)])
def test_a_check_of_an_answer_may_be_tried_again_later(error, status):
    def broken(text, ctx):
        raise error

    react(["fine"], OutputGuardrail(broken))
    assert drive(make_run()).status == status


# ----------------------------------------------------------------------------------------------------- tools


def too_much(arguments, context):
    return f"{arguments['amount']} is too much" if arguments["amount"] > 10 else None


def leaks(text, context):
    return "it leaks" if "secret" in text else None


def payer(effect, ran):
    @tool(effect=effect)
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        if effect == "transactional":
            Group.objects.create(name=f"paid {amount}")
        return "the secret"

    return pay


def paying(effect, ran, guard, *, amount=100, told=None):
    agent = code(calling("pay", amount=amount), tools=[payer(effect, ran)])
    agent.middleware = [guard]
    agent.hooks = [trips(told if told is not None else [])]
    return agent


EFFECTS = pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])


@EFFECTS
def test_arguments_that_trip_are_an_error_for_the_model(effect, ran, clock):
    told = []
    paying(effect, ran, ToolGuardrail(check_arguments=too_much), told=told)
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.output == "error: pay was not run: guardrail 'too_much' tripped: 100 is too much"
    assert ran == []
    assert phases() == ["result"]
    assert told[0].data["level"] == "tool"
    assert JournalEntry.objects.get(kind="log", run=run).result["reason"] == "100 is too much"


@EFFECTS
def test_a_result_that_trips_is_withheld(effect, ran):
    paying(effect, ran, ToolGuardrail(check_result=leaks), amount=1)
    output = drive(make_run()).output
    assert output == "error: pay was run, but its result is withheld: guardrail 'leaks' tripped: it leaks"
    assert ran == [1]
    assert "secret" not in str(JournalEntry.objects.get(kind="tool.call", phase="result").result)
    assert Group.objects.count() == (effect == "transactional")


def test_a_guardrail_for_some_tools_leaves_others_alone(ran):
    paying("idempotent", ran, ToolGuardrail(check_arguments=too_much, tools=["transfer"]))
    assert drive(make_run()).output == "ok: the secret"


@EFFECTS
@pytest.mark.parametrize("dies", [1, 2, "end"])
def test_a_trip_that_fails_the_run_leaves_nothing_uncertain(effect, ran, clock, dies):
    paying(effect, ran, ToolGuardrail(check_result=leaks, on_trip="fail"), amount=1)
    run = take_over(clock, drive(make_run(), dies=dies))

    if effect == "at_most_once" and dies == 2:  # died between the tool and its row: as ever, a person decides
        assert asked(run).tool == "pay"
        assert ran == [1]
        return
    assert run.status == Status.FAILED
    assert run.error == {"type": "GuardrailError", "message": "guardrail 'leaks' tripped: it leaks"}
    again = effect == "idempotent" and dies in (1, 2)  # in one commit with the end
    assert ran == [1] * (1 + again)
    assert phases() == (["result"] if effect == "idempotent" else ["started", "result"])
    assert Group.objects.count() == (effect == "transactional")


@pytest.mark.parametrize("effect", ["at_most_once", "transactional"])
def test_a_retry_of_such_a_run_does_not_do_it_again(effect, ran, clock):
    paying(effect, ran, ToolGuardrail(check_result=leaks, on_trip="fail"), amount=1)
    run = drive(make_run())
    world.store_retry(run.id)
    assert (drive(run).status, ran) == (Status.FAILED, [1])


def test_an_agent_is_told_of_it_and_may_go_on(ran):
    async def story(ctx, inbox):
        try:
            await ctx.tool("pay", amount=100)
        except GuardrailError as error:
            return f"no: {error.guardrail}"

    agent = code(story, tools=[payer("at_most_once", ran)])
    agent.middleware = [ToolGuardrail(check_arguments=too_much, on_trip="fail")]
    assert drive(make_run()).output == "no: too_much"


def test_a_trip_in_one_of_parallel_calls_lets_the_others_end(ran, clock):
    @tool(effect="at_most_once")
    async def pay(amount: int) -> str:
        """Pay."""
        await asyncio.sleep(0)
        ran.append(amount)
        return "paid"

    async def story(ctx, inbox):
        await asyncio.gather(ctx.tool("pay", amount=100), ctx.tool("pay", amount=1), return_exceptions=True)
        return "went on"

    agent = code(story, tools=[pay])
    agent.middleware = [ToolGuardrail(check_arguments=too_much, on_trip="fail")]
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.output, ran) == ("went on", [1])


def test_a_cancellation_is_no_trip():
    def cancelled(arguments, context):
        context.ctx.meta.cancellation.cancel("enough")
        raise CancellationError("enough")

    paying("idempotent", [], ToolGuardrail(check_arguments=cancelled))
    assert drive(make_run()).status == Status.CANCELLED


def test_bad_parameters_are_refused_by_name():
    for build, field in (
        (lambda: InputGuardrail("no"), "check"),
        (lambda: InputGuardrail(rude, on_trip="error"), "on_trip"),
        (lambda: OutputGuardrail(rude, on_trip="stop"), "on_trip"),
        (lambda: OutputGuardrail(rude, name="x" * 81), "name"),
        (lambda: ToolGuardrail(), "check_arguments"),
        (lambda: ToolGuardrail(check_result=7), "check_result"),
        (lambda: ToolGuardrail(check_result=leaks, on_trip="reply"), "on_trip"),
    ):
        with refused(field):
            build()


def unreachable_once():
    """A check, and what is left of its verdicts."""
    found = [ConnectionError("no route"), None]

    def check(text, ctx):
        if (said := found.pop(0)) is not None:
            raise said

    return check, found


@pytest.mark.parametrize("guardrail", [InputGuardrail, OutputGuardrail])
def test_a_check_that_raised_is_asked_again_by_a_retry(guardrail):
    (check, found), told = unreachable_once(), []
    react(["fine", "fine"], guardrail(check), hooks=[trips(told)])
    run = drive(make_run())
    assert run.error["message"] == "guardrail 'check' tripped: the check failed: ConnectionError: no route"
    assert len(told) == 1
    world.store_retry(run.id)
    run = drive(run)
    assert (run.status, run.output, found) == (Status.COMPLETED, "fine", []), run.error


def test_what_was_answered_for_a_check_that_raised_stays_answered():
    react(["fine"], InputGuardrail(unreachable_once()[0], on_trip="reply"))
    assert drive(make_run()).output == "I cannot help with that."
    assert JournalEntry.objects.filter(kind="pinned").count() == 1
