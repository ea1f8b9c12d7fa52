"""Middlewares and hooks around a run, its model calls and its tools: what they change is what is recorded."""

import asyncio

import pytest
from django.contrib.auth.models import Group

from ravi_django import register, save_spec, submit, tool
from ravi_django.agents import MiddlewarePipeline
from ravi_django.checks import check_settings
from ravi_django.kernel import (
    AgentMiddleware,
    CancellationError,
    ChatContext,
    ChatMessage,
    ChatMiddleware,
    FunctionMiddleware,
    MiddlewareTermination,
    ModelResponse,
    TextBlock,
    ToolExecutionResult,
    TransientError,
    Usage,
)
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import case, refused
from tests.support.patience import BOUND_S
from tests.support.runs import asked, code, drive, every_death, in_background, make_run, take_over
from tests.support.tool_calls import calling, phases

pytestmark = pytest.mark.django_db(transaction=True)


async def say(ctx, inbox):
    """One model call; its text is the output."""
    return (await ctx.llm([ChatMessage.of("user", "hello")])).text


def with_middleware(story, *middlewares, **options):
    agent = code(story, **options)
    agent.middleware = list(middlewares)
    return agent


class Shout(ChatMiddleware):
    def __init__(self):
        self.calls = 0

    async def process(self, context, call_next):
        self.calls += 1
        context.messages = [ChatMessage.of("user", context.messages[0].text.upper())]
        await call_next()
        context.response = ModelResponse.of([TextBlock(text=context.response.text + "!")])


def test_a_chat_middleware_changes_what_is_sent_and_recorded_and_no_replay_runs_it(clock):
    model, shout = ScriptedModel(["fine"], loop=True), Shout()
    with_middleware(say, shout, model=model)

    def story(drive):
        shout.calls = 0
        model.calls.clear()
        return drive(make_run())

    for run, death in every_death(clock, story):
        assert run.output == "fine!"
        assert {call.messages[-1].text for call in model.calls} == {"HELLO"}
        row = JournalEntry.objects.get(kind="llm.call")
        assert row.result["content"] == [{"type": "text", "text": "fine!"}]
        assert shout.calls == len(model.calls) == 1 + death.lost("llm.call")


def test_a_chat_middleware_may_answer_in_the_models_place_or_end_the_call():
    class Answer(ChatMiddleware):
        async def process(self, context, call_next):
            context.response = ModelResponse.of([TextBlock(text="from the cache")], cost=0.0)

    class StopCall(ChatMiddleware):
        def __init__(self, result):
            self.result = result

        async def process(self, context, call_next):
            raise MiddlewareTermination("not today", result=self.result)

    model = ScriptedModel([])
    ended = {"type": "MiddlewareTermination", "message": "not today"}
    for middleware, output, error in (
        (Answer(), "from the cache", None),
        (StopCall("sorry"), "sorry", None),
        (StopCall(None), None, ended),
    ):
        with_middleware(say, middleware, model=model)
        run = drive(make_run())
        assert (run.output, run.error, run.cost_unknown) == (output, error, False)
    assert not model.calls


def test_no_middleware_swallows_the_cancellation_of_a_run():
    class Deaf(ChatMiddleware):
        async def process(self, context, call_next):
            try:
                await call_next()
            except Exception:
                context.response = ModelResponse.of([TextBlock(text="nothing happened")])

    class Cancelled:
        name = "cancelled"

        async def stream(self, messages, options, meta):
            meta.cancellation.cancel("enough")
            raise CancellationError("enough")
            yield

    with_middleware(say, Deaf(), model=Cancelled())
    assert drive(make_run()).status == Status.CANCELLED


def test_a_middleware_is_no_part_of_the_runs_code():
    class Nosy(ChatMiddleware):
        async def process(self, context, call_next):
            await context.ctx.llm(context.messages)

    with_middleware(say, Nosy(), model=ScriptedModel(["fine"]))
    assert "outside of the run's own tasks" in drive(make_run()).error["message"]


class Replace(ChatMiddleware):
    async def process(self, context, call_next):
        await call_next()
        context.response = ModelResponse.of([TextBlock(text="another")])


class StopAfter(ChatMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise MiddlewareTermination("no", result="another")


class FailAfter(ChatMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise KeyError("gone")


@pytest.mark.parametrize("middleware", [Replace, StopAfter, FailAfter])
def test_an_answer_that_is_not_passed_on_was_paid_all_the_same(middleware, clock):
    model = ScriptedModel(["fine"], usage=Usage(input_tokens=7, output_tokens=3), cost=0.5)
    with_middleware(say, middleware(), model=model)
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.output == (None if middleware is FailAfter else "another")
    assert (run.input_tokens, run.output_tokens, float(run.cost)) == (7, 3, 0.5)
    assert len(model.calls) == 1


def test_call_next_goes_on_once():
    class Twice(ChatMiddleware):
        async def process(self, context, call_next):
            await call_next()
            await call_next()

    model = ScriptedModel(["one", "two"])
    with_middleware(say, Twice(), model=model)
    assert "called call_next() twice" in drive(make_run()).error["message"]
    assert len(model.calls) == 1


def test_an_annotation_says_the_level_and_anything_else_is_refused():
    class Duck:
        async def process(self, context: ChatContext, call_next):
            await call_next()

    assert MiddlewarePipeline([Duck()]).chat
    for wrong in (object(), Duck):
        with pytest.raises(TypeError, match="not a middleware"):
            MiddlewarePipeline([wrong])


class Spy(FunctionMiddleware):
    """Counts, and appends to what a tool says."""

    def __init__(self):
        self.calls = 0

    async def process(self, context, call_next):
        self.calls += 1
        await call_next()
        said = context.result.text + " (seen)"
        context.result = ToolExecutionResult(content=[TextBlock(text=said)], is_error=context.result.is_error)


class Instead(FunctionMiddleware):
    async def process(self, context, call_next):
        context.result = ToolExecutionResult(content=[TextBlock(text="from the cache")])


class Broken(FunctionMiddleware):
    async def process(self, context, call_next):
        raise KeyError("gone")


class StopBehind(FunctionMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise MiddlewareTermination(result="withheld")


class BrokenBehind(FunctionMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise KeyError("gone")


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_a_middleware_answers_in_a_tools_place_keeps_it_undone_or_withholds_what_it_said(effect, ran, clock):
    """What is raised behind the tool undoes nothing. A replay shows the same."""

    @tool(effect=effect)
    def send() -> str:
        ran.append(1)
        Group.objects.create(name=f"sent {len(ran)}")
        return "sent"

    for middleware, output, times in (
        (Instead(), "ok: from the cache", 0),
        (Broken(), "error: send was not run: KeyError: 'gone'", 0),
        (StopBehind(), "ok: withheld", 1),
        (BrokenBehind(), "error: send was run, but its result was not passed on: KeyError: 'gone'", 1),
    ):
        ran.clear()
        Group.objects.all().delete()
        with_middleware(calling("send"), middleware, tools=[send])
        run = take_over(clock, drive(make_run(), dies="end"))
        assert (run.status, run.output, len(ran)) == (Status.COMPLETED, output, times)
        assert Group.objects.count() == times
        began = JournalEntry.objects.filter(run=run, kind="tool.call", phase="started").count()
        assert began == (times if effect != "idempotent" else 0)


def test_a_crash_behind_a_transactional_commit_runs_the_chain_again_and_not_the_tool(ran, clock):
    @tool(effect="transactional", max_calls=1)
    def add(name: str) -> str:
        ran.append(name)
        Group.objects.create(name=name)
        return "added"

    class Sees(Spy):
        async def process(self, context, call_next):
            await super().process(context, call_next)
            ran.append(await asyncio.to_thread(lambda: in_background(Group.objects.count).result(BOUND_S)))

    spy = Sees()
    with_middleware(calling("add", name="ops"), spy, tools=[add])
    run = drive(make_run(), dies=1)  # the first append that is not the tool's own
    assert (ran, phases(), spy.calls) == (["ops", 1], ["started"], 1)  # committed when the chain sees the result
    run = take_over(clock, run, dies="end")
    run = take_over(clock, run)
    assert run.output == "ok: added (seen)"
    assert (ran, spy.calls) == (["ops", 1, 1], 2)
    assert phases() == ["started", "result"]
    assert not HumanRequest.objects.exists()


def test_a_middleware_may_change_the_arguments_and_they_are_validated_again(ran):
    @tool(effect="at_most_once")
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    class Cap(FunctionMiddleware):
        def __init__(self, amount):
            self.amount = amount

        async def process(self, context, call_next):
            context.arguments = {"amount": self.amount}
            await call_next()

    with_middleware(calling("pay", amount=100), Cap(10), tools=[pay])
    assert drive(make_run()).output == "ok: paid 10"
    row = JournalEntry.objects.get(kind="tool.call", phase="result")
    assert row.request == {"arguments": {"amount": 100}, "ran_with": {"amount": 10}}
    with_middleware(calling("pay", amount=100), Cap("much"), tools=[pay])
    assert "a middleware's arguments do not fit" in drive(make_run()).output
    assert ran == [10]


def test_an_uncertain_effect_stays_a_persons_whatever_a_middleware_does(clock, ran):
    @tool(effect="at_most_once")
    def send() -> str:
        ran.append(1)
        raise OSError("the line went dead")

    class Deaf(FunctionMiddleware):
        async def process(self, context, call_next):
            try:
                await call_next()
            except BaseException:
                context.result = ToolExecutionResult(content=[TextBlock(text="fine")])
                raise

    with_middleware(calling("send"), Deaf(), tools=[send])
    assert asked(drive(make_run())).tool == "send"
    assert ran == [1]


def test_an_agent_middleware_wraps_the_run_in_every_lease_and_its_result_goes_before_what_was_replied(clock):
    leases = []

    class Count(AgentMiddleware):
        async def process(self, context, call_next):
            leases.append(context.inbox[0].payload.message.text)
            await call_next()
            context.result = f"<{context.result}>"

    async def replying(ctx, inbox):
        await ctx.reply(inbox[0], "replied")
        return (await ctx.llm([ChatMessage.of("user", "hello")])).text

    class StopRun(AgentMiddleware):
        async def process(self, context, call_next):
            raise MiddlewareTermination("closed on Sundays")

    model = ScriptedModel(["fine"])
    with_middleware(replying, Count(), model=model)
    assert take_over(clock, drive(make_run(text="hi"), dies="end")).output == "<fine>"
    assert (leases, len(model.calls)) == (["hi", "hi"], 1)
    with_middleware(say, StopRun(), model=model)
    assert drive(make_run()).error == {"type": "MiddlewareTermination", "message": "closed on Sundays"}


def test_a_chain_that_cannot_be_read_is_refused_and_blocks_no_worker():
    for field, value in (("hooks", object()), ("hooks", 3), ("middleware", ["x"]), ("middleware", object())):
        agent = code(say, model=ScriptedModel(["fine"]))
        setattr(agent, field, value)
        with case(field, value):
            run = drive(make_run())
            assert (run.status, run.crashes, run.error["type"]) == (Status.BLOCKED, 0, "TypeError")
            with refused(field, f"has {field} that cannot be read"):
                register(agent)


class LaterOnce(ChatMiddleware):
    """Behind the model: the first answer comes to nothing."""

    def __init__(self, error):
        self.errors = [error]

    async def process(self, context, call_next):
        await call_next()
        if self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("dies", [None, 1, "end"])
def test_an_answer_that_came_to_nothing_was_paid_when_the_call_is_tried_again(dies, clock):
    async def twice(ctx, inbox):
        await say(ctx, inbox)
        return await say(ctx, inbox)

    model = ScriptedModel(["lost", "fine", "done"], usage=Usage(input_tokens=7, output_tokens=3), cost=0.5)
    with_middleware(twice, LaterOnce(TransientError("later")), model=model)
    run = drive(make_run(budget={"max_cost_usd": 1.0}))
    assert (run.status, run.input_tokens, float(run.cost)) == (Status.PENDING, 7, 0.5)
    clock.advance(120)
    run = drive(run, dies=dies, written=True)
    run = take_over(clock, run) if dies else run
    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    assert (run.input_tokens, run.output_tokens, float(run.cost)) == (14, 6, 1.0)
    assert len(model.calls) == 2


def test_an_answer_that_a_cancellation_took_was_paid():
    class Cancels(ChatMiddleware):
        async def process(self, context, call_next):
            await call_next()
            context.ctx.meta.cancellation.cancel("enough")
            context.ctx.check()

    with_middleware(say, Cancels(), model=ScriptedModel(["lost"], usage=Usage(input_tokens=7), cost=0.5))
    run = drive(make_run())
    assert (run.status, run.input_tokens, float(run.cost)) == (Status.CANCELLED, 7, 0.5)


class Halve(FunctionMiddleware):
    async def process(self, context, call_next):
        context.arguments = {"amount": context.arguments["amount"] // 2}
        await call_next()


@pytest.mark.parametrize("dies", [None, 2])
def test_who_decides_on_an_uncertain_effect_is_shown_what_was_sent(dies, clock, ran):
    @tool(effect="at_most_once")
    def pay(amount: int) -> str:
        ran.append(amount)
        if dies is None:
            raise OSError("the line went dead")
        return "paid"

    with_middleware(calling("pay", amount=100), Halve(), tools=[pay])
    run = drive(make_run(), dies=dies)
    run = take_over(clock, run) if dies else run
    assert asked(run).arguments == {"amount": 50}
    assert ran == [50]


def shouting():
    return Shout()


HERE = "tests.unit.runtime.test_middleware"


@pytest.mark.parametrize("name", ["Shout", "shouting"])
def test_a_sites_middleware_is_around_every_agents_own(name, settings, monkeypatch):
    settings.RAVI = {**settings.RAVI, "MIDDLEWARE": [f"{HERE}.{name}"]}
    model = ScriptedModel(["fine"], name="scripted", loop=True)
    with_middleware(say, Replace(), model=model)
    run = drive(make_run())
    assert (model.calls[0].messages[-1].text, run.output) == ("HELLO", "another!")
    world.silence(monkeypatch, "dispatch_send")
    world.patch(monkeypatch, "build_model", lambda name, **options: model)
    save_spec("react/row", {"model": "scripted", "tool_names": []})
    assert drive(submit("react/row", "hi")).output == "fine!"


def test_a_sites_middleware_that_is_none_is_told_by_the_check(settings):
    code(say, model=ScriptedModel(["fine"]))
    for names in (f"{HERE}.Shout", [3], [f"{HERE}.nothing"], [f"{HERE}.say"], ["nowhere.at.all"]):
        settings.RAVI = {**settings.RAVI, "MIDDLEWARE": names}
        with case(names):
            assert [problem.id for problem in check_settings()] == ["ravi.E010"]
            run = drive(make_run())
            assert (run.status, run.error["type"]) == (Status.BLOCKED, "InvalidInputError")
