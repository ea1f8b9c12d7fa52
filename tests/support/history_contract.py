"""What every HistoryProvider must do. Subclass it, give a `provider` fixture, and override what makes ids."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from ravi_django.agents.memory.history import HistoryProvider
from ravi_django.agents.memory.transcript import make_summary
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
from tests.support.conversations import calls, results, tool_row, unpaired

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

    async def test_turns_come_back_oldest_first_in_the_order_they_were_stored(self, provider: Any) -> None:
        session = await self.new_session()
        assert await provider.get(AGENT, session) == await provider.window(AGENT, session, limit=5) == []
        assert await provider.count(AGENT, session) == 0
        await provider.append(AGENT, session, said("one"))
        await provider.append_many(AGENT, session, [said("two", Role.ASSISTANT), said("three")])

        turns = await provider.get(AGENT, session)

        assert texts(turns) == ["one", "two", "three"]
        assert [turn.role for turn in turns] == [Role.USER, Role.ASSISTANT, Role.USER]
        assert await provider.count(AGENT, session) == 3

    async def test_blocks_come_back_equal(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        call = ToolUseBlock(tool_name="t", arguments={"a": [1, None, {"b": 2.5}]}, call_id="c1")
        result = ToolResultBlock(call_id="c1", content=[DataBlock(data=None), TextBlock(text="x")], is_error=True)
        unknown = UnknownBlock.model_validate({"type": "hologram", "depth": None})
        turns = [
            ChatMessage(role=Role.ASSISTANT, content=[TextBlock(text="ä\n☃"), call], name="helper"),
            ChatMessage(role=Role.TOOL, content=[result, unknown]),
        ]
        await provider.append_many(AGENT, session, turns)

        assert await provider.get(AGENT, session) == turns

    async def test_limit_takes_the_newest_and_offset_skips_newer_ones(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        await provider.append_many(AGENT, session, [said(str(number)) for number in range(5)])
        for limit, offset, expected in (
            (None, 0, "01234"), (2, 0, "34"), (2, 1, "23"), (2, 4, "0"), (None, 2, "012"), (0, 0, ""), (3, 9, ""),
            (99, 0, "01234"),
        ):  # fmt: skip
            assert "".join(texts(await provider.get(AGENT, session, limit=limit, offset=offset))) == expected

    async def test_a_call_without_a_result_is_read_with_one(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        await provider.append_many(AGENT, session, [said("task"), calls("a", "b"), results("a"), said("and?")])

        turns = await provider.get(AGENT, session)
        await provider.append(AGENT, session, calls("c"))

        assert [turn.role.value for turn in turns] == ["user", "assistant", "tool", "tool", "user"]
        assert turns[3].text.startswith("interrupted")
        assert unpaired(await provider.get(AGENT, session)) == set()
        assert unpaired(await provider.get(AGENT, session, limit=1)) == set()
        assert await provider.count(AGENT, session) == 5  # nothing was stored

    async def test_pages_put_together_are_the_conversation(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        turns = [said("task"), calls("a"), results("a"), calls("b"), results("b"), said("done", Role.ASSISTANT)]
        await provider.append_many(AGENT, session, turns)

        pages = [await provider.get(AGENT, session, limit=2, offset=offset) for offset in (4, 2, 0)]

        assert [turn for page in pages for turn in page] == turns

    async def test_storing_a_runs_turn_again_is_a_no_op(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)
        await provider.append_many(AGENT, session, [said("0"), said("1")], run_id=run, start=0)

        await provider.append_many(AGENT, session, [said("changed"), said("1"), said("2")], run_id=run, start=0)

        assert texts(await provider.get(AGENT, session)) == ["0", "1", "2"]
        assert await provider.count(AGENT, session) == 3
        for _ in range(2):  # without an index they are stored each time
            await provider.append(AGENT, session, said("same"), run_id=run)
        assert await provider.count(AGENT, session) == 5

    async def test_clear_run_forgets_that_run_alone_which_may_store_again(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        first, second = await self.new_run(session), await self.new_run(session)
        for run, text in ((first, "a"), (second, "b")):
            await provider.append_many(AGENT, session, [said(text)], run_id=run, start=0)
        assert texts(await provider.get(AGENT, session)) == ["a", "b"]
        await provider.clear_run(AGENT, session, first)
        assert texts(await provider.get(AGENT, session)) == ["b"]
        await provider.append_many(AGENT, session, [said("c")], run_id=first, start=0)
        assert texts(await provider.get(AGENT, session)) == ["b", "c"]

    async def test_sessions_and_agents_are_apart_and_cleared_alone(self, provider: HistoryProvider) -> None:
        session, other = await self.new_session(), await self.new_session()
        await provider.append(AGENT, session, said("a"))
        assert await provider.get(AGENT, other) == []
        assert await provider.get(AgentId("react", "other"), session) == []
        await provider.append(AGENT, other, said("b"))
        await provider.clear(AGENT, session)
        assert await provider.get(AGENT, session) == []
        assert texts(await provider.get(AGENT, other)) == ["b"]

    # --- window: optional, but both of ours have it

    async def test_a_window_is_the_newest_turns_from_the_users_words_on(self, provider: Any) -> None:
        session = await self.new_session()
        chat = [said(str(n), Role.ASSISTANT if n % 2 else Role.USER) for n in range(10)]
        await provider.append_many(AGENT, session, chat)

        assert await provider.window(AGENT, session, limit=4) == chat[-4:]
        assert await provider.window(AGENT, session, limit=5) == [chat[4], *chat[-5:]]
        assert await provider.window(AGENT, session, limit=10) == chat
        assert await provider.window(AGENT, session, limit=99) == chat
        assert await provider.window(AGENT, session, limit=None) == chat

    async def test_a_window_finds_the_users_words_however_far_back(self, provider: Any) -> None:
        session = await self.new_session()
        row = tool_row(20)
        await provider.append_many(AGENT, session, [said("before"), said("task"), *row])

        assert await provider.window(AGENT, session, limit=6) == [said("task"), *row[-6:]]
        assert await provider.window(AGENT, session, limit=5) == [said("task"), *row[-4:]]  # no result without a call
        other = await self.new_session()
        await provider.append_many(AGENT, other, row)
        assert await provider.window(AGENT, other, limit=4) == row[-4:], "without a user it is what there is"

    async def test_a_window_begins_with_the_last_summary_and_the_turns_that_it_leaves(self, provider: Any) -> None:
        session = await self.new_session()
        chat = [said(str(n), Role.ASSISTANT if n % 2 else Role.USER) for n in range(12)]
        older, newer = make_summary("older", 2), make_summary("newer", 2)
        await provider.append_many(AGENT, session, [*chat[:4], older, *chat[4:8], newer, *chat[8:]])

        assert await provider.window(AGENT, session, limit=50) == [newer, *chat[6:]]
        assert await provider.window(AGENT, session, limit=None) == [newer, *chat[6:]]
        assert await provider.window(AGENT, session, limit=2) == [newer, *chat[10:]]
        assert await provider.window(AGENT, session, limit=1) == [newer, chat[10], chat[11]]
        session, row, summary = await self.new_session(), tool_row(3), make_summary("s", 3)
        await provider.append_many(AGENT, session, [said("task"), *row, summary, said("and?")])
        window = await provider.window(AGENT, session, limit=50)
        assert window == [summary, said("task"), *row[-2:], said("and?")], "no result without its call"

    async def test_a_summary_is_no_turn(self, provider: Any) -> None:
        session = await self.new_session()
        run = await self.new_run(session)
        await provider.append_many(AGENT, session, [said("a"), make_summary("s", 0), said("b")], run_id=run, start=0)

        assert texts(await provider.get(AGENT, session)) == ["a", "b"]
        assert texts(await provider.get(AGENT, session, limit=1, offset=1)) == ["a"]
        assert await provider.count(AGENT, session) == 2

        await provider.clear_run(AGENT, session, run)

        assert await provider.window(AGENT, session, limit=9) == []

    async def test_a_window_has_no_call_without_a_result(self, provider: Any) -> None:
        session = await self.new_session()
        await provider.append_many(AGENT, session, [said("task"), calls("a"), said("and?"), calls("b")])

        window = await provider.window(AGENT, session, limit=9)

        assert [turn.role.value for turn in window] == ["user", "assistant", "tool", "user", "assistant", "tool"]
        assert unpaired(window) == set()

    async def test_concurrent_appends_lose_and_double_nothing(self, provider: HistoryProvider) -> None:
        session = await self.new_session()
        run = await self.new_run(session)

        async def append(number: int) -> None:
            await provider.append_many(AGENT, session, [said(str(number))], run_id=run, start=number)

        await asyncio.gather(*(append(number) for number in list(range(10)) * 2))

        assert sorted(texts(await provider.get(AGENT, session)), key=int) == [str(number) for number in range(10)]
