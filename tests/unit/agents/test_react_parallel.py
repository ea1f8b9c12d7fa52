import asyncio

import pytest

from ravi_django.kernel import (
    DeterminismError,
    LeaseLostError,
    SuspendInterrupt,
)
from tests.support.fake_context import FakeContext, call
from tests.support.react import (
    BOUND_S,
    TOOLS,
    agent,
    results_in,
    run,
)

pytestmark = pytest.mark.asyncio


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
        ("turn1", "llm"),
        ("turn1.call0", "echo"),
        ("turn1.call1", "echo"),
        ("turn1.call2", "echo"),
        ("turn2", "llm"),
    ]
    assert ctx.call_ids == {"turn1.call0": "id-a", "turn1.call1": "id-b", "turn1.call2": "id-c"}


async def test_a_single_call_has_the_same_place() -> None:
    ctx = FakeContext([call("add", "c1", a=1, b=1), "done"], TOOLS)

    await run(agent(), ctx)

    assert ctx.effects[1] == ("turn1.call0", "add")
    assert ctx.call_ids == {"turn1.call0": "c1"}


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

    assert most == 3
    assert len(results_in(ctx.views[1])) == 20


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

    assert ended == ["good"]
    assert [place for place, _ in ctx.effects] == ["turn1", "turn1.call0", "turn1.call1"]


async def test_a_suspension_goes_before_an_error() -> None:
    async def on_tool(label: str) -> None:
        await asyncio.sleep(0)
        raise SuspendInterrupt if label == "waits" else DeterminismError("x")

    labels = ["fails", "waits"]
    ctx = FakeContext([[call("echo", label, label=label) for label in labels]], TOOLS, on_tool=on_tool)

    with pytest.raises(SuspendInterrupt):
        await run(agent(), ctx)


async def test_a_cancelled_task_takes_its_calls_along() -> None:
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
