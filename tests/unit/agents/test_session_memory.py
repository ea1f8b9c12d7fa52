"""A conversation comes back from cold storage once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ravi_django.agents import load_session_memory
from ravi_django.agents.history import InMemoryHistoryProvider
from ravi_django.kernel import ChatMessage, InvalidInputError, Role

STEPS = [
    {"kind": "user_message", "content": "my name is Ada"},
    {"kind": "tool_call", "call_id": "a", "tool_name": "add"},
    {"kind": "assistant_message", "content": "Hello Ada."},
]
AGENT = "react/helper"


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


@pytest.mark.parametrize("load", ["load", "load_sync"])
@pytest.mark.asyncio
async def test_a_miss_is_filled_from_cold_storage(load: str) -> None:
    cold = Cold()

    memory = await load_session_memory("s1", getattr(cold, load), agent_id=AGENT)

    turns = await memory.get(AGENT, "s1")
    assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert turns[-1].text == "Hello Ada."
    assert cold.asked == ["s1"]
    assert await memory.count(AGENT, "s2") == await memory.count("react/other", "s1") == 0


@pytest.mark.asyncio
async def test_what_is_there_is_not_asked_for() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold()
    await memory.append(AGENT, "s1", ChatMessage.of("user", "hi"))

    assert await load_session_memory("s1", cold.load, memory, agent_id=AGENT) is memory

    assert cold.asked == []
    assert await memory.count(AGENT, "s1") == 1


@pytest.mark.asyncio
async def test_callers_at_once_seed_once() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold()

    await asyncio.gather(*(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(20)))

    assert cold.asked == ["s1"]
    assert await memory.count(AGENT, "s1") == 4


def test_callers_on_other_loops_seed_once() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold()

    async def together() -> None:
        other = asyncio.to_thread(asyncio.run, load_session_memory("s1", cold.load, memory, agent_id=AGENT))
        await asyncio.gather(load_session_memory("s1", cold.load, memory, agent_id=AGENT), other)

    asyncio.run(together())

    assert cold.asked == ["s1"]
    assert asyncio.run(memory.count(AGENT, "s1")) == 4


@pytest.mark.asyncio
async def test_nothing_in_cold_storage_either_ends_for_all_who_wait() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold(steps=None)

    async with asyncio.timeout(10):
        await asyncio.gather(*(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(3)))

    assert cold.asked == ["s1"]
    assert await memory.count(AGENT, "s1") == 0


@pytest.mark.asyncio
async def test_a_failure_is_the_callers_and_the_next_one_tries_again() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold(fails=1)

    first, second = await asyncio.gather(
        *(load_session_memory("s1", cold.load, memory, agent_id=AGENT) for _ in range(2)), return_exceptions=True
    )

    assert isinstance(first, OSError)
    assert second is memory
    assert (cold.asked, await memory.count(AGENT, "s1")) == (["s1", "s1"], 4)


@pytest.mark.asyncio
async def test_rows_that_cannot_be_read_store_nothing() -> None:
    memory, cold = InMemoryHistoryProvider(), Cold(steps=[*STEPS, {"kind": "nonsense"}])

    with pytest.raises(InvalidInputError, match=r"steps\.3"):
        await load_session_memory("s1", cold.load, memory, agent_id=AGENT)

    assert await memory.count(AGENT, "s1") == 0


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_what_came_while_it_was_read_is_not_added_to() -> None:
    memory = InMemoryHistoryProvider()

    async def load(session_id: str) -> Any:
        await memory.append(AGENT, session_id, ChatMessage.of("user", "hi"))
        return STEPS

    await load_session_memory("s1", load, memory, agent_id=AGENT)

    assert [turn.text for turn in await memory.get(AGENT, "s1")] == ["hi"]
