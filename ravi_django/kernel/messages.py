"""The envelope that agents send each other, and its payloads."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_serializer
from pydantic_core import to_json

from ravi_django.kernel.chat import ChatMessage, Usage
from ravi_django.kernel.content import ContentBlock, text_of
from ravi_django.kernel.identity import AgentId, TopicId


class StreamEvent(BaseModel):
    """An event of a run tree. `depth` and the parent let a UI draw the tree."""

    model_config = ConfigDict(frozen=True)

    seq: int = 0  # rises over the whole run tree; 0 until the publisher has numbered it
    agent_id: AgentId | None = None  # the agent that it is about
    run_id: str | None = None  # its run
    parent_id: AgentId | None = None  # the agent of the run that started this one
    parent_run_id: str | None = None  # the run that started it; None at the root
    depth: int = 0  # 0 at the root of the tree, 1 for its children
    ts: datetime | None = None  # when it happened


class TextDelta(StreamEvent):
    """A piece of the model's answer, while it streams."""

    type: Literal["text.delta"] = "text.delta"
    text: str  # the next part
    call: str = ""  # the model call, in a run's stream
    attempt: str = ""  # a new one of the same call replaces the text of the earlier one


class ReasoningDelta(StreamEvent):
    """A piece of the model's thoughts, while it streams. Fields as in TextDelta."""

    type: Literal["reasoning.delta"] = "reasoning.delta"
    text: str  # the next part
    call: str = ""  # as in TextDelta
    attempt: str = ""  # as in TextDelta


class ArgumentsDelta(StreamEvent):
    """A piece of the JSON of a call's arguments, in a run's stream while the model writes it."""

    type: Literal["arguments.delta"] = "arguments.delta"
    text: str  # the next part
    tool: str  # the tool's name
    call_id: str  # that of the ToolUseBlock
    call: str = ""  # as in TextDelta
    attempt: str = ""  # as in TextDelta


class ToolCallDelta(StreamEvent):
    """A piece of a tool call that the model is writing. The call itself comes whole, with the response."""

    type: Literal["tool_call.delta"] = "tool_call.delta"
    index: int  # the call's place in the answer, from 0
    call_id: str = ""  # of the provider; empty until it is known
    name: str = ""  # of the tool; empty until it is known
    arguments: str = ""  # the next fragment of their JSON


class StreamAlive(StreamEvent):
    """The model is at work, and has nothing to show yet: it counts against silence alone."""

    type: Literal["stream.alive"] = "stream.alive"
    usage: Usage | None = None  # of the request so far, when the provider reports it
    cost: float | None = None  # US dollars, of the usage; None: by the model's prices
    is_whole: bool = False  # the usage came with the end of the answer, or after it


class StreamRestart(StreamEvent):
    """The text so far is void: another model answers from the beginning."""

    type: Literal["stream.restart"] = "stream.restart"
    model: str  # the next model
    error_type: str  # the error of the model before


class CompletionEvent(StreamEvent):
    """The end of one model call."""

    type: Literal["completion"] = "completion"
    content: list[ContentBlock] = Field(default_factory=list)  # the whole answer, in place of its deltas
    usage: Usage = Field(default_factory=Usage)  # tokens of the call
    call: str = ""  # as in TextDelta
    cost: float | None = None  # US dollars; None: unknown


class StreamDone(StreamEvent):
    """The end of the tree's stream; `reason` is the root's final status."""

    type: Literal["stream.done"] = "stream.done"
    reason: str


class AgentStep(StrEnum):
    """The kinds of an AgentProgress: the step that an agent has reached."""

    STARTED = "started"
    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    HANDOFF = "handoff"
    PAUSED = "paused"
    DONE = "done"
    ERROR = "error"


class AgentProgress(StreamEvent):
    """One step of an agent."""

    type: Literal["progress"] = "progress"
    step: AgentStep  # the step that was reached
    content: Any = None  # JSON; what the step is about


class PayloadBase(BaseModel):
    """Subclass it with `kind: Literal["…"]` and pass the class to `register_payload_type`."""

    model_config = ConfigDict(frozen=True)

    kind: str  # names the class in JSON


class ChatPayload(PayloadBase):
    """A chat message: the usual payload of a person's message and of an answer."""

    kind: Literal["chat"] = "chat"
    message: ChatMessage  # its text and media


class DataPayload(PayloadBase):
    """A JSON object, from a program or another agent."""

    kind: Literal["data"] = "data"
    data: dict[str, Any] = Field(default_factory=dict)  # any JSON object


class ControlPayload(PayloadBase):
    """A lifecycle signal: `abort` cancels, any other name is a signal."""

    kind: Literal["control"] = "control"
    signal: str  # its name
    data: dict[str, Any] = Field(default_factory=dict)  # JSON of the signal


class ProgressPayload(PayloadBase):
    """Sent to the parent (`ctx.send`), it is a `progress` frame of the tree's stream and no message."""

    kind: Literal["progress"] = "progress"
    progress: AgentProgress


class ToolCallRequest(PayloadBase):
    """A tool call as a message: the tool's name, its arguments and the call's id."""

    kind: Literal["tool_call"] = "tool_call"
    name: str  # of the tool
    arguments: dict[str, Any] = Field(default_factory=dict)  # JSON, by parameter
    call_id: str  # that of the result


class ToolExecutionResult(PayloadBase):
    """What `ctx.tool` returns: content blocks, readable as `.text`, `.status` is "ok" or "error"."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: str = ""  # that of the call
    content: list[ContentBlock] = Field(default_factory=list)  # what the model reads
    is_error: bool = False  # whether the call failed or was refused
    board: dict[str, Any] | None = None  # the board task that the call changed; people see it, models do not
    hidden: bool = Field(default=False, exclude=True)  # from the run's owner; staff may read it
    finish: Any = Field(default=None, exclude=True, repr=False)  # FinishAgentResult: the agent to hand over to

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        return text_of(self.content)

    @property
    def status(self) -> str:
        """`ok` or `error`."""
        return "error" if self.is_error else "ok"


class UnknownPayload(PayloadBase):
    """A payload of a kind that this process does not know, stored unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @model_serializer
    def _as_it_came(self) -> dict[str, Any]:
        return {"kind": self.kind, **(self.model_extra or {})}  # nulls too: `exclude_none` is for known fields


_payload_types: dict[str, type[PayloadBase]] = {}


def register_payload_type(cls: type[PayloadBase]) -> type[PayloadBase]:
    """Make a payload kind readable from JSON. Call once, at import.

    Raises TypeError unless `cls` is a PayloadBase with `kind: Literal["…"]`, ValueError when the kind is taken.
    """
    if not (isinstance(cls, type) and issubclass(cls, PayloadBase)):
        raise TypeError(f"{cls!r} must subclass PayloadBase")
    kinds = get_args(cls.model_fields["kind"].annotation)
    if len(kinds) != 1 or not isinstance(kinds[0], str):
        raise TypeError(f'{cls.__name__} needs a field kind: Literal["…"] = "…"')
    known = _payload_types.setdefault(kinds[0], cls)
    if known is not cls and known.__qualname__ != cls.__qualname__:
        raise ValueError(f"payload kind {kinds[0]!r} belongs to {known.__name__} already")
    _payload_types[kinds[0]] = cls
    return cls


for _cls in (ChatPayload, DataPayload, ControlPayload, ProgressPayload, ToolCallRequest, ToolExecutionResult):
    register_payload_type(_cls)


def _read_payload(value: Any) -> Any:
    if isinstance(value, dict):
        return _payload_types.get(value.get("kind", ""), UnknownPayload).model_validate(value)
    return value


Payload = Annotated[SerializeAsAny[PayloadBase], BeforeValidator(_read_payload)]


def _without_defaults(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None and value != {}}


class Message(BaseModel):
    """Carries a payload to one agent or to the followers of a topic."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: uuid4().hex)  # unique; a repeated id is the same message
    target: TopicId | AgentId  # an agent, or a topic with its followers
    sender: AgentId | None = None  # None: sent by the system or a person
    payload: Payload  # the content, by its `kind`
    correlation_id: str = ""  # one conversation; "": that of the sender's tree
    causation_id: str | None = None  # the message that led to this one
    reply_to: str | None = None  # the run that asked
    metadata: dict[str, Any] = Field(default_factory=dict)  # JSON of the sender; models do not get it

    def to_json(self) -> dict[str, Any]:
        """JSON without what a message has by default, for a row; reads back equal."""
        body = self.model_dump(mode="json")
        if isinstance(self.payload, ChatPayload):
            body["payload"]["message"] = _without_defaults(body["payload"]["message"])
        return _without_defaults(body)

    @property
    def is_broadcast(self) -> bool:
        """Whether it was published to a topic."""
        return isinstance(self.target, TopicId)

    @property
    def text(self) -> str:
        """The payload as text: chat, a tool's result, or JSON."""
        match self.payload:
            case ChatPayload(message=chat):
                return chat.text
            case ToolExecutionResult(text=text):
                return text
            case DataPayload(data=data):
                return as_text(data)
        return self.payload.model_dump_json(exclude_none=True)


def stream_topic(agent: AgentId) -> TopicId:
    """The topic of an agent's tokens, inside one run tree."""
    return TopicId("agent.stream", agent.key, agent.namespace)


def progress_topic(run_id: str) -> TopicId:
    """The topic of the progress of a whole run tree."""
    return TopicId("agent.progress", run_id)


def plain_text(value: Any) -> str | None:
    """The text of `{"text": …}`; None for any other value."""
    if isinstance(value, dict) and value.keys() == {"text"} and isinstance(value["text"], str):
        return str(value["text"])
    return None


def as_text(value: Any) -> str:
    """An agent's answer as text: a text or `{"text": …}` as it is, any other value as JSON."""
    text = value if isinstance(value, str) else plain_text(value)
    if text is not None:
        return text
    try:
        return to_json(value, fallback=str).decode()
    except ValueError:  # a circular value
        return str(value)
