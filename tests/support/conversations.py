"""Conversations for the tests of what a model is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from hypothesis import strategies as st

from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage, Role, TextBlock, ToolResultBlock, ToolUseBlock


def user(text: str = "u") -> ChatMessage:
    return ChatMessage.of(Role.USER, text)


def assistant(text: str = "a") -> ChatMessage:
    return ChatMessage.of(Role.ASSISTANT, text)


def system(text: str = "s") -> ChatMessage:
    return ChatMessage.of(Role.SYSTEM, text)


def calls(*ids: str) -> ChatMessage:
    return ChatMessage(role=Role.ASSISTANT, content=[ToolUseBlock(tool_name="t", call_id=call_id) for call_id in ids])


def results(*ids: str, text: str = "", is_error: bool = False) -> ChatMessage:
    """Results of calls; each says its call's id, or `text`."""
    content = [ToolResultBlock(call_id=i, content=[TextBlock(text=text or i)], is_error=is_error) for i in ids]
    return ChatMessage(role=Role.TOOL, content=content)  # type: ignore[arg-type]


def tool_row(count: int, text: str = "") -> list[ChatMessage]:
    """That many calls with their results, one after the other."""
    return [message for n in range(count) for message in (calls(f"c{n}"), results(f"c{n}", text=text))]


def add_turns(agent_id: AgentId | str, session: Any, *texts: str) -> None:
    """A person's words in the database, from outside of any run, as a view would write them."""

    async def append() -> None:
        await DjangoHistoryProvider().append_many(agent_id, str(session.id), [user(text) for text in texts])
        await sync_to_async(connections.close_all)()

    asyncio.run(append())


def unpaired(view: Sequence[ChatMessage], given: Sequence[ChatMessage] = ()) -> set[str]:
    """Calls without a result and results without a call; what had no result in `given` does not count."""
    asked = {call.call_id for message in view for call in message.tool_calls}
    answered = _answered(view)
    return asked ^ answered if not given else (asked & _answered(given)) ^ answered


def _answered(messages: Sequence[ChatMessage]) -> set[str]:
    return {block.call_id for message in messages for block in message.content if isinstance(block, ToolResultBlock)}


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    """System messages, then turns of a user; each is a row of tool calls and an answer, the last may be cut short."""
    messages = [system(str(number)) for number in range(draw(st.integers(0, 2)))]
    number = 0
    for _ in range(draw(st.integers(0, 6))):
        messages.append(user(f"u{number}"))
        for _ in range(draw(st.integers(0, 5))):
            ids = [f"c{number}-{i}" for i in range(draw(st.integers(1, 3)))]
            number += 1
            messages.append(calls(*ids))
            cut = draw(st.integers(0, len(ids) - 1))  # results may come as two messages
            messages += [results(*ids[:cut]), results(*ids[cut:])] if cut else [results(*ids)]
        number += 1
        messages.append(assistant(f"a{number}"))
    return messages[: len(messages) - draw(st.booleans())] if messages else messages
