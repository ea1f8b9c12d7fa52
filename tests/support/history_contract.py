"""What every HistoryProvider must do. Subclass it, give a `provider` fixture, and override what makes ids."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from ravi_django.agents.history import HistoryProvider
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    DataBlock,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
)

AGENT = AgentId("react", "contract")


def said(text: str, role: Role = Role.USER) -> ChatMessage:
    return ChatMessage.of(role, text)


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.asyncio
class HistoryContract:
    """Override `provider`, and `new_session` / `new_run` where ids must be rows."""

    @pytest.fixture
    def provider(self) -> Any:
        raise NotImplementedError

    async def new_session(self) -> str:
        return str(uuid4())

    async def new_run(self, session_id: str) -> str:
        return str(uuid4())

    async def test_unknown_session_is_empty(self, provider: HistoryProvider) -> None:
        session = await self.new_session()

        assert await provider.get(AGENT, session) == []
        assert await provider.count(AGENT, session) == 0

    async def test_turns_come_back_oldest_first_in_the_order_they_were_stored(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        await provider.append(AGENT, session, said("one"))
        await provider.append_many(AGENT, session, [said("two", Role.ASSISTANT), said("three")])

        turns = await provider.get(AGENT, session)

        assert texts(turns) == ["one", "two", "three"]
        assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.USER]
        assert await provider.count(AGENT, session) == 3

    async def test_blocks_come_back_equal(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        turns = [
            ChatMessage(
                role=Role.ASSISTANT,
                content=[
                    TextBlock(text="ä\n☃"),
                    ToolUseBlock(tool_name="t", arguments={"a": [1, None, {"b": 2.5}]}, call_id="c1"),
                ],
                name="helper",
            ),
            ChatMessage(
                role=Role.TOOL,
                content=[
                    ToolResultBlock(call_id="c1", content=[DataBlock(data=None), TextBlock(text="x")], is_error=True),
                    UnknownBlock.model_validate({"type": "hologram", "depth": None}),
                ],
            ),
        ]
        await provider.append_many(AGENT, session, turns)

        assert await provider.get(AGENT, session) == turns

    @pytest.mark.parametrize(
        ("limit", "offset", "expected"),
        [
            (None, 0, ["0", "1", "2", "3", "4"]),
            (2, 0, ["3", "4"]),
            (2, 1, ["2", "3"]),
            (2, 4, ["0"]),
            (None, 2, ["0", "1", "2"]),
            (0, 0, []),
            (3, 9, []),
            (99, 0, ["0", "1", "2", "3", "4"]),
        ],
    )
    async def test_limit_takes_the_newest_and_offset_skips_newer_ones(
        self, provider: HistoryProvider, limit: int | None, offset: int, expected: list[str]
    ) -> None:
        session = await self.new_session()
        await provider.append_many(AGENT, session, [said(str(number)) for number in range(5)])

        assert texts(await provider.get(AGENT, session, limit=limit, offset=offset)) == expected

    async def test_storing_a_runs_turn_again_is_a_no_op(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)
        await provider.append_many(AGENT, session, [said("0"), said("1")], run_id=run, start=0)

        await provider.append_many(AGENT, session, [said("changed"), said("1"), said("2")], run_id=run, start=0)

        assert texts(await provider.get(AGENT, session)) == ["0", "1", "2"]
        assert await provider.count(AGENT, session) == 3

    async def test_two_runs_use_the_same_indexes(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        first, second = await self.new_run(session), await self.new_run(session)
        await provider.append_many(AGENT, session, [said("a")], run_id=first, start=0)

        await provider.append_many(AGENT, session, [said("b")], run_id=second, start=0)

        assert texts(await provider.get(AGENT, session)) == ["a", "b"]

    async def test_turns_without_an_index_are_stored_each_time(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)
        await provider.append(AGENT, session, said("same"), run_id=run)

        await provider.append(AGENT, session, said("same"), run_id=run)

        assert await provider.count(AGENT, session) == 2

    async def test_sessions_and_agents_are_apart(self, provider: HistoryProvider) -> None:
        session, other = await self.new_session(), await self.new_session()
        await provider.append(AGENT, session, said("mine"))

        assert await provider.get(AGENT, other) == []
        assert await provider.get(AgentId("react", "other"), session) == []

    async def test_clear_run_forgets_that_run_alone(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        first, second = await self.new_run(session), await self.new_run(session)
        await provider.append_many(AGENT, session, [said("a")], run_id=first, start=0)
        await provider.append_many(AGENT, session, [said("b")], run_id=second, start=0)

        await provider.clear_run(AGENT, session, first)

        assert texts(await provider.get(AGENT, session)) == ["b"]

    async def test_what_was_cleared_can_be_stored_again(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)
        await provider.append_many(AGENT, session, [said("a")], run_id=run, start=0)
        await provider.clear_run(AGENT, session, run)

        await provider.append_many(AGENT, session, [said("b")], run_id=run, start=0)

        assert texts(await provider.get(AGENT, session)) == ["b"]

    async def test_clear_forgets_that_conversation_alone(self, provider: HistoryProvider) -> None:
        session, other = await self.new_session(), await self.new_session()
        await provider.append(AGENT, session, said("a"))
        await provider.append(AGENT, other, said("b"))

        await provider.clear(AGENT, session)

        assert await provider.get(AGENT, session) == []
        assert texts(await provider.get(AGENT, other)) == ["b"]

    async def test_concurrent_appends_lose_and_double_nothing(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)

        await asyncio.gather(
            *(
                provider.append_many(AGENT, session, [said(str(number))], run_id=run, start=number)
                for number in list(range(10)) * 2
            )
        )

        assert sorted(texts(await provider.get(AGENT, session)), key=int) == [str(number) for number in range(10)]
