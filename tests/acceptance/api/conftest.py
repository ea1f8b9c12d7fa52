"""A user with a client, a stranger with another, and an agent that answers by a script."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from django.core.asgi import get_asgi_application
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from project.process import wait_until
from ravi_django.kernel import AgentId
from ravi_django.models import Run
from tests.acceptance.api.api_support import AGENT, WRITTEN, client_of, make_agent, permit, register_payers
from tests.support import world
from tests.support.patience import BOUND_S, seconds


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    world.register(make_agent())
    yield AGENT
    world.unregister(AgentId.parse(AGENT))


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


@pytest.fixture
def server() -> Iterator[str]:
    """The site's Django application in uvicorn, on a thread of this process: it shares the tests' database."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(get_asgi_application(), log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
    found = uvicorn.Server(config)
    thread = threading.Thread(target=found.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert wait_until(lambda: found.started, BOUND_S)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        found.should_exit = True
        thread.join(seconds(20))
        listener.close()


@pytest.fixture
def worker(transactional_db: None, settings: Any) -> Iterator[None]:
    """Drives whatever is submitted, in this process."""
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline", "HEARTBEAT_S": 0.2, "LEASE_S": 5.0}
    world.get_worker()
    yield
    world.close_worker()


@pytest.fixture
def payers(agent: str) -> Iterator[None]:
    found = register_payers()
    yield
    for one in found:
        world.unregister(AgentId.parse(one))


@pytest.fixture
def key(user: Any) -> str:
    return str(Token.objects.create(user=user).key)
