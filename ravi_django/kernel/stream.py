"""Events that people see while agents run: tokens and progress, and the two topics that they belong to."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.kernel.chat import Usage
from ravi_django.kernel.content import ContentBlock
from ravi_django.kernel.identity import AgentId, TopicId


class _Streamed(BaseModel):
    """`seq` rises over the whole run tree; 0 until the publisher has numbered it."""

    model_config = ConfigDict(frozen=True)

    seq: int = 0
    agent_id: AgentId | None = None
    run_id: str | None = None


class TextDelta(_Streamed):
    type: Literal["text.delta"] = "text.delta"
    text: str


class ReasoningDelta(_Streamed):
    type: Literal["reasoning.delta"] = "reasoning.delta"
    text: str


class ToolCallDelta(_Streamed):
    """A piece of a tool call that the model is writing. The call itself comes whole, with the response."""

    type: Literal["tool_call.delta"] = "tool_call.delta"
    index: int  # the call's place in the answer, from 0
    call_id: str = ""  # of the provider; empty until it is known
    name: str = ""  # of the tool; empty until it is known
    arguments: str = ""  # the next fragment of their JSON


class StreamRestart(_Streamed):
    """The text so far is void: another model answers from the beginning."""

    type: Literal["stream.restart"] = "stream.restart"
    model: str  # the next model
    error_type: str  # the error of the model before


class CompletionEvent(_Streamed):
    """The end of one model call."""

    type: Literal["completion"] = "completion"
    content: list[ContentBlock] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)


class StreamDone(_Streamed):
    """The end of the tree's stream; `reason` is the root's final status."""

    type: Literal["stream.done"] = "stream.done"
    reason: str


class AgentStep(StrEnum):
    STARTED = "started"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    HANDOFF = "handoff"
    PAUSED = "paused"
    DONE = "done"
    ERROR = "error"


class AgentProgress(_Streamed):
    """One step of an agent; `depth` and `parent_id` let a UI draw the tree."""

    type: Literal["progress"] = "progress"
    step: AgentStep
    parent_id: AgentId | None = None
    depth: int = 0
    content: Any = None  # JSON; what the step is about
    ts: datetime | None = None


def stream_topic(agent: AgentId) -> TopicId:
    """The topic of an agent's tokens, inside one run tree."""
    return TopicId("agent.stream", agent.key, agent.namespace)


def progress_topic(run_id: str) -> TopicId:
    """The topic of the progress of a whole run tree."""
    return TopicId("agent.progress", run_id)
