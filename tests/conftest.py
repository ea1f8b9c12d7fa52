"""Every test runs against a real PostgreSQL and a real Valkey, started here before Django reads its settings.

DATABASE_URL and REDIS_URL, when set, are used instead; with RAVI_TEST_SERVERS=own the tests may empty them. Under
pytest-xdist each worker has servers of its own.
RAVI_TEST_SQLITE=1 runs on SQLite and starts nothing: one process of its own, since Django's settings are read once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import django
import pytest

from project.services import Postgres, Valkey


class Services(NamedTuple):
    pg: Postgres | None  # None when DATABASE_URL was given, or on SQLite
    valkey: Valkey | None


_stack = ExitStack()
_services = Services(None, None)


def _start_services() -> None:
    global _services
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    folder = Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="ravi-test-")))
    if os.environ.get("RAVI_TEST_SQLITE") == "1":
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/db.sqlite3"
        os.environ.pop("REDIS_URL", None)
        return
    pg = valkey = None
    if not os.environ.get("DATABASE_URL"):
        pg = _stack.enter_context(Postgres(folder / "postgresql", fast=True))
        os.environ["DATABASE_URL"] = pg.url
    if not os.environ.get("REDIS_URL"):
        valkey = _stack.enter_context(Valkey(folder / "valkey", fast=True))
        os.environ["REDIS_URL"] = valkey.url
    _services = Services(pg, valkey)


# At import, before pytest-django reads the settings and before a conftest below imports models: pyproject.toml
# therefore names no settings module.
_start_services()
django.setup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers start servers of their own: they must not inherit the addresses of those started here."""
    for name, server in (("DATABASE_URL", _services.pg), ("REDIS_URL", _services.valkey)):
        if server is not None:
            os.environ.pop(name)
    os.environ.pop("DJANGO_SETTINGS_MODULE")  # with it, the settings would be read before the servers are there


def pytest_unconfigure() -> None:
    _stack.close()


@pytest.fixture(autouse=True)
def _own_agents() -> Iterator[None]:
    """Agents and tools that a test registers are its own."""
    from ravi_django.runtime import registry

    agents, tools = dict(registry._agents), dict(registry._tools)
    yield
    registry._agents.clear()
    registry._agents.update(agents)
    registry._tools.clear()
    registry._tools.update(tools)
    registry._known = None


@pytest.fixture
def valkey_url() -> Iterator[str]:
    """An empty Valkey database; skips where it is not known to be the tests' own."""
    if not _services.valkey and os.environ.get("RAVI_TEST_SERVERS") != "own":
        pytest.skip("needs a server of its own: REDIS_URL was given, or this is SQLite")
    import redis

    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the test database goes: threads that read events, or drive runs, hold connections to it."""
    from ravi_django.runtime import database, worker
    from tests.support import emptying

    with django_db_blocker.unblock():
        emptying.install()
    yield
    worker.close_worker()
    database.forget_readers(close=True)
