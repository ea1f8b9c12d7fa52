import asyncio
from typing import Any

import pytest

from ravi_django.kernel import (
    DeterminismError,
    HookCall,
    HookEvent,
    InvalidInputError,
    LeaseLostError,
    SuspendInterrupt,
)
from tests.support.cases import case
from tests.support.fake_context import FakeContext, call
from tests.support.react import BOUND_S, TOOLS, agent, ask, results_in, run


async def test_calls_of_a_turn_run_at_once_and_keep_their_places() -> None:
    arrived: dict[str, asyncio.Event] = {label: asyncio.Event() for label in "abc"}
    finished: list[str] = []

    async def last_first(label: str) -> None:
        arrived[label].set()
        async with asyncio.timeout(BOUND_S):
            for other in "abc":  # nobody goes on before all have started
                await arrived[other].wait()
            while len(finished) < "cba".index(label):
                await asyncio.sleep(0)
        finished.append(label)

    script = [[call("echo", f"id-{label}", label=label) for label in "abc"], "done"]
    ctx = FakeContext(script, TOOLS, on_tool=last_first)

    await run(agent(), ctx)
    assert finished == ["c", "b", "a"]
    assert results_in(ctx.views[1]) == [("id-a", "a", False), ("id-b", "b", False), ("id-c", "c", False)]
    assert ctx.effects == [
        ("turn1", "llm"), ("turn1.call0", "echo"), ("turn1.call1", "echo"), ("turn1.call2", "echo"),
        ("turn2", "llm"),
    ]  # fmt: skip
    assert ctx.call_ids == {"turn1.call0": "id-a", "turn1.call1": "id-b", "turn1.call2": "id-c"}


async def test_at_most_so_many_calls_at_once() -> None:
    running, most = 0, 0

    async def count(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    script = [[call("echo", str(number), label="x") for number in range(20)], "done"]
    ctx = FakeContext(script, TOOLS, on_tool=count)
    await run(agent(max_parallel_tools=3), ctx)
    assert (most, len(results_in(ctx.views[1]))) == (3, 20)
    # a single call has the same place
    ctx = FakeContext([call("add", "c1", a=1, b=1), "done"], TOOLS)
    await run(agent(), ctx)
    assert ctx.effects[1] == ("turn1.call0", "add")
    assert ctx.call_ids == {"turn1.call0": "c1"}


@pytest.mark.parametrize("failure", [DeterminismError("changed"), LeaseLostError("r", 1), SuspendInterrupt()])
async def test_started_calls_end_before_a_failure_is_passed_on_and_no_other_starts(failure: BaseException) -> None:
    ended: list[str] = []

    async def on_tool(label: str) -> None:
        if label == "bad":
            raise failure
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(label)

    labels = ["good", "bad", "late"]
    ctx = FakeContext([[call("echo", label, label=label) for label in labels]], TOOLS, on_tool=on_tool)

    with pytest.raises(type(failure)):
        await run(agent(max_parallel_tools=2), ctx)

    assert (ended, [place for place, _ in ctx.effects]) == (["good"], ["turn1", "turn1.call0", "turn1.call1"])


async def test_a_suspension_goes_before_an_error() -> None:
    async def on_tool(label: str) -> None:
        await asyncio.sleep(0)
        raise SuspendInterrupt if label == "waits" else DeterminismError("x")

    labels = ["fails", "waits"]
    ctx = FakeContext([[call("echo", label, label=label) for label in labels]], TOOLS, on_tool=on_tool)
    with pytest.raises(SuspendInterrupt):
        await run(agent(), ctx)
    # a cancelled task takes its calls along
    started = asyncio.Event()

    async def hang(_: str) -> None:
        started.set()
        await asyncio.Event().wait()

    ctx = FakeContext([[call("echo", label, label=label) for label in "ab"]], TOOLS, on_tool=hang)
    task = asyncio.create_task(run(agent(), ctx))
    await asyncio.wait_for(started.wait(), BOUND_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, BOUND_S)
    assert [other for other in asyncio.all_tasks() if other is not asyncio.current_task()] == []


async def by_user(ctx: Any) -> str:
    return f"You serve {ctx.run_id}."


async def test_instructions_are_made_once_a_run() -> None:
    # a function makes the instructions of a run
    for made in [by_user, lambda ctx: f"You serve {ctx.run_id}."]:
        with case(made):
            helper = agent(system_instructions=made)
            first, second = FakeContext(run_id="r1"), FakeContext(run_id="r2")
            await run(helper, first)
            await run(helper, second)
            assert [ctx.views[0][0].text for ctx in (first, second)] == ["You serve r1.", "You serve r2."]
            assert first.views[0][0].role == "system"

    calls: list[Any] = []
    ctx = FakeContext([call("add", a=1, b=1), "one", "two"], TOOLS)
    await run(agent(system_instructions=lambda ctx: calls.append(ctx) or "Be brief."), ctx, ask(), ask())
    assert calls == [ctx]
    # no text is no system message and anything else is refused
    ctx = FakeContext()
    await run(agent(system_instructions=lambda ctx: ""), ctx)
    assert [turn.role for turn in ctx.views[0]] == ["user"]
    with pytest.raises(InvalidInputError, match="react/helper: instructions must be text, not 7"):
        await run(agent(system_instructions=lambda ctx: 7), FakeContext())
    assert agent(system_instructions=by_user).spec()["system_instructions"].endswith("test_react_parallel.by_user>")


class Told(FakeContext):
    """With the hooks of a context that has them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def hook(self, event: HookEvent, **data: Any) -> None:
        self.told.append((event.value, data))


def listen(_: HookCall) -> None: ...


async def test_hooks_are_told_of_messages_and_steps() -> None:
    ctx = Told([call("add", a=1, b=1), "done"], TOOLS)
    asked = ask()
    await run(agent(hooks={HookEvent.STEP_START: listen}), ctx, asked)
    assert ctx.told == [
        ("flow_start", {"message": asked.id}), ("step_start", {"step": 1}),
        ("step_end", {"step": 1, "tool_calls": 1}), ("step_start", {"step": 2}),
        ("step_end", {"step": 2, "tool_calls": 0}), ("flow_end", {"message": asked.id, "error": None}),
    ]  # fmt: skip
    # without hooks nothing is told
    ctx = Told()
    await run(agent(), ctx)
    assert ctx.told == []
    made = agent(hooks={HookEvent.RUN_END: listen})
    assert made.hooks.listens_to(HookEvent.RUN_END) and not made.middleware.chat
    # the end of a message is told when it fails but not when it moves on
    for ending, told in [(ValueError("x"), ["ValueError"]), (LeaseLostError("r", 1), [])]:
        with case(ending, told):
            ctx = Told([ending])
            with pytest.raises(type(ending)):
                await run(agent(hooks={HookEvent.STEP_START: listen}), ctx)
            assert [data["error"] for event, data in ctx.told if event == "flow_end"] == told
