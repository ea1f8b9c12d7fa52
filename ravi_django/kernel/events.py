"""The event bus's envelope: for programs that watch runs, apart from messages and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field


class Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: uuid4().hex)
    type: str  # e.g. "run.completed"
    source: str  # the component that says so
    schema_version: int = 1
    correlation_id: str = ""  # the run
    ts: datetime = Field(default_factory=lambda: datetime.now(UTC))
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def create(cls, type: str, *, source: str, correlation_id: str = "", **data: Any) -> Event:
        """Build an event where no factory function exists yet."""
        return cls(type=type, source=source, correlation_id=correlation_id, data=data)


class EventPublisher(Protocol):
    async def publish(self, event: Event, topic: str) -> None: ...


class EventSubscriber(Protocol):
    async def subscribe(self, topic: str, handler: Callable[[Event], Awaitable[None]]) -> str: ...

    async def unsubscribe(self, id: str) -> None: ...

    def stream(self, topic: str) -> AsyncIterator[Event]: ...
