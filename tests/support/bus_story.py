"""What tests of event buses tell their stories with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ravi_django.kernel import Event
from tests.support import world
from tests.support.world import Bus

TOPIC = "test"


def event(number: int = 0, type: str = "run.started") -> Event:
    return Event.create(type, source="test", correlation_id=f"run-{number}", number=number)


class Heard:
    """A handler that keeps what it was called with; it raises for the numbers in `fails`."""

    def __init__(self, fails: Callable[[Event], bool] = lambda event: False) -> None:
        self.events: list[Event] = []
        self.fails = fails

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.fails(event):
            raise ValueError("no good")

    @property
    def numbers(self) -> list[int]:
        return [event.data["number"] for event in self.events]


def is_idle(bus: Any) -> bool:
    """Whether each subscription of the bus in memory waits for the next event."""
    return len(bus._waiting) == len(bus._tasks)


class BusStory:
    """`make` is a fixture that gives a new bus."""

    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world.patch(monkeypatch, "BASE_RETRY_S", 0.001)

    @pytest.fixture
    async def bus(self, make: Callable[[], Bus]) -> AsyncIterator[Bus]:
        bus = make()
        yield bus
        await bus.close()
