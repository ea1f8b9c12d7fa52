"""Typed results through the durable runtime: whoever finishes the run, its output is the same and nothing is redone."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field

from ravi_django import errors, register, submit
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.calls.llm import warm
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import AgentId, FinishAgentResult, ModelResponse, Role, TextBlock, ToolUseBlock
from ravi_django.models import JournalEntry, Run, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.openai_server import Body, OpenAIServer, Reply
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "react/typed"
TEXT = '{"name":"Bern","people":140000}'


class City(BaseModel):
    name: str
    people: int


class Answers:
    """A model whose answer is chosen by how many there were before it in the conversation."""

    name = "answers"

    def __init__(self, *answers: Any, held: bool = False) -> None:
        self.answers, self.held = answers, held
        self.calls: list[int] = []

    async def supports_schema(self) -> bool:
        return self.held

    async def stream(self, messages: Any, options: Any, meta: Any) -> AsyncIterator[ModelResponse]:
        number = sum(message.role is Role.ASSISTANT for message in messages)
        self.calls.append(number)
        said = self.answers[number]
        yield ModelResponse.of([TextBlock(text=said) if isinstance(said, str) else said])


def rows(run: Run, kind: str) -> list[JournalEntry]:
    return [entry for entry in journal_of(run) if entry.kind == kind]


def final(call_id: str, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name="final_result", arguments=arguments, call_id=call_id)


STEP = ToolUseBlock(tool_name="step", arguments={"name": "x"}, call_id="s")
BY_TOOL = (final("c1", name="Bern", people="many"), STEP, final("c2", name="Bern", people=140000))
BY_TEXT = ("Bern!", STEP, f"```json\n{TEXT}\n```")


def typed(model: Any, step: Any = None) -> ReActAgent:
    memory = ContextConfig(DjangoHistoryProvider())
    tools = [] if step is None else [step]
    made = ReActAgent("typed", model=model, tools=tools, context=memory, result_model=City)
    register(made)
    return made


def turns(run: Run) -> list[Any]:
    return [(turn.role, turn.blocks) for turn in Turn.objects.filter(session=run.session_id).order_by("position")]


@pytest.mark.parametrize(("answers", "held"), [(BY_TOOL, False), (BY_TEXT, True)], ids=["tool", "schema"])
def test_a_run_that_dies_anywhere_comes_to_the_same_result(answers, held, clock, step, ran):
    model = Answers(*answers, held=held)
    found: list[Any] = []

    def story(drive: Any) -> Run:
        model.calls.clear()
        ran.clear()
        typed(model, step)
        return drive(make_run(AGENT))

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, TEXT)
        found.append(turns(run))
        assert [entry.path for entry in rows(run, "llm.call")] == [f"turn{number}.1" for number in (1, 2, 3)]
        assert len(model.calls) == 3 + death.lost("llm.call")
        assert len(ran) == 1 + death.lost("tool.call")
    assert all(one == found[-1] for one in found)


def test_who_asked_gets_the_value_and_the_run_has_the_text():
    typed(Answers(TEXT))
    got: list[Any] = []

    async def ask(ctx: Any, inbox: Any) -> str:
        outcome = await ctx.ask(AgentId.parse(AGENT), "which city?")
        got.append((outcome.kind, outcome.result))
        return "asked"

    code(ask)
    asker = drive(make_run())
    child = Run.objects.get(parent=asker)
    child = drive(child)
    asker = drive(asker)

    assert (asker.status, got[-1]) == (Status.COMPLETED, ("replied", json.loads(TEXT)))
    assert (child.status, child.output) == (Status.COMPLETED, TEXT)


def by_text(body: Body) -> Reply:
    tried = sum(message["role"] == "assistant" for message in body["messages"])
    return Reply(text=TEXT if tried else '{"name": "Bern"}')


def by_tool(body: Body) -> Reply:
    tried = sum(message["role"] == "assistant" for message in body["messages"])
    return Reply(tool_calls=(("final_result", json.loads(TEXT) if tried else {"people": "many", "name": "Bern"}),))


@pytest.mark.parametrize(
    ("name", "script"), [("openai/gpt-4o", by_text), ("openai/gpt-3.5-turbo", by_tool)], ids=["schema", "tool"]
)
def test_a_result_is_asked_for_as_the_provider_can_and_tries_are_not_repeated(name: str, script: Any, clock: Any):
    warm()  # an import amid the run takes longer than a busy machine leaves it
    with OpenAIServer(script) as server:
        model = LLMFactory(name, "sk-test", api_base=server.base_url).build()
        register(ReActAgent("wired", model=model, result_model=City))

        run = drive(make_run("react/wired"), dies=2)
        run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, TEXT), run.error
    bodies = [request.body for request in server.requests]
    tries = [sum(message["role"] == "assistant" for message in body["messages"]) for body in bodies]
    assert tries == [0, 1, 1]  # the one that was in flight is made again, the recorded one is not
    assert json.dumps(bodies[1]) == json.dumps(bodies[2])  # a provider's prompt cache goes by bytes
    assert "people" in bodies[1]["messages"][-1]["content"]
    if script is by_text:
        described = bodies[0]["response_format"]["json_schema"]
        assert (described["name"], described["strict"]) == ("City", True)
        assert described["schema"]["required"] == ["name", "people"]
        assert "tools" not in bodies[0]
    else:
        (shown,) = bodies[0]["tools"]
        assert shown["function"]["name"] == "final_result"
        assert shown["function"]["parameters"]["required"] == ["name", "people"]
        assert "response_format" not in bodies[0]
        assert bodies[1]["messages"][-1]["role"] == "tool"


def even(order: int) -> int:
    if order % 2:
        raise ValueError("it is odd")
    return order


class Parcel(BaseModel):
    weight: int = Field(ge=1)
    order: Annotated[int, AfterValidator(even)]


GOOD, ODD = '{"weight":1,"order":4}', '{"weight":1,"order":3}'


def submitted(*args: Any, **options: Any) -> Run:
    run = submit(*args, **options)
    run_until_idle()
    return run


def test_a_result_is_an_instance_of_the_agents_model_and_json_where_the_model_is_unknown():
    typed(Answers(TEXT))
    run = submitted(AGENT, "which city?")
    assert run.result() == City(name="Bern", people=140000)
    with pytest.raises(errors.ResultInvalidError, match=rf"the output of run {run.id} is not a valid Parcel: weight: "):
        run.result(Parcel)
    world.unregister(AGENT)
    assert run.result() == json.loads(TEXT)

    typed(Answers(*["nothing"] * 9))
    with pytest.raises(errors.RunFailedError, match="the model returned no valid City"):
        submitted(AGENT, "and now?").result(Parcel)


def test_a_request_asks_for_a_type_in_place_of_the_agents_own():
    model = typed(Answers(TEXT, '{"weight":0,"order":3}', ODD)).model
    run = submitted(AGENT, "which parcel?", result_schema=Parcel)

    assert (run.wait().output, model.calls) == (ODD, [0, 1, 2]), "a worker checks the shape, not what is Python"
    with pytest.raises(errors.ResultInvalidError, match="order: it is odd"):
        run.result()
    typed(Answers(GOOD))

    async def here() -> Any:
        async with world.Runtime() as rt:
            return await rt.result(await rt.submit(AGENT, "now?", result_schema=Parcel), timeout=BOUND_S)

    assert asyncio.run(here()) == Parcel(weight=1, order=4)
    run = submitted(AGENT, "and now?", result_schema=Parcel)
    assert list(json.loads(run.result_schema)["properties"]) == ["weight", "order"], "as the model is asked"
    assert run.result() == Parcel(weight=1, order=4)
    assert Run.objects.get(id=world.fork(run.id, 1).id).result_schema == run.result_schema
    world.bodies_forget()  # as in another process
    assert (run.result(), run.result(Parcel)) == (json.loads(GOOD), Parcel(weight=1, order=4))


@pytest.mark.parametrize("answer", [GOOD, Parcel(weight=1, order=4), "four"])
def test_a_request_binds_an_agent_of_own_code_and_the_last_of_several(answer):
    async def late(ctx: Any, inbox: Any) -> Any:
        return answer

    code(late)
    call = ToolUseBlock(tool_name="leave", arguments={}, call_id="c")
    register(ReActAgent("front", model=ScriptedModel([call]), tools=[leave]))
    for agent in ("test/code", "react/front"):
        run = submitted(agent, "which parcel?", result_schema=Parcel).wait()
        assert run.agent == "test/code"
        if answer == "four":
            assert run.error["message"].startswith("the request asks for a Parcel, and the agent's result is none: ")
        else:
            assert (run.output, run.result()) == (GOOD, Parcel(weight=1, order=4))


def leave() -> Any:
    """Hand over."""
    return FinishAgentResult("test/code")


class Invoice(BaseModel):
    model_config = {"title": "Parcel"}
    weight: int = Field(ge=1)
    order: int


def test_each_request_has_its_type_although_another_has_the_same_schema():
    typed(Answers(GOOD))
    first = submitted(AGENT, "which parcel?", result_schema=Parcel, idempotency_key="k")
    second = submitted(AGENT, "which invoice?", result_schema=Invoice)
    assert first.result_schema == second.result_schema
    assert (first.result(), second.result()) == (Parcel(weight=1, order=4), Invoice(weight=1, order=4))
    world.bodies_forget()
    assert submit(AGENT, "which parcel?", result_schema=Parcel, idempotency_key="k").result() == first.result(Parcel)


def test_a_number_is_no_type_but_a_timeout():
    async def here() -> Any:
        async with world.Runtime() as rt:
            return await rt.result(str(world.uuid7()), 5)

    for late in (Run().result, lambda number: asyncio.run(here())):
        with pytest.raises(errors.InvalidInputError, match="result_type is a type, not 5; pass timeout=5"):
            late(5)


def test_a_repeated_request_has_the_same_schema_and_a_bad_one_is_refused():
    typed(Answers(GOOD))
    first = submit(AGENT, "which parcel?", result_schema=Parcel, idempotency_key="k")
    assert submit(AGENT, "which parcel?", result_schema=Parcel, idempotency_key="k").id == first.id
    for other in (City, None):
        with pytest.raises(errors.IdempotencyMismatchError):
            submit(AGENT, "which parcel?", result_schema=other, idempotency_key="k")
    for bad, words in ((5, "result_schema 5 cannot be used"), ({"a": "x" * 70_000}, "result_schema has 7.* bytes")):
        with pytest.raises(errors.InvalidInputError, match=words):
            submit(AGENT, "which parcel?", result_schema=bad)
