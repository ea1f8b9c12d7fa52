import contextlib
from typing import Any

import pytest

from ravi_django.agents import (
    ContextConfig,
    InMemoryHistoryProvider,
)
from ravi_django.kernel import (
    BudgetExhaustedError,
    ChatMessage,
    LeaseLostError,
)
from tests.support.fake_context import FakeContext, call
from tests.support.react import AGENT, TOOLS, agent, ask, remembering, results_in, run, stored

pytestmark = pytest.mark.asyncio


async def test_a_second_run_sees_the_first_and_another_session_does_not() -> None:
    made, _ = remembering()
    await run(made, FakeContext(["hi"], run_id="r1"), ask("I am Ada"))
    same, other = FakeContext(run_id="r2"), FakeContext(run_id="r3", session_id="session-2")

    await run(made, same, ask("who am I?"))
    await run(made, other, ask("who am I?"))

    assert [turn.text for turn in same.views[0]] == ["I am Ada", "hi", "who am I?"]
    assert [turn.text for turn in other.views[0]] == ["who am I?"]


async def test_turns_are_stored_as_they_emerge() -> None:
    made, history = remembering()
    counts: list[int] = []

    async def count(_: Any) -> None:
        counts.append(await history.count(AGENT, "session-1"))

    ctx = FakeContext([call("echo", label="x"), "done"], TOOLS, on_tool=count)
    await run(made, ctx)

    assert counts == [2]  # the user's and the assistant's, while the tool runs
    assert await history.count(AGENT, "session-1") == 4


async def test_turns_are_kept_when_the_cap_is_reached() -> None:
    made, history = remembering(max_iterations=2)

    with pytest.raises(BudgetExhaustedError):
        await run(made, FakeContext([call("add", a=1, b=1)], TOOLS), ask("task"))

    assert await stored(history) == ["user:task", "assistant:", "tool:2", "assistant:", "tool:2"]


async def test_turns_are_kept_when_the_model_fails() -> None:
    made, history = remembering()

    with pytest.raises(ConnectionError):
        await run(made, FakeContext([call("add", a=1, b=1), ConnectionError("gone")], TOOLS), ask("task"))

    assert await stored(history) == ["user:task", "assistant:", "tool:2"]


async def test_a_replay_shows_the_same_and_stores_nothing_twice() -> None:
    made, history = remembering()
    await run(made, FakeContext(["hi"], run_id="r0"), ask("before"))
    first = FakeContext([call("add", a=1, b=1), ConnectionError("the worker died")], TOOLS, run_id="r1")
    with pytest.raises(ConnectionError):
        await run(made, first, ask("task"))

    again = FakeContext([call("add", a=1, b=1), "2"], TOOLS, run_id="r1")
    await run(made, again, ask("task"))

    assert again.views == first.views
    assert await stored(history) == [
        "user:before",
        "assistant:hi",
        "user:task",
        "assistant:",
        "tool:2",
        "assistant:2",
    ]


async def test_the_next_run_sees_an_interrupted_call_closed() -> None:
    made, _ = remembering()

    async def die(_: str) -> None:
        raise LeaseLostError("r1", 1)

    with pytest.raises(LeaseLostError):
        await run(made, FakeContext([call("add", "c1", a=1, b=1)], TOOLS, run_id="r1", on_tool=die), ask("task"))

    ctx = FakeContext(run_id="r2")
    await run(made, ctx, ask("and?"))

    ((call_id, text, is_error),) = results_in(ctx.views[0])
    assert (call_id, is_error) == ("c1", True)
    assert text.startswith("interrupted")


@pytest.mark.parametrize(
    ("ending", "left"),
    [("done", ["kept"]), (ValueError("x"), ["kept"]), (LeaseLostError("r", 1), ["kept", "hello"])],
)
async def test_turns_of_a_run_alone_go_when_it_ends_but_not_when_it_moves_on(ending: Any, left: list[str]) -> None:
    history = InMemoryHistoryProvider()
    await history.append(AGENT, "session-1", ChatMessage.of("user", "kept"), run_id="r0")
    made = agent(context=ContextConfig(history, retention="run"))

    with contextlib.suppress(ValueError, LeaseLostError):
        await run(made, FakeContext([ending], TOOLS, run_id="r1"))

    assert [turn.text for turn in await history.get(AGENT, "session-1")] == left
