from __future__ import annotations

from collections.abc import Iterator

import pytest

from ravi_django.runtime import bodies, registry
from ravi_django.testing import FakeClock


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Agents that a test registers are its own; what a process knows to be stored is in another test's database."""
    known = dict(registry._agents)
    bodies.forget()
    yield
    registry._agents.clear()
    registry._agents.update(known)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock
