"""ReActAgent(result_model=…): which answers end a run, and what becomes of the others."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from ravi_django.agents import tool
from ravi_django.agents.react.result import ResultText
from ravi_django.kernel import (
    BudgetExhaustedError,
    GenerationOptions,
    ModelResponse,
    ResultInvalidError,
    TextBlock,
    TopicId,
)
from tests.support.cases import case, refused
from tests.support.fake_context import FakeContext, call
from tests.support.react import TOOLS, Model, agent, ask, remembering, results_in, run, stored


class City(BaseModel):
    name: str
    people: int


GOOD = {"name": "Bern", "people": 140000}
BAD = {"name": "Bern", "people": "many"}
TEXT = '{"name":"Bern","people":140000}'
BAD_TEXT = json.dumps(BAD)


class Held(Model):
    """Of a provider that holds answers to a schema."""

    asked = 0

    async def supports_schema(self) -> bool:
        self.asked += 1
        return True


def final(call_id: str = "c1", **arguments: Any) -> Any:
    return call("final_result", call_id, **arguments)


def typed(**options: Any) -> Any:
    return agent(**{"result_model": City, **options})


async def test_what_the_model_is_offered() -> None:
    # without response formats the final tool is shown beside the others
    ctx = FakeContext([final(**GOOD)])
    await run(typed(), ctx)
    (options,) = ctx.options
    assert [spec["name"] for spec in options.tool_schemas] == ["add", "echo", "pay", "whoami", "final_result"]
    assert options.tool_schemas[-1]["parameters"]["required"] == ["name", "people"]
    assert options.response_format is None
    # with response formats the schema is sent and no tool is added
    ctx = FakeContext([TEXT])
    await run(typed(model=Held()), ctx)
    (options,) = ctx.options
    assert [spec["name"] for spec in options.tool_schemas] == ["add", "echo", "pay", "whoami"]
    assert options.response_format["json_schema"]["name"] == "City"
    assert options.response_format["json_schema"]["strict"] is True
    # the model is asked once a run and options are built once
    model = Held()
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), TEXT], TOOLS)
    await run(typed(model=model), ctx)
    assert (model.asked, len({id(options) for options in ctx.options})) == (1, 1)
    # an untyped agent asks the model nothing and shows no final tool
    model = Held()
    ctx = FakeContext(["hi"])
    assert await run(agent(model=model), ctx) == "hi"
    assert model.asked == 0
    assert [spec["name"] for spec in ctx.options[0].tool_schemas] == ["add", "echo", "pay", "whoami"]


async def test_a_result_beside_calls_that_went_well_ends_the_run() -> None:
    # a users tool keeps its name
    @tool
    def final_result(place: str) -> str:
        return f"placed {place}"

    ctx = FakeContext([final(place="second"), call("final_result_2", "c2", **GOOD)], [final_result])
    output = await run(typed(tools=[final_result]), ctx)
    assert (results_in(ctx.views[1]), output) == ([("c1", "placed second", False)], TEXT)
    # the first choice and own options go with both forms
    for model, answer in ((Model(), final(**GOOD)), (Held(), TEXT)):
        ctx = FakeContext([call("add", a=1, b=1), answer], TOOLS)
        await run(typed(model=model, initial_tool_choice="add", base_options=GenerationOptions(temperature=0)), ctx)
        assert [(options.tool_choice, options.temperature) for options in ctx.options] == [("add", 0), (None, 0)]

    made, history = remembering(result_model=City)
    ctx = FakeContext([[call("add", "c0", a=1, b=2), final("c1", **GOOD), call("echo", "c2", label="x")]], TOOLS)
    assert await run(made, ctx) == TEXT
    assert ctx.effects == [("turn1", "llm"), ("turn1.call0", "add"), ("turn1.call2", "echo")]
    kept = await history.get(made.id, "session-1")
    assert results_in(kept) == [("c0", "3", False), ("c1", "The result was taken.", False), ("c2", "x", False)]
    # the first valid one of several counts
    made, history = remembering(result_model=City, result_retries=0)
    ctx = FakeContext([[final("c0", **BAD), final("c1", **GOOD), final("c2", name="Basel", people=1)]])
    assert await run(made, ctx) == TEXT
    kept = await history.get(made.id, "session-1")
    assert [(call_id, is_error) for call_id, _, is_error in results_in(kept)] == [
        ("c0", True), ("c1", False), ("c2", False),
    ]  # fmt: skip


async def test_where_a_result_goes() -> None:
    # whichever way it comes a valid answer is the output
    for model in [Model(), Held()]:
        for answer in [final(**GOOD), TEXT, f"Here:\n```json\n{TEXT}\n```"]:
            with case(model, answer):
                # What was recorded counts, not what the model is offered now.
                ctx = FakeContext([answer])
                asked = ask()
                output = await run(typed(model=model), ctx, asked)
                assert output == TEXT
                assert isinstance(output, ResultText)
                assert ctx.replies == [(asked, TEXT)]
    # who asked gets the value and so does the topic
    asked, told = FakeContext([final(**GOOD)]), FakeContext([TEXT])
    await run(typed(), asked, ask(reply_to="run-0"))
    await run(typed(output_topic=TopicId("cities")), told)
    assert (asked.replies[0][1], told.emitted) == (GOOD, [(TopicId("cities"), GOOD)])

    # a result of one text stays json
    class Note(BaseModel):
        text: str

    ctx = FakeContext(['{"text": "hi"}'])
    assert await run(agent(result_model=Note), ctx) == '{"text":"hi"}'
    assert ctx.replies[0][1] == '{"text":"hi"}'
    # every message of an inbox has its result
    ctx = FakeContext([BAD_TEXT, final(**GOOD), "no", "no", TEXT])
    output = await run(typed(result_retries=2), ctx, ask("1"), ask("2"))
    assert (output, [reply for _, reply in ctx.replies]) == (TEXT, [TEXT, TEXT])


async def test_what_is_said_of_an_invalid_answer() -> None:
    # an invalid call gets the error as its result
    ctx = FakeContext([final("c1", **BAD), final("c2", **GOOD)])
    assert await run(typed(), ctx) == TEXT
    ((call_id, text, is_error),) = results_in(ctx.views[1])
    assert (call_id, is_error) == ("c1", True)
    assert "people: Input should be a valid integer" in text
    # an invalid text gets the error as the users words
    ctx = FakeContext(["Bern, I think.", TEXT])
    assert await run(typed(), ctx) == TEXT
    said = ctx.views[1][-1]
    assert said.role == "user"
    assert "not a valid result: it is not JSON" in said.text
    # an answer that was cut off is said to be
    cut = ModelResponse.of([TextBlock(text='{"name": "Be')], finish_reason="length")
    ctx = FakeContext([cut, TEXT])
    await run(typed(), ctx)
    assert "cut off: it got too long" in ctx.views[1][-1].text


@pytest.mark.parametrize("bad", [final(**BAD), "no", BAD_TEXT])
@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (2, 3)])
async def test_after_so_many_more_tries_the_run_fails_and_keeps_its_turns(bad: Any, retries: int, calls: int) -> None:
    made, history = remembering(result_model=City, result_retries=retries)
    ctx = FakeContext([bad])
    with pytest.raises(ResultInvalidError, match=r"no valid City: .*result_retries"):
        await run(made, ctx)
    assert len(ctx.views) == calls
    kept = await history.get(made.id, "session-1")
    assert (sum(turn.role == "assistant" for turn in kept), ctx.replies) == (calls, [])


async def test_tries_and_iterations_are_counted_apart() -> None:
    # valid tool turns in between give no tries back
    add = call("add", a=1, b=1)
    ctx = FakeContext(["no", add, "no", add, "no"], TOOLS)
    with pytest.raises(ResultInvalidError):
        await run(typed(result_retries=2), ctx)
    assert len(ctx.views) == 5
    # the cap on iterations holds all the same
    ctx = FakeContext(["no"])
    with pytest.raises(BudgetExhaustedError, match="the limit of"):
        await run(typed(max_iterations=2), ctx)
    assert len(ctx.views) == 2


async def test_a_result_beside_a_call_that_failed_is_asked_for_again() -> None:
    ctx = FakeContext([[call("add", "c0", a=1), final("c1", **GOOD)], final("c2", **GOOD)], TOOLS)
    assert await run(typed(result_retries=0), ctx) == TEXT  # it is no invalid one: no try is used
    (_, failed, _), (call_id, text, is_error) = results_in(ctx.views[1])
    assert "'b' is missing" in failed
    assert (call_id, is_error) == ("c1", True)
    assert "another tool that you called in the same turn failed" in text


async def test_the_result_is_in_the_conversation_and_no_call_dangles() -> None:
    made, history = remembering(result_model=City)
    await run(made, FakeContext([final(**GOOD)], run_id="r1"), ask("a city"))
    assert await stored(history) == ["user:a city", "assistant:", "tool:The result was taken.", f"assistant:{TEXT}"]
    ctx = FakeContext([TEXT], run_id="r2")
    await run(made, ctx, ask("another"))
    assert results_in(ctx.views[0]) == [("c1", "The result was taken.", False)]
    assert [turn.text for turn in ctx.views[0]][-2:] == [TEXT, "another"]
    # after the last invalid call the next run finds it answered
    made, _ = remembering(result_model=City, result_retries=0)
    with pytest.raises(ResultInvalidError):
        await run(made, FakeContext([final(**BAD)], run_id="r1"))
    ctx = FakeContext([TEXT], run_id="r2")
    await run(made, ctx)
    ((_, text, is_error),) = results_in(ctx.views[0])
    assert text.startswith("The result is not valid") and is_error
    # a replay says the same
    script = [final("c1", **BAD), "no", final("c2", **GOOD)]
    first, again = FakeContext(script), FakeContext(script)
    await run(typed(), first)
    await run(typed(model=Held()), again)
    assert [[turn.to_json() for turn in view] for view in again.views] == [
        [turn.to_json() for turn in view] for view in first.views
    ]


async def test_the_spec_has_the_schema() -> None:
    assert "result_schema" not in agent().spec()
    spec = json.loads(json.dumps(typed(result_retries=1).spec()))
    assert (spec["result_schema"]["properties"]["people"], spec["result_retries"]) == ({"type": "integer"}, 1)
    assert "final_result" not in [shown["name"] for shown in spec["tools"]]

    for options, field in [
        ({"result_retries": -1}, "result_retries"),
        ({"result_retries": True}, "result_retries"),
        ({"result_model": "City"}, "result_model"),
    ]:
        with case(options, field), refused(field):
            typed(**options)
