"""The events of a run's stream that are no agent's own, and `event_of`, which reads the frames of REST and sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError

from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.messages import (
    CompletionEvent,
    StreamEvent,
)


class RequestOpened(StreamEvent):
    """The run waits for a person."""

    type: Literal["request"] = "request"
    id: str  # the UUID of the request
    kind: str  # question, approval, input, uncertain or client_tool
    text: str = ""  # the question
    tool: str = ""  # the name of the tool that waits; empty for a question
    arguments: dict[str, Any] | None = None  # of the call; None: hidden, or a question
    choices: list[Any] | None = None  # texts to choose from; None: any text
    questions: list[Any] | None = None  # several questions, each with its key; None: a single one
    free_text: bool = True  # whether a text that is no choice is an answer
    risk: str = ""  # of the call: safe, high or critical
    context: str = ""  # background for the person
    call_id: str = ""  # of client_tool: the model's id of the call
    to: str = ""  # the address of those who may answer; empty: the owner
    version: int = 0  # rises with each change; an answer may name it


class RequestClosed(StreamEvent):
    """A request to people was answered or closed. `answered_by`: a user, if a person answered."""

    type: Literal["request.closed"] = "request.closed"
    id: str = ""  # the UUID of the request
    status: str  # answered, expired, cancelled or withdrawn
    answered_by: str | None = None


class StateChanged(StreamEvent):
    """The agent has set the state that it shares with the page."""

    type: Literal["state"] = "state"
    state: dict[str, Any] = Field(default_factory=dict)


class BoardChanged(StreamEvent):
    """A task of the team's board was added or changed. `task`: the task as JSON."""

    type: Literal["board"] = "board"
    task: dict[str, Any]


class ErrorEvent(StreamEvent):
    """The server could not do what the client asked for. `code` is for programs, `message` for people."""

    type: Literal["error"] = "error"
    code: str
    message: str


class StreamGap(StreamEvent):
    """Live text that was lost. In a run's stream with what its journal has of it."""

    type: Literal["stream.gap"] = "stream.gap"
    first: int = 0  # the missing numbers
    last: int = 0  # the last of them
    status: str = ""  # of the root
    output: str | None = None  # of the root, if it has ended
    events: list[SerializeAsAny[StreamEvent]] = Field(default_factory=list)  # what the journal has of the gap


_KINDS = {kind.model_fields["type"].default: kind for kind in StreamEvent.__subclasses__()}
_NAMES = {"agent": "agent_id", "run": "run_id", "parent_agent": "parent_id", "parent": "parent_run_id"}


def event_of(frame: Mapping[str, Any]) -> StreamEvent:
    """The event of a frame of REST, a socket or an event stream. A hidden value is None, or empty where the event has a
    value always. Raises InvalidInputError for anything else, as the sockets' `accepted`."""
    kind = _KINDS.get(str(frame.get("type"))) if isinstance(frame, Mapping) else None
    if kind is None or "run" not in frame:
        known = ", ".join(_KINDS)
        raise InvalidInputError(f"not a frame of a run's stream: {frame!r:.200}. It has a run, and a type: {known}")
    values = {_NAMES.get(name, name): value for name, value in frame.items() if value is not None}
    try:
        if kind is CompletionEvent:
            values["content"] = [
                {name: value for name, value in block.items() if value is not None or not block.get("hidden")}
                for block in values.get("content", ())
            ]
        elif kind is StreamGap:
            snapshot = dict(values.get("snapshot", {}))
            frames = snapshot.pop("frames", ())
            values |= {"first": values.get("from", 0), "last": values.get("to", 0), **snapshot}
            values["events"] = [event_of(one) for one in frames]
        return kind.model_validate(values)
    except (AttributeError, TypeError, ValidationError) as error:
        message = " ".join(str(error).split()).partition(" [type=")[0]
        raise InvalidInputError(f"not a frame of type {frame['type']}: {message}") from None
