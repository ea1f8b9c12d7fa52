"""Exceptions that cannot be printed: what raises one fails for that reason."""

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, GuardrailError, ToolRefused, TransientError
from ravi_django.kernel.middleware import AgentMiddleware, ChatMiddleware, FunctionMiddleware
from ravi_django.models import Status
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)


def unprintable(base, text=ValueError):
    class Unprintable(base):
        def __str__(self):
            if text is not None:
                raise text
            return text

        __repr__ = __str__

    return Unprintable


def fails(run, name="ValueError"):
    assert (run.status, run.error["type"]) == (Status.FAILED, "Unprintable")
    assert run.error["message"] == f"it cannot be printed: its __str__ raised {name}"


@pytest.mark.parametrize(
    ("base", "text"),
    [
        *((Exception, text) for text in (ValueError, None, SystemExit, KeyboardInterrupt)),
        *((base, ValueError) for base in (BaseException, SystemExit, ToolRefused, GuardrailError)),
    ],
    ids=lambda value: getattr(value, "__name__", "None"),
)
def test_an_agents_exception_fails_the_run(base, text):
    async def story(ctx, inbox):
        raise unprintable(base, text)("x")

    code(story)
    fails(drive(make_run()), "TypeError" if text is None else text.__name__)


@pytest.mark.parametrize(
    ("base", "effect"),
    [(Exception, "at_most_once"), (ToolRefused, "transactional"), (TransientError, "idempotent")],
)
def test_a_tools_exception_is_its_error(clock, base, effect):
    @tool(effect=effect)
    def work() -> str:
        raise unprintable(base)("x")

    code(calling("work"), tools=[work])
    run = drive(make_run())
    while run.status == Status.PENDING:  # a transient error
        run = take_over(clock, run)
    if run.status == Status.SUSPENDED:  # an at-most-once effect may have happened
        assert "cannot be printed" in run.requests.get().text
    else:
        assert run.output.startswith("error: ") and "cannot be printed" in run.output


def raising(base):
    class Raising(base):
        async def process(self, context, call_next):
            raise unprintable(Exception)("x")

    return Raising()


class Model:
    name = "model"

    async def stream(self, messages, options, meta):
        raise unprintable(Exception)("x")
        yield


async def chat(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


@pytest.mark.parametrize("base", [AgentMiddleware, ChatMiddleware, FunctionMiddleware, None])
def test_a_middlewares_or_a_models_exception_is_an_error_too(base):
    is_tools = base is FunctionMiddleware
    agent = code(calling("work") if is_tools else chat, model=Model(), tools=[tool(name="work")(lambda: "worked")])
    agent.middleware = [] if base is None else [raising(base)]
    run = drive(make_run())
    if is_tools:
        assert run.output.startswith("error: work was not run: Unprintable: it cannot be printed")
    else:
        fails(run)
