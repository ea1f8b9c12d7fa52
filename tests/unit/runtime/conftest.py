from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import tool
from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.conf import conf
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.world import forget_readers


@pytest.fixture(autouse=True)
def _no_worker_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hints drive runs in this very process, it would race the test for the lease."""
    if conf.ENGINE == "inline":
        world.silence(monkeypatch, "dispatch_send")


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """What a process knows to be stored is in another test's database, and threads that read events keep a connection
    open."""
    world.bodies_forget()
    world.budgets_forget()
    world.providers_forget()
    world.accounts_forget()
    yield
    forget_readers(close=True)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def ran() -> list[Any]:
    """What the tools of a test have done, in order."""
    return []


@pytest.fixture
def step(ran: list[Any]) -> FunctionTool:
    @tool
    async def step(name: str) -> str:
        """Step."""
        ran.append(name)
        return name

    return step


@pytest.fixture
def hints(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bus is on, and nothing leaves the outbox: how many rows were there at each hint."""
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory"}
    found: list[int] = []
    world.patch(monkeypatch, "courier_hint", lambda: found.append(1))
    yield found


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is told of a run: the test drives each by itself."""
    world.silence(monkeypatch, "dispatch_send")


@pytest.fixture
def no_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint")


@pytest.fixture
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Publications whose delivery was hinted; none begins by itself."""
    found: list[Any] = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    return found


@pytest.fixture
def ada() -> Any:
    return get_user_model().objects.create_user("ada")


@pytest.fixture
def ann() -> Any:
    """A member of staff."""
    return get_user_model().objects.create_user("ann", is_staff=True)
