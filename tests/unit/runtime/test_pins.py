"""Values that are computed once in a run, and instructions made of them."""

import asyncio
from typing import Any

import pytest

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.kernel import BudgetExhaustedError, HookEvent, InvalidInputError
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


def rows(run: Run, kind: str) -> list[JournalEntry]:
    return [entry for entry in journal_of(run) if entry.kind == kind]


def test_what_was_recorded_is_what_a_replay_has(clock, step, ran):
    computed: list[int] = []

    async def pins(ctx: Any, inbox: Any) -> Any:
        def compute() -> int:
            computed.append(len(computed))
            return computed[-1]

        first = await ctx.pin("number", compute)
        await ctx.tool("step", name=str(first))
        again = await ctx.pin("number", compute)
        await ctx.tool("step", name=str(again))
        return [first, again]

    def story(drive: Any) -> Run:
        computed.clear()
        ran.clear()
        code(pins, tools=[step])
        return drive(make_run())

    for run, death in every_death(clock, story):
        number = death.lost("pinned")
        assert (run.status, run.output) == (Status.COMPLETED, f"[{number},{number}]")
        assert computed == list(range(number + 1))
        assert ran[-2:] in ([str(number)] * 2, ["0", "0"])


def test_what_was_done_in_computing_is_not_asked_for_again(clock, step, ran):
    model = ScriptedModel(["said"] * 9)

    async def pins(ctx: Any, inbox: Any) -> Any:
        async def compute() -> str:
            moment = ctx.now()
            await ctx.tool("step", name="looked up")
            said = await ctx.llm([])
            return f"{moment:%Y} {said.text} {ctx.uuid()}"

        before = ctx.uuid()
        text = await ctx.pin("text", compute)
        await ctx.tool("step", name="used")
        with pytest.raises(BudgetExhaustedError):  # of the two calls that it may make one was made in computing
            for _ in range(2):
                await ctx.llm([])
        return [str(before), text, str(ctx.uuid())]

    def story(drive: Any) -> Run:
        model.calls.clear()
        ran.clear()
        code(pins, model=model, tools=[step])
        return drive(make_run(budget={"max_turns": 2}))

    for run, death in every_death(clock, story):
        assert run.status == Status.COMPLETED, run.error
        assert rows(run, "pinned")[0].result in run.output
        assert len(ran) == 2 + death.lost("tool.call")
        assert len(model.calls) == 2  # a request that was lost counts


def test_a_name_fits_the_journal_and_a_value_that_asks_for_itself_is_refused():
    async def story(ctx: Any, inbox: Any) -> None:
        async def compute() -> Any:
            return await ctx.pin("one", compute)

        for name in ("", "x" * 201, 3):
            with pytest.raises(InvalidInputError, match="name must be a string of 1 to 200 characters"):
                await ctx.pin(name, lambda: 1)
        with pytest.raises(InvalidInputError, match="asks for itself"):
            await ctx.pin("one", compute)

    code(story)

    assert drive(make_run()).status == Status.COMPLETED


@pytest.mark.parametrize("value", ["half \ud800 and \0", {"a": (1, 2)}, "x" * 100_000])
def test_the_first_lease_has_what_a_replay_will_have(value, clock, step):
    had: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        had.append(await ctx.pin("odd", lambda: value))
        await ctx.tool("step", name="x")

    code(story, tools=[step])
    run = drive(make_run(), dies="end")
    run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert had[0] == had[1]


def test_instructions_of_a_function_are_those_of_the_first_lease(clock):
    texts = iter(["Be brief.", "Be long."])
    told: list[str] = []
    model = ScriptedModel(["hi"])
    hooks = {event: lambda call: told.append(call.event.value) for event in (HookEvent.STEP_START, HookEvent.FLOW_END)}
    register(ReActAgent("dynamic", model=model, system_instructions=lambda ctx: next(texts), hooks=hooks))

    run = drive(make_run("react/dynamic"), dies="end")
    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "hi")
    assert [call.messages[0].text for call in model.calls] == ["Be brief."]
    assert [entry.result for entry in rows(run, "pinned")] == ["Be brief."]
    assert rows(run, "replay.drift") == []
    assert next(texts) == "Be long."
    assert told.count("step_start") == 1


def test_two_agents_in_one_run_have_instructions_of_their_own():
    model = ScriptedModel(["hi"])
    one, other = (
        ReActAgent(key, model=model, system_instructions=lambda ctx, key=key: f"You are {key}.") for key in ("a", "b")
    )

    async def both(ctx: Any, inbox: Any) -> None:
        await one.run(ctx, inbox)
        await other.run(ctx, inbox)

    code(both, model=model)

    assert drive(make_run()).status == Status.COMPLETED
    assert [call.messages[0].text for call in model.calls] == ["You are a.", "You are b."]


def test_two_tasks_that_pin_one_name_have_one_computation(clock, step):
    model = ScriptedModel(["a", "b", "c"])

    async def pins(ctx: Any, inbox: Any) -> Any:
        async def compute() -> str:
            return (await ctx.llm([])).text

        both = await asyncio.gather(*(ctx.pin("one", compute) for _ in range(2)))
        await ctx.tool("step", name="after")
        return both

    def story(drive: Any) -> Run:
        model.calls.clear()
        code(pins, model=model, tools=[step])
        return drive(make_run())

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, '["a","a"]'), run.error
        assert 1 <= len(model.calls) <= 1 + death.lost("llm.call")
        assert len(rows(run, "pinned")) == 1


def test_a_computation_that_has_raised_raises_again_in_a_replay(clock, step, ran):
    async def pins(ctx: Any, inbox: Any) -> Any:
        async def compute() -> int:
            said = await ctx.tool("step", name="look")
            if not ran_twice:
                ran_twice.append(said)
                raise KeyError("gone")
            return 7

        ran_twice: list[Any] = []
        with pytest.raises(KeyError):
            await ctx.pin("number", compute)
        await ctx.tool("step", name="between")
        found = await ctx.pin("number", compute)
        await ctx.tool("step", name="after")
        return found

    def story(drive: Any) -> Run:
        ran.clear()
        code(pins, tools=[step])
        return drive(make_run())

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "7"), run.error
        assert list(dict.fromkeys(ran)) == ["look", "between", "after"]
        assert len(ran) == 4 + death.lost("tool.call")


def test_rendered_instructions_are_not_for_who_talks_to_the_agent(client, ada):
    register(
        ReActAgent("secretive", model=ScriptedModel(["hi"]), system_instructions=lambda ctx: "The code is zanzibar.")
    )
    run = drive(make_run("react/secretive", owner=ada))
    client.force_login(ada)

    shown = client.get(f"/ravi/runs/{run.id}/journal/")

    assert rows(run, "pinned")[0].result == "The code is zanzibar."
    assert shown.status_code == 200
    assert "pinned" in [entry["kind"] for entry in shown.json()["results"]]
    assert "zanzibar" not in shown.content.decode()
