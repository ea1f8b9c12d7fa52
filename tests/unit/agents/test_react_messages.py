import asyncio
from typing import Any

import pytest

from ravi_django.agents import (
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
)
from ravi_django.kernel import (
    TopicId,
)
from tests.support.fake_context import FakeContext, call
from tests.support.react import (
    AGENT,
    TOOLS,
    agent,
    ask,
    remembering,
    results_in,
    run,
    stored,
)

pytestmark = pytest.mark.asyncio


async def test_later_messages_of_an_inbox_have_places_of_their_own_and_see_the_earlier_ones() -> None:
    made, history = remembering()
    ctx = FakeContext(["one", call("add", a=1, b=1), "two"], TOOLS)

    output = await run(made, ctx, ask("first"), ask("second"))

    assert output == "two"
    assert [reply for _, reply in ctx.replies] == ["one", "two"]
    assert [place for place, _ in ctx.effects] == ["turn1", "msg2.turn1", "msg2.turn1.call0", "msg2.turn2"]
    assert [turn.text for turn in ctx.views[1]] == ["first", "one", "second"]
    assert await stored(history) == [
        "user:first",
        "assistant:one",
        "user:second",
        "assistant:",
        "tool:2",
        "assistant:two",
    ]


async def test_without_a_session_of_the_context_the_messages_conversation_counts() -> None:
    made, history = remembering()

    await run(made, FakeContext(["a", "b"], session_id=""), ask("1", correlation_id="x"), ask("2", correlation_id="y"))

    assert await stored(history, "x") == ["user:1", "assistant:a"]
    assert await stored(history, "y") == ["user:2", "assistant:b"]


async def test_the_contexts_session_goes_before_the_messages() -> None:
    made, history = remembering()

    await run(made, FakeContext(), ask(correlation_id="x"))

    assert await history.count(AGENT, "x") == 0
    assert await history.count(AGENT, "session-1") == 2


async def test_tools_know_whose_task_they_are() -> None:
    ctx = FakeContext([call("whoami"), "done"], TOOLS)

    await run(agent(name="Helper"), ctx, ask(metadata={"parent_agent_id": "orchestrator/team"}))

    assert results_in(ctx.views[1])[0][1] == "react/helper Helper session-1 orchestrator/team"


async def test_answers_go_to_who_asked_or_to_the_topic() -> None:
    made = agent(output_topic=TopicId("news", "sport"))
    asked, told = FakeContext(["a"]), FakeContext(["b"])

    await run(made, asked, ask(reply_to="run-0"))
    output = await run(made, told)

    assert asked.replies[0][1] == {"text": "a"}
    assert (told.emitted, output) == ([(TopicId("news", "sport"), {"text": "b"})], "b")


async def test_many_runs_of_one_agent_do_not_mix() -> None:
    made, history = remembering(system_instructions="Be brief.")

    async def one(number: int) -> FakeContext:
        ctx = FakeContext(
            [call("echo", label=str(number)), f"answer {number}"],
            TOOLS,
            run_id=f"r{number}",
            session_id=f"s{number}",
            on_tool=lambda _: asyncio.sleep(0),
        )
        assert await run(made, ctx, ask(f"question {number}")) == f"answer {number}"
        return ctx

    contexts = await asyncio.gather(*(one(number) for number in range(50)))

    for number, ctx in enumerate(contexts):
        assert [turn.text for turn in ctx.views[1]] == ["Be brief.", f"question {number}", "", str(number)]
        assert await history.count(AGENT, f"s{number}") == 4


async def test_the_work_of_a_turn_does_not_grow_with_the_turns() -> None:
    class Counting(InMemoryHistoryProvider):
        turns = 0

        async def append_many(self, agent_id: Any, session_id: Any, messages: Any, **options: Any) -> None:
            self.turns += len(messages)
            await super().append_many(agent_id, session_id, messages, **options)

    history = Counting()
    made = agent(context=ContextConfig(history, SlidingWindowCompaction(10)), max_iterations=200)
    ctx = FakeContext([call("add", a=1, b=1)] * 199 + ["done"], TOOLS)

    await run(made, ctx)

    assert history.turns == 1 + 199 * 2 + 1
    assert {len(view) for view in ctx.views[20:]} <= {9, 10}
