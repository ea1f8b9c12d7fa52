"""Middlewares and hooks around a run, its model calls and its tools: what they change is what is recorded."""

from __future__ import annotations

import asyncio

import pytest
from django.contrib.auth.models import Group

from ravi_django import tool
from ravi_django.agents import MiddlewarePipeline
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
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling, phases

pytestmark = pytest.mark.django_db(transaction=True)


async def say(ctx, inbox):
    """One model call; its text is the output."""
    return (await ctx.llm([ChatMessage.of("user", "hello")])).text


def with_middleware(story, *middlewares, **options):
    agent = code(story, **options)
    agent.middleware = list(middlewares)
    return agent


# -------------------------------------------------------------------------------------------------- chat level


class Shout(ChatMiddleware):
    def __init__(self):
        self.calls = 0

    async def process(self, context, call_next):
        self.calls += 1
        context.messages = [ChatMessage.of("user", context.messages[0].text.upper())]
        await call_next()
        context.response = ModelResponse.of([TextBlock(text=context.response.text + "!")])


@pytest.mark.sqlite
def test_a_chat_middleware_changes_what_is_sent_and_what_is_recorded():
    model, shout = ScriptedModel(["fine"]), Shout()
    with_middleware(say, shout, model=model)

    run = drive(make_run())

    assert model.calls[0].messages[-1].text == "HELLO"
    assert run.output == "fine!"
    row = JournalEntry.objects.get(kind="llm.call")
    assert row.result["content"] == [{"type": "text", "text": "fine!"}]


def test_a_replay_runs_no_chat_middleware(clock):
    model, shout = ScriptedModel(["fine"]), Shout()
    with_middleware(say, shout, model=model)
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert (run.output, shout.calls, len(model.calls)) == ("fine!", 1, 1)


def test_a_crash_before_the_commit_runs_the_chain_again(clock):
    model, shout = ScriptedModel(["fine", "fine"]), Shout()
    with_middleware(say, shout, model=model)
    run = drive(make_run(), dies=1)

    assert take_over(clock, run).output == "fine!"
    assert shout.calls == 2


def test_a_chat_middleware_may_answer_in_the_models_place():
    class Answer(ChatMiddleware):
        async def process(self, context, call_next):
            context.response = ModelResponse.of([TextBlock(text="from the cache")], cost=0.0)

    model = ScriptedModel([])
    with_middleware(say, Answer(), model=model)

    run = drive(make_run())

    assert run.output == "from the cache"
    assert not model.calls
    assert not run.cost_unknown


@pytest.mark.parametrize("result", ["sorry", None])
def test_a_chat_middleware_may_end_the_call(result):
    class Stop(ChatMiddleware):
        async def process(self, context, call_next):
            raise MiddlewareTermination("not today", result=result)

    with_middleware(say, Stop(), model=ScriptedModel([]))

    run = drive(make_run())

    if result:
        assert run.output == "sorry"
    else:
        assert run.error == {"type": "MiddlewareTermination", "message": "not today"}


def test_what_a_chat_middleware_raises_is_recorded_and_raised_again(clock):
    raised = []

    class Broken(ChatMiddleware):
        async def process(self, context, call_next):
            raised.append(1)
            raise KeyError("gone")

    with_middleware(say, Broken(), model=ScriptedModel([]))
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.status == Status.FAILED
    assert run.error["type"] == "KeyError"
    assert len(raised) == 1


def test_a_transient_error_of_a_chat_middleware_is_a_retry():
    class Busy(ChatMiddleware):
        async def process(self, context, call_next):
            raise TransientError("later", retry_after=7)

    with_middleware(say, Busy(), model=ScriptedModel([]))

    run = drive(make_run())

    assert run.status == Status.PENDING
    assert run.attempts == 1
    assert run.wake_at is not None


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
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.output == (None if middleware is FailAfter else "another")
    assert (run.input_tokens, run.output_tokens, float(run.cost)) == (7, 3, 0.5)
    assert len(model.calls) == 1


def test_middlewares_are_nested_in_their_order():
    seen = []

    class Layer(ChatMiddleware):
        def __init__(self, name):
            self.name = name

        async def process(self, context, call_next):
            seen.append(f"{self.name} in")
            await call_next()
            seen.append(f"{self.name} out")

    with_middleware(say, Layer("a"), Layer("b"), model=ScriptedModel(["fine"]))
    drive(make_run())

    assert seen == ["a in", "b in", "b out", "a out"]


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
    with pytest.raises(TypeError, match="not a middleware"):
        MiddlewarePipeline([object()])
    with pytest.raises(TypeError, match="not a middleware"):
        MiddlewarePipeline([Duck])


# ---------------------------------------------------------------------------------------------- function level


class Spy(FunctionMiddleware):
    """Counts, and appends to what a tool says."""

    def __init__(self):
        self.calls = 0

    async def process(self, context, call_next):
        self.calls += 1
        await call_next()
        said = context.result.text + " (seen)"
        context.result = ToolExecutionResult(content=[TextBlock(text=said)], is_error=context.result.is_error)


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_a_function_middleware_changes_what_is_recorded(effect, ran, clock):
    @tool(effect=effect)
    def send(to: str) -> str:
        """Send."""
        ran.append(to)
        return f"sent to {to}"

    spy = Spy()
    with_middleware(calling("send", to="ACME"), spy, tools=[send])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.output == "ok: sent to ACME (seen)"
    assert (ran, spy.calls) == (["ACME"], 1)


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_a_middleware_that_skips_a_tool_answers_in_its_place(effect, ran):
    @tool(effect=effect)
    def send() -> str:
        """Send."""
        ran.append(1)
        return "sent"

    class Instead(FunctionMiddleware):
        async def process(self, context, call_next):
            context.result = ToolExecutionResult(content=[TextBlock(text="from the cache")])

    with_middleware(calling("send"), Instead(), tools=[send])

    assert drive(make_run()).output == "ok: from the cache"
    assert ran == []
    assert phases() == ["result"]


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
def test_what_is_raised_before_a_tool_leaves_it_undone(effect, ran):
    @tool(effect=effect)
    def send() -> str:
        """Send."""
        ran.append(1)
        return "sent"

    class Broken(FunctionMiddleware):
        async def process(self, context, call_next):
            raise KeyError("gone")

    with_middleware(calling("send"), Broken(), tools=[send])

    assert drive(make_run()).output == "error: send was not run: KeyError: 'gone'"
    assert ran == []


class BrokenAfter(FunctionMiddleware):
    async def process(self, context, call_next):
        await call_next()
        raise KeyError("gone")


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
def test_what_is_raised_after_a_tool_leaves_nothing_uncertain(effect, ran):
    @tool(effect=effect)
    def send() -> str:
        """Send."""
        ran.append(1)
        return "sent"

    with_middleware(calling("send"), BrokenAfter(), tools=[send])

    run = drive(make_run())

    assert run.output == "error: send was run, but its result was not passed on: KeyError: 'gone'"
    assert run.status == Status.COMPLETED
    assert ran == [1]


def test_what_is_raised_after_a_transactional_tool_rolls_it_back():
    @tool(effect="transactional")
    def add(name: str) -> str:
        """Add."""
        Group.objects.create(name=name)
        return "added"

    with_middleware(calling("add", name="ops"), BrokenAfter(), tools=[add])

    assert drive(make_run()).output == "error: KeyError: 'gone'"
    assert not Group.objects.exists()


def test_a_transactional_tool_commits_once_with_what_the_chain_has_made_of_it(clock):
    @tool(effect="transactional")
    def add(name: str) -> str:
        """Add."""
        Group.objects.create(name=name)
        return "added"

    spy = Spy()
    with_middleware(calling("add", name="ops"), spy, tools=[add])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "ok: added (seen)"
    assert Group.objects.count() == 1


def test_a_middleware_may_change_the_arguments_and_they_are_validated_again(ran):
    @tool(effect="at_most_once")
    def pay(amount: int) -> str:
        """Pay."""
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
        """Send."""
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

    run = drive(make_run())

    assert asked(run).tool == "send"
    assert ran == [1]


def test_a_termination_answers_for_a_tool():
    @tool
    def look() -> str:
        """Look."""
        return "secret"

    class Stop(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()
            raise MiddlewareTermination(result="withheld")

    with_middleware(calling("look"), Stop(), tools=[look])

    assert drive(make_run()).output == "ok: withheld"


# ------------------------------------------------------------------------------------------------- agent level


def test_an_agent_middleware_wraps_the_run_in_every_lease(clock):
    leases = []

    class Count(AgentMiddleware):
        async def process(self, context, call_next):
            leases.append(context.inbox[0].payload.message.text)
            await call_next()
            context.result = f"<{context.result}>"

    model = ScriptedModel(["fine"])
    with_middleware(say, Count(), model=model)
    run = drive(make_run(text="hi"), dies="end")

    assert take_over(clock, run).output == "<fine>"
    assert leases == ["hi", "hi"]
    assert len(model.calls) == 1


def test_an_agent_middlewares_result_goes_before_what_was_replied():
    class Count(AgentMiddleware):
        async def process(self, context, call_next):
            await call_next()
            context.result = f"<{context.result}>"

    async def story(ctx, inbox):
        await ctx.reply(inbox[0], "replied")
        return "returned"

    with_middleware(story, Count())

    assert drive(make_run()).output == "<returned>"


def test_an_agent_middleware_makes_journaled_calls(clock):
    class Judge(AgentMiddleware):
        async def process(self, context, call_next):
            verdict = await context.ctx.llm([ChatMessage.of("user", "is it polite?")])
            if verdict.text == "no":
                raise MiddlewareTermination(result="please be polite")
            await call_next()

    model = ScriptedModel(["no"])
    with_middleware(say, Judge(), model=model)
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "please be polite"
    assert len(model.calls) == 1


def test_a_termination_without_a_result_fails_the_run():
    class Stop(AgentMiddleware):
        async def process(self, context, call_next):
            raise MiddlewareTermination("closed on Sundays")

    with_middleware(say, Stop(), model=ScriptedModel([]))

    assert drive(make_run()).error == {"type": "MiddlewareTermination", "message": "closed on Sundays"}


# ------------------------------------------------------------------------------------------------------- hooks


def test_hooks_are_told_what_happens_once_and_a_replay_tells_nothing(clock, step):
    told = []

    async def story(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", "hello")])
        await ctx.tool("step", name="a")
        return "done"

    agent = code(story, model=ScriptedModel(["fine"]), tools=[step])
    agent.hooks = [{"run_start": told.append, "llm_start": told.append, "tool_end": told.append}, Listener(told)]
    run = drive(make_run(), dies="end")
    before = [call.event for call in told]

    take_over(clock, run)

    assert before == ["run_start", "llm_start", "llm_end", "tool_end"]
    assert [call.event for call in told] == [*before, "run_end"]
    ended = told[-1]
    assert (ended.run_id, ended.data["status"], ended.data["output"]) == (str(run.id), "completed", "done")


class Listener:
    def __init__(self, told):
        self.told = told

    async def on_llm_end(self, call):
        await asyncio.sleep(0)
        self.told.append(call)

    def on_run_end(self, call):
        self.told.append(call)


def test_a_hook_that_raises_is_logged_and_never_felt(caplog):
    def broken(call):
        raise KeyError("gone")

    agent = code(say, model=ScriptedModel(["fine"]))
    agent.hooks = {"llm_end": broken}

    assert drive(make_run()).output == "fine"
    assert "gone" in caplog.text


def test_a_hook_that_hangs_is_left(monkeypatch):
    from ravi_django.agents import hooks

    async def hangs(call):
        await asyncio.Event().wait()

    monkeypatch.setattr(hooks, "HOOK_TIMEOUT_S", 0.05)
    agent = code(say, model=ScriptedModel(["fine"]))
    agent.hooks = {"llm_end": hangs}

    assert drive(make_run()).output == "fine"


def test_a_hook_cannot_change_what_it_is_shown(step, ran):
    def meddle(call):
        call.data["arguments"]["name"] = "b"

    agent = code(calling("step", name="a"), tools=[step])
    agent.hooks = {"tool_start": meddle}

    drive(make_run())

    assert ran == ["a"]


def test_a_listener_that_listens_to_nothing_is_refused():
    from ravi_django.agents import Hooks

    with pytest.raises(TypeError, match="listens to nothing"):
        Hooks([object()])
    with pytest.raises(TypeError, match="no hook event 'lunch'"):
        Hooks([{"lunch": print}])
