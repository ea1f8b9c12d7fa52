"""The events of the runtime, one factory function each: `run_completed(…)` is `run.completed`.

All have in `data`: `run`, `thread` (the session), `agent`, `root` and `parent` (runs; null at the root), `owner` (the
user's id as text, or null) and `tenant`. `correlation_id` is the run. Texts have at most 2 KiB. Arguments of tools,
metadata and messages are not included. A new field does not change a type's schema version; a changed or removed one
raises it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict, Unpack
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field


class Event(BaseModel):
    """A change, published to programs. It may come twice, with the same id."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: uuid4().hex)  # unique; the same when it comes again
    type: str  # e.g. "run.completed"
    source: str  # the component that published it
    schema_version: int = 1  # of the type's data
    correlation_id: str = ""  # the run
    ts: datetime = Field(default_factory=lambda: datetime.now(UTC))  # when it happened, UTC
    data: dict[str, Any] = Field(default_factory=dict)  # JSON, by the type

    @classmethod
    def create(cls, type: str, *, source: str, correlation_id: str = "", **data: Any) -> Event:
        """Build an event that has no factory function."""
        return Event(type=type, source=source, correlation_id=correlation_id, data=data)


class EventPublisher(Protocol):
    """Where events are sent to."""

    async def publish(self, event: Event, topic: str) -> None:
        """Send an event to the readers of the topic."""


class EventSubscriber(Protocol):
    """Where events are received from."""

    async def subscribe(self, topic: str, handler: Callable[[Event], Awaitable[None]]) -> str:
        """Call `handler` with the topic's events from now on; returns the subscription's id."""

    async def unsubscribe(self, id: str) -> None:
        """End a subscription."""

    def stream(self, topic: str) -> AsyncIterator[Event]:
        """The topic's events, as they come."""


SOURCE = "ravi"
MAX_TEXT = 2048  # bytes of a text in an event; a longer one ends in "…"

_TYPES = (
    *("workflow.started", "run.started", "run.completed", "run.failed", "run.cancelled", "run.blocked", "run.retried"),
    *("agent.crashed", "hitl.requested", "hitl.approved", "hitl.denied", "hitl.answered", "hitl.closed"),
    *("budget.exhausted", "event.undelivered"),
)
SCHEMA_VERSIONS = dict.fromkeys(_TYPES, 1)


class Origin(TypedDict, total=False):
    """The run's agent, tree, owner and tenant, and the event's own id."""

    agent: str  # type/key
    root: str | None  # the run at the root of its tree; None at the root
    parent: str | None  # the run that spawned it
    owner: str | None  # the user's id
    tenant: str
    event_id: str  # a random one when it is not given


def workflow_started(run_id: Any, thread_id: Any, user_content: str, **origin: Unpack[Origin]) -> Event:
    """A root run was submitted. `user_content` is its input as text."""
    return _event("workflow.started", run_id, thread_id, origin, user_content=clip(user_content))


def run_started(run_id: Any, thread_id: Any, **origin: Unpack[Origin]) -> Event:
    """A run's code has started: once a run, whatever the number of its workers."""
    return _event("run.started", run_id, thread_id, origin)


def run_completed(run_id: Any, thread_id: Any, output: str, **origin: Unpack[Origin]) -> Event:
    """A run has ended with an output."""
    return _event("run.completed", run_id, thread_id, origin, output=clip(output))


def run_failed(run_id: Any, thread_id: Any, error: str, message: str, **origin: Unpack[Origin]) -> Event:
    """A run has ended with an error: the name of its type, and its message."""
    return _event("run.failed", run_id, thread_id, origin, error=clip(error), message=clip(message))


def run_cancelled(run_id: Any, thread_id: Any, reason: str, **origin: Unpack[Origin]) -> Event:
    """A run was cancelled; the reason says by whom."""
    return _event("run.cancelled", run_id, thread_id, origin, reason=clip(reason))


def run_blocked(run_id: Any, thread_id: Any, error: str, message: str, **origin: Unpack[Origin]) -> Event:
    """A run waits for an operator: its code differs from its journal, or its workers died."""
    return _event("run.blocked", run_id, thread_id, origin, error=clip(error), message=clip(message))


def run_retried(run_id: Any, thread_id: Any, **origin: Unpack[Origin]) -> Event:
    """A failed or blocked run continues at a person's request."""
    return _event("run.retried", run_id, thread_id, origin)


def agent_crashed(run_id: Any, thread_id: Any, worker: str, crashes: int, **origin: Unpack[Origin]) -> Event:
    """The `worker` of a run was lost, and another has taken the run over; for the `crashes`th time since its last
    progress."""
    return _event("agent.crashed", run_id, thread_id, origin, worker=worker, crashes=crashes)


def hitl_requested(
    run_id: Any,
    thread_id: Any,
    request_id: Any,
    *,
    kind: str,
    text: str,
    tool: str = "",
    risk: str = "",
    to: str = "",
    **origin: Unpack[Origin],
) -> Event:
    """A person is asked: `kind` is question, approval, input or uncertain, `to` the address, empty for the owner's."""
    asked = {"kind": kind, "text": clip(text), "tool": tool, "risk": risk, "to": to}
    return _event("hitl.requested", run_id, thread_id, origin, request=str(request_id), **asked)


def hitl_approved(
    run_id: Any, thread_id: Any, request_id: Any, *, action: str, tool: str, by: str, **origin: Unpack[Origin]
) -> Event:
    """An approval was given; `action` is approve, or edit when the arguments were changed."""
    answer = {"action": action, "tool": tool, "by": by}
    return _event("hitl.approved", run_id, thread_id, origin, request=str(request_id), **answer)


def hitl_denied(
    run_id: Any,
    thread_id: Any,
    request_id: Any,
    *,
    action: str,
    tool: str,
    by: str,
    reason: str = "",
    **origin: Unpack[Origin],
) -> Event:
    """An approval was refused; `action` is deny or skip."""
    answer = {"action": action, "tool": tool, "by": by, "reason": clip(reason)}
    return _event("hitl.denied", run_id, thread_id, origin, request=str(request_id), **answer)


def hitl_answered(
    run_id: Any,
    thread_id: Any,
    request_id: Any,
    *,
    kind: str,
    action: str,
    by: str,
    tool: str = "",
    text: str = "",
    **origin: Unpack[Origin],
) -> Event:
    """A question, an input request or an uncertain effect was answered. `text` is the answer, if it is text."""
    answer = {"kind": kind, "action": action, "tool": tool, "by": by, "text": clip(text)}
    return _event("hitl.answered", run_id, thread_id, origin, request=str(request_id), **answer)


def hitl_closed(
    run_id: Any, thread_id: Any, request_id: Any, *, kind: str, status: str, tool: str = "", **origin: Unpack[Origin]
) -> Event:
    """A request ended without an answer: its time was up (`expired`), or its run no longer needs it (`cancelled`)."""
    closed = {"kind": kind, "status": status, "tool": tool}
    return _event("hitl.closed", run_id, thread_id, origin, request=str(request_id), **closed)


def budget_exhausted(run_id: Any, thread_id: Any, account: str, message: str, **origin: Unpack[Origin]) -> Event:
    """A model call was refused, or a person is asked for more: `account` is `tree:<run>`, `user:<id>:<day>` or
    `tenant:<name>:<day>`."""
    return _event("budget.exhausted", run_id, thread_id, origin, account=account, message=clip(message))


def event_undelivered(event: Event, *, topic: str, handler: str, tries: int, error: str) -> Event:
    """A handler failed with an event in all its tries. Goes to the topic's `.dead` topic, with the event."""
    body = event.model_dump(mode="json", include=set(Event.model_fields))
    return Event(
        id=f"{event.id}-{handler}"[:200],
        type="event.undelivered",
        source=SOURCE,
        schema_version=SCHEMA_VERSIONS["event.undelivered"],
        correlation_id=event.correlation_id,
        data={"event": body, "topic": topic, "handler": handler, "tries": tries, "error": clip(error)},
    )


def clip(text: str) -> str:
    """At most MAX_TEXT bytes of UTF-8."""
    if len(text) * 4 <= MAX_TEXT or len(body := text.encode(errors="replace")) <= MAX_TEXT:
        return text
    return body[: MAX_TEXT - 3].decode(errors="ignore") + "…"


def _event(type: str, run_id: Any, thread_id: Any, origin: Origin, **data: Any) -> Event:
    id_field = {"id": event_id} if (event_id := origin.get("event_id")) else {}
    return Event(
        type=type,
        source=SOURCE,
        schema_version=SCHEMA_VERSIONS[type],
        correlation_id=str(run_id),
        data={
            "run": str(run_id),
            "thread": str(thread_id),
            "agent": origin.get("agent", ""),
            "root": origin.get("root"),
            "parent": origin.get("parent"),
            "owner": origin.get("owner"),
            "tenant": origin.get("tenant", ""),
            **data,
        },
        **id_field,
    )
