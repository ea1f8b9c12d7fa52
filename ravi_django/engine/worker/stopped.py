"""The answer that a run's former worker was streaming when it died, for a run that is cancelled before it goes on.

Its code does not run again, so what the person has seen goes into the conversation here.
"""

from __future__ import annotations

from typing import Any

from ravi_django.agents.memory.agent_context import ContextConfig, is_persons
from ravi_django.agents.memory.transcript import STOPPED
from ravi_django.agents.messages import message_to_chat
from ravi_django.engine.journal.entries import NewTurn
from ravi_django.engine.lease.history import DjangoHistoryProvider
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import ChatMessage, HistoryRetention, Role, TextBlock
from ravi_django.live.streams.buffer import get_buffer

PAGE = 500  # frames


def turns_of(agent: Any, recorder: Recorder) -> list[NewTurn]:
    """The shown part of the answer, and before it the message that it answers, if no commit has stored it. Nothing if
    the buffer has no frames any more, or if the agent's conversation is not kept in the site's database."""
    run, memory = recorder.lease.run, getattr(agent, "context", None)
    if not isinstance(memory, ContextConfig) or not isinstance(memory.stores, DjangoHistoryProvider):
        return []
    if memory.retention is not HistoryRetention.PERMANENT or not (text := _streamed_text(recorder)).strip():
        return []
    turns = [(ChatMessage(role=Role.ASSISTANT, name=STOPPED, content=[TextBlock(text=text)]), True)]
    if not run.next_turn:
        turns[:0] = [
            (message_to_chat(message), is_persons(message)) for _, message in recorder.state.mailbox.messages[:1]
        ]
    is_root = run.parent_id is None
    return [NewTurn(run.session_id, str(agent.id), turn, shared=is_shared and is_root) for turn, is_shared in turns]


def _streamed_text(recorder: Recorder) -> str:
    """The text of the last answer that began, unless it was recorded."""
    run, text, last, after = recorder.lease.run, "", ("", ""), 0
    while frames := get_buffer().read(str(run.tree_id), after, PAGE):
        after = frames[-1]["seq"]
        for frame in frames:
            if frame["run"] == str(run.id) and frame["type"] == "text.delta":
                answer = frame["call"], frame["attempt"]
                text, last = (text if answer == last else "") + frame["text"], answer
    return "" if recorder.journal.find(last[0]) else text
