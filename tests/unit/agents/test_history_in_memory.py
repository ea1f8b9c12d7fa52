import asyncio
import threading
from typing import Any

import pytest

from ravi_django.agents.history import InMemoryHistoryProvider
from ravi_django.kernel import ChatMessage
from tests.support.history_contract import AGENT, HistoryContract, said, texts
from tests.support.world import task_run_id


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


@pytest.mark.asyncio
async def test_inside_a_run_its_own_turns_are_not_read_back() -> None:
    provider = InMemoryHistoryProvider()
    await provider.append(AGENT, "s", said("earlier"))
    await provider.append_many(AGENT, "s", [said("own"), said("own too")], run_id="r1", start=0)

    async def inside(run_id: str) -> list[ChatMessage]:
        task_run_id.set(run_id)
        return await provider.get(AGENT, "s", limit=5)

    assert texts(await asyncio.create_task(inside("r1"))) == ["earlier"]
    assert texts(await asyncio.create_task(inside("r2"))) == ["earlier", "own", "own too"]


@pytest.mark.asyncio
async def test_agent_id_and_its_text_are_the_same_key() -> None:
    provider = InMemoryHistoryProvider()
    await provider.append(AGENT, "s", said("a"))

    assert texts(await provider.get(str(AGENT), "s")) == ["a"]
