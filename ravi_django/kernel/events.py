"""The event bus's envelope, for programs that watch runs. Apart from messages and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field


class Event(BaseModel):
    """A change, published to programs. It may come twice, with the same id."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: uuid4().hex)
    type: str  # e.g. "run.completed"
    source: str  # the component that published it
    schema_version: int = 1  # of the type's data
    correlation_id: str = ""  # the run
    ts: datetime = Field(default_factory=lambda: datetime.now(UTC))
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def create(cls, type: str, *, source: str, correlation_id: str = "", **data: Any) -> Event:
        """Build an event that has no factory function."""
        return Event(type=type, source=source, correlation_id=correlation_id, data=data)


class EventPublisher(Protocol):
    async def publish(self, event: Event, topic: str) -> None:
        """Send an event to the readers of the topic."""


class EventSubscriber(Protocol):
    async def subscribe(self, topic: str, handler: Callable[[Event], Awaitable[None]]) -> str:
        """Call `handler` with the topic's events from now on; returns the subscription's id."""

    async def unsubscribe(self, id: str) -> None:
        """End a subscription."""

    def stream(self, topic: str) -> AsyncIterator[Event]:
        """The topic's events, as they come."""
