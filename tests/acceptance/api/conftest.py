"""A user with a client, a stranger with another, and an agent that answers by a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from ravi_django.models import Run
from tests.acceptance.api.api_support import AGENT, WRITTEN, AguiClient, client_of, make_agent, permit, register_payers
from tests.acceptance.ws.live_site import Server
from tests.support import world


@pytest.fixture(autouse=True)
def agent() -> str:
    world.register(make_agent())
    return AGENT


@pytest.fixture(autouse=True)
def _no_readers_left() -> Iterator[None]:
    yield
    world.forget_readers(close=True)


@pytest.fixture
def user(db: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ann")


@pytest.fixture
def permitted(user: Any) -> None:
    """`user` may send signals of any name, emit to every topic, and choose a priority."""
    permit(user, "signal_run", "emit_topic", "choose_priority")


@pytest.fixture
def stranger(db: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("bob")


@pytest.fixture
def staff(django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("carla", is_staff=True)


@pytest.fixture
def root(django_user_model: Any) -> Any:
    return django_user_model.objects.create_superuser("root")


@pytest.fixture
def run(user: Any) -> Run:
    """A run of `user` that nobody has driven."""
    return world.submit(AGENT, "hi", user=user)


@pytest.fixture
def client(user: Any) -> APIClient:
    return client_of(user)


@pytest.fixture
def strange_client(stranger: Any) -> APIClient:
    return client_of(stranger)


@pytest.fixture
def anonymous() -> APIClient:
    return client_of()


@pytest.fixture
def written() -> Callable[[], dict[str, int]]:
    """How many rows there are of everything that a request could write."""
    return lambda: {model.__name__: model.objects.count() for model in WRITTEN}


@pytest.fixture(scope="session")
def api_server() -> Iterator[Server]:
    running = Server(get_asgi_application())
    yield running
    running.stop()


@pytest.fixture
def server(api_server: Server) -> Iterator[str]:
    """The URL of the site's Django application in uvicorn."""
    yield api_server.url
    api_server.empty()


@pytest.fixture
def worker(transactional_db: None, settings: Any) -> Iterator[None]:
    """Drives whatever is submitted, in this process."""
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline", "HEARTBEAT_S": 0.2, "LEASE_S": 5.0}
    world.get_worker()
    yield
    world.close_worker()


@pytest.fixture
def payers(agent: str) -> None:
    register_payers()


@pytest.fixture
def key(user: Any) -> str:
    return str(Token.objects.create(user=user).key)


@pytest.fixture
def agui(server: str, key: str) -> Iterator[AguiClient]:
    found = AguiClient(server, key)
    with found.web:
        yield found
