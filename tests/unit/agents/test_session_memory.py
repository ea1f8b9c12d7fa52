"""A conversation comes back from cold storage once."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ravi_django.agents import load_session_memory, rebuild_messages_from_steps
from ravi_django.agents.memory.history import InMemoryHistoryProvider
from ravi_django.agents.memory.transcript import INTERRUPTED
from ravi_django.kernel import ChatMessage, ImageBlock, InvalidInputError, Role, TextBlock, ToolResultBlock
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY
from tests.support.cases import case, refused
from tests.support.history_contract import AGENT, HistoryContract, said, texts
from tests.support.world import task_run_id

STEPS = [
    {"kind": "user_message", "content": "my name is Ada"},
    {"kind": "tool_call", "call_id": "a", "tool_name": "add"},
    {"kind": "assistant_message", "content": "Hello Ada."},
]


class Cold:
    def __init__(self, steps: Any = STEPS, fails: int = 0) -> None:
        self.steps, self.fails = steps, fails
        self.asked: list[str] = []

    async def load(self, session_id: str) -> Any:
        self.asked.append(session_id)
        await asyncio.sleep(0)
        if len(self.asked) <= self.fails:
            raise OSError("the archive is away")
        return self.steps

    def load_sync(self, session_id: str) -> Any:
        self.asked.append(session_id)
        return iter(self.steps)


async def test_what_is_there_is_not_asked_for() -> None:
    # a miss is filled from cold storage
    for load in ["load", "load_sync"]:
        with case(load):
            cold = Cold()
            memory = await load_session_memory("s1", getattr(cold, load), agent_id=AGENT)
            turns = await memory.get(AGENT, "s1")
            assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
            assert (turns[-1].text, cold.asked) == ("Hello Ada.", ["s1"])
            assert await memory.count(AGENT, "s2") == await memory.count("react/other", "s1") == 0

    memory, cold = InMemoryHistoryProvider(), Cold()
    await memory.append(AGENT, "s1", ChatMessage.of("user", "hi"))
    assert await load_session_memory("s1", cold.load, memory, agent_id=AGENT) is memory
    assert cold.asked == []
    assert await memory.count(AGENT, "s1") == 1
    # what came while it was read is not added to
    memory = InMemoryHistoryProvider()

    async def load(session_id: str) -> Any:
        await memory.append(AGENT, session_id, ChatMessage.of("user", "hi"))
        return STEPS

    await load_session_memory("s1", load, memory, agent_id=AGENT)
    assert [turn.text for turn in await memory.get(AGENT, "s1")] == ["hi"]
    # rows that cannot be read store nothing
    memory, cold = InMemoryHistoryProvider(), Cold(steps=[*STEPS, {"kind": "nonsense"}])
    with pytest.raises(InvalidInputError, match=r"steps\.3"):
        await load_session_memory("s1", cold.load, memory, agent_id=AGENT)
    assert await memory.count(AGENT, "s1") == 0


async def test_callers_at_once_seed_once() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold()
    await asyncio.gather(*(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(20)))
    assert cold.asked == ["s1"]
    assert await memory.count(AGENT, "s1") == 4
    # nothing in cold storage either ends for all who wait
    memory, cold = InMemoryHistoryProvider(), Cold(steps=None)
    async with asyncio.timeout(10):
        await asyncio.gather(*(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(3)))
    assert cold.asked == ["s1"]
    assert await memory.count(AGENT, "s1") == 0
    # a failure is the callers and the next one tries again
    memory, cold = InMemoryHistoryProvider(), Cold(fails=1)
    first, second = await asyncio.gather(
        *(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(2)), return_exceptions=True
    )
    assert isinstance(first, OSError) and second is memory
    assert (cold.asked, await memory.count(AGENT, "s1")) == (["s1", "s1"], 4)


def test_callers_on_other_loops_seed_once() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold()

    async def together() -> None:
        other = asyncio.to_thread(asyncio.run, load_session_memory("s1", cold.load, memory, agent_id=AGENT))
        await asyncio.gather(load_session_memory("s1", cold.load, memory, agent_id=AGENT), other)

    asyncio.run(together())
    assert (cold.asked, asyncio.run(memory.count(AGENT, "s1"))) == (["s1"], 4)


async def test_a_sync_loader_is_read_in_its_thread() -> None:
    class Lazy:
        """As a QuerySet: reading it on the loop is refused."""

        def __iter__(self) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return iter(STEPS)

        def __bool__(self) -> bool:
            return next(iter(self), None) is not None

    async def load(session_id: str) -> Any:
        return Lazy()

    memory = await load_session_memory("s1", lambda session_id: Lazy(), agent_id=AGENT)
    await load_session_memory("s2", load, memory, agent_id=AGENT)

    assert await memory.count(AGENT, "s1") == await memory.count(AGENT, "s2") == 4


class TestInMemoryHistory(HistoryContract):
    @pytest.fixture
    def provider(self) -> Any:
        return InMemoryHistoryProvider()


def test_loops_in_many_threads_lose_nothing() -> None:
    provider = InMemoryHistoryProvider()

    def store(run: int) -> None:
        async def turns() -> None:
            for index in range(50):
                await provider.append_many(AGENT, "s", [said(f"{run}.{index}")], run_id=str(run), start=index)

        asyncio.run(turns())

    threads = [threading.Thread(target=store, args=(run,)) for run in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    stored = texts(asyncio.run(provider.get(AGENT, "s")))
    assert len(stored) == len(set(stored)) == 400


async def test_whose_turns_are_read() -> None:
    # inside a run its own turns are not read back
    provider = InMemoryHistoryProvider()
    await provider.append(AGENT, "s", said("earlier"))
    await provider.append_many(AGENT, "s", [said("own"), said("own too")], run_id="r1", start=0)

    async def inside(run_id: str) -> list[ChatMessage]:
        task_run_id.set(run_id)
        return await provider.get(AGENT, "s", limit=5)

    assert texts(await asyncio.create_task(inside("r1"))) == ["earlier"]
    assert texts(await asyncio.create_task(inside("r2"))) == ["earlier", "own", "own too"]
    # agent id and its text are the same key
    provider = InMemoryHistoryProvider()
    await provider.append(AGENT, "s", said("a"))
    assert texts(await provider.get(str(AGENT), "s")) == ["a"]


def call(call_id: str, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": call_id, "tool_name": name, "arguments": arguments}


def result(call_id: str, content: Any = "3", **more: Any) -> dict[str, Any]:
    return {"kind": "tool_result", "call_id": call_id, "content": content, **more}


def user(text: str) -> dict[str, Any]:
    return {"kind": "user_message", "content": text}


def assistant(text: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "assistant_message", "content": text, **more}


def shape(messages: list[ChatMessage]) -> list[Any]:
    """(role, text), (role, call ids) or (role, results)."""
    found: list[Any] = []
    for message in messages:
        if message.role is Role.TOOL:
            found.append(("tool", [(block.call_id, block.text) for block in message.content]))
        elif message.tool_calls:
            found.append(("assistant", message.text, [block.call_id for block in message.tool_calls]))
        else:
            found.append((str(message.role.value), message.text))
    return found


def test_a_conversation_is_told_again() -> None:
    steps = [
        {"kind": "system_message", "content": "Be brief."}, user("1 + 2?"), assistant("Let me see."),
        call("c1", a=1, b=2), result("c1"), assistant("3."),
    ]  # fmt: skip
    assert shape(rebuild_messages_from_steps(steps)) == [
        ("system", "Be brief."), ("user", "1 + 2?"), ("assistant", "Let me see.", ["c1"]), ("tool", [("c1", "3")]),
        ("assistant", "3."),
    ]  # fmt: skip
    # calls one after the other are turns of their own
    steps = [call("a"), result("a", "1"), call("b"), result("b", "2")]
    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a"]), ("tool", [("a", "1")]), ("assistant", "", ["b"]), ("tool", [("b", "2")]),
    ]  # fmt: skip
    # a result that came after other words goes to its call
    steps = [call("a"), user("hurry"), result("a", "1")]
    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a"]), ("tool", [("a", "1")]), ("user", "hurry"),
    ]  # fmt: skip
    # a call without a result gets one and a result without a call goes
    steps = [call("a"), call("b"), result("b", "2"), result("zzz"), result("b", "twice"), assistant("done")]
    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a", "b"]), ("tool", [("b", "2")]), ("tool", [("a", INTERRUPTED)]), ("assistant", "done"),
    ]  # fmt: skip
    # ids that are used again in a later turn pair with the latest call
    steps = [call("c0"), result("c0", "1"), assistant("one"), call("c0"), result("c0", "2")]
    assert [one for one in shape(rebuild_messages_from_steps(steps)) if one[0] == "tool"] == [
        ("tool", [("c0", "1")]),
        ("tool", [("c0", "2")]),
    ]
    # parallel calls stay together with their results in order
    for steps in [
        [call("a"), call("b"), result("a", "1"), result("b", "2")],
        [call("a"), call("b"), result("b", "2"), result("a", "1")],
        [assistant(tool_calls=[call("a"), call("b")]), result("b", "2"), result("a", "1")],
        [assistant(tool_calls=[call("a"), call("b")]), call("a"), result("a", "1"), call("b"), result("b", "2")],
        [{"kind": "tool_calls", "calls": [call("a"), call("b")]},
            {"kind": "tool_results", "results": [result("b", "2"), result("a", "1")]}],
    ]:  # fmt: skip
        with case(steps):
            assert shape(rebuild_messages_from_steps([user("go"), *steps])) == [
                ("user", "go"), ("assistant", "", ["a", "b"]), ("tool", [("a", "1"), ("b", "2")]),
            ]  # fmt: skip


def test_rows_of_other_forms_are_read() -> None:
    # rows may be objects with a payload and the names of other tools
    steps = [
        SimpleNamespace(type="user", payload={"text": "hi"}),
        SimpleNamespace(type="assistant", payload={"text": None, "tool_calls": [
            {"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}}]}),
        SimpleNamespace(type="tool_result", data={"tool_call_id": "x", "output": {"sum": 1}, "is_error": True}),
    ]  # fmt: skip
    _, said, answered = rebuild_messages_from_steps(steps)
    assert (said.tool_calls[0].tool_name, said.tool_calls[0].arguments) == ("add", {"a": 1})
    assert answered.content == [ToolResultBlock(call_id="x", content=[TextBlock(text='{"sum":1}')], is_error=True)]
    # content blocks survive and arguments that are no json are kept
    image = {"type": "image", "url": "https://example.org/a.png"}
    steps = [
        {"kind": "user_message", "content": [{"type": "text", "text": "see"}, image]},
        {"kind": "tool_call", "call_id": "a", "tool_name": "add", "arguments": "{oops"},
    ]
    said, called, _ = rebuild_messages_from_steps(steps)
    assert said.content == [TextBlock(text="see"), ImageBlock(url="https://example.org/a.png")]
    assert called.tool_calls[0].arguments == {INVALID_ARGUMENTS_KEY: "{oops"}
    # unknown kinds can be skipped
    assert shape(rebuild_messages_from_steps([{"kind": "progress"}, user("a")], unknown="skip")) == [("user", "a")]
    # a row that cannot be read is named
    for steps, field, words in [
        ([user("a"), {"kind": "progress"}], "steps.1", "'progress'"),
        ([{}], "steps.0", "None"),
        ([{"kind": "tool_call", "call_id": "a"}], "steps.0", "tool_name"),
        ([{"kind": "user", "content": [{"type": "text"}]}], "steps.0", "blocks"),
    ]:
        with case(steps, field, words), refused(field, words):
            rebuild_messages_from_steps(steps)


ROWS = st.lists(
    st.one_of(st.builds(user, st.sampled_from(["a", "b"])), st.builds(assistant, st.sampled_from(["", "said"])),
        st.builds(call, st.sampled_from("xyz")), st.builds(result, st.sampled_from("xyz"))),
    max_size=14
)  # fmt: skip


@given(ROWS)
def test_every_call_has_one_result_right_behind_it_whatever_the_rows(steps: list[Any]) -> None:
    messages = rebuild_messages_from_steps(steps)

    waiting: list[str] = []
    for message in messages:
        assert message.content
        if message.role is Role.TOOL:
            for block in message.content:
                waiting.remove(block.call_id)
        else:
            assert not waiting
            waiting = [block.call_id for block in message.tool_calls]
    assert not waiting
    calls = sum(step["kind"] == "tool_call" for step in steps)
    assert sum(len(message.tool_calls) for message in messages) == calls
