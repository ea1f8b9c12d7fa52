"""Every test runs against a real PostgreSQL and a real Valkey, started here before Django reads its settings.

One PostgreSQL serves all workers of pytest-xdist: the controller starts it, and each worker has a database of its own,
copied from the migrated template. Valkey's publish and subscribe know no databases, so each worker starts one.

DATABASE_URL and REDIS_URL, when set, are used instead; with RAVI_TEST_SERVERS=own the tests may empty them.
RAVI_TEST_SQLITE=1 runs on SQLite and starts nothing: one process of its own, since Django's settings are read once.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import django
import pytest

from project.services import Postgres, Valkey
from tests.support import durations, forks, patience, template, world

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
SERVER = "RAVI_TEST_POSTGRES"  # the URL of the controller's PostgreSQL, for its workers

_stack = ExitStack()
_seconds: dict[str, float] = {}  # before the first test, by name
_has_own_database = _has_own_valkey = False


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The first hook of this file: pytest-django has not read the settings yet, no conftest below imported models.
    pyproject.toml therefore names no settings module."""
    from django.conf import settings

    parser.addoption("--record-durations", action="store_true", help=durations.HELP)
    if settings.configured and not os.environ.get("DATABASE_URL"):  # tests would empty the site's own database
        raise pytest.UsageError("Unset DJANGO_SETTINGS_MODULE: the tests set it once their servers are up.")
    options = pluginmanager.get_plugin("pytestconfig").known_args_namespace
    is_controller = not WORKER and bool(getattr(options, "numprocesses", None))
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    folder = Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="ravi-test-")))
    if is_controller:
        os.environ["RAVI_TEST_FORKS"] = str(folder / "forks")  # the workers share one server
    if os.environ.get("RAVI_TEST_SQLITE") == "1":
        _use_sqlite(folder)
    else:
        _use_postgresql(folder)
        if not (is_controller or os.environ.get("REDIS_URL")):
            _use_valkey(folder)
    with _timed("django"):
        django.setup()
    settings.RAVI["LIMITS"] = None  # the tests of limits set their own
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second


def _use_sqlite(folder: Path) -> None:
    global _has_own_database
    with _timed("migration"):
        os.environ["DATABASE_URL"] = f"sqlite:///{template.sqlite(folder / 'db.sqlite3')}"
    os.environ.pop("REDIS_URL", None)
    _has_own_database = True


def _use_postgresql(folder: Path) -> None:
    global _has_own_database
    if os.environ.get("DATABASE_URL"):
        return
    if SERVER not in os.environ:
        with _timed("migration"):
            cluster = template.cluster(folder / "postgresql")
        with _timed("services"):
            os.environ[SERVER] = _stack.enter_context(Postgres(cluster, fast=True)).url
        _stack.callback(os.environ.pop, SERVER)
    with _timed("database"):
        os.environ["DATABASE_URL"] = template.database(os.environ[SERVER], f"ravi_{WORKER or 'main'}")
    _has_own_database = True


def _use_valkey(folder: Path) -> None:
    global _has_own_valkey
    with _timed("services"):
        os.environ["REDIS_URL"] = _stack.enter_context(Valkey(folder / "valkey", fast=True)).url
    _has_own_valkey = True


@contextmanager
def _timed(name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    _seconds[name] = _seconds.get(name, 0.0) + time.monotonic() - begun


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers have a database of their own: they must not inherit this one's address."""
    if _has_own_database:
        os.environ.pop("DATABASE_URL")
    os.environ.pop("DJANGO_SETTINGS_MODULE")  # with it, the settings would be read before the servers are there


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """RAVI_TEST_SLOW multiplies pytest's timeouts too."""
    import pytest_timeout

    pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=patience.seconds(settings.timeout)))
    return True


def pytest_unconfigure() -> None:
    _stack.close()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not WORKER:
        config.pluginmanager.register(durations.Recorder())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKER:
        items[:] = durations.longest_first(_without_full_size(items))


def _without_full_size(items: list[pytest.Item]) -> list[pytest.Item]:
    """Where a test runs at a small size too."""

    def test(item: pytest.Item) -> str:
        return item.nodeid.partition("[")[0]

    small = {test(item) for item in items if item.get_closest_marker("small")}
    return [item for item in items if not (item.get_closest_marker("crash") and test(item) in small)]


# --------------------------------------------------------------------------------------------------------- reports


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    with _timed("collection"), _one_compiles(session.config):
        found = yield
    gc.freeze()  # what all tests have imported is no garbage: to look through it takes long
    return found


@contextmanager
def _one_compiles(config: pytest.Config) -> Iterator[None]:
    """The first worker compiles the tests while the others wait; they read its files, all at once. Meanwhile the fork
    server starts, which a run of all tests needs."""
    if "RAVI_TEST_FORKS" not in os.environ:
        yield
        return
    with Path(os.environ["RAVI_TEST_FORKS"]).with_name("collection").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if config.args == config.getini("testpaths"):
                forks.start()
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    if WORKER:
        session.config.workeroutput["seconds"] = _seconds  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the slowest worker's."""
    for name, seconds in getattr(node, "workeroutput", {}).get("seconds", {}).items():
        _seconds[name] = max(_seconds.get(name, 0.0), seconds)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.failed:
        command = f"-n 0 -m '' {shlex.quote(item.nodeid)}".replace("$", "$$")
        report.sections.append(("repeat it with", f"make test ARGS={shlex.quote(command)}"))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not WORKER:
        terminalreporter.write_line(
            "before the first test: " + ", ".join(f"{k} {v:.1f} s" for k, v in _seconds.items())
        )


# -------------------------------------------------------------------------------------------------------- fixtures


@pytest.fixture(autouse=True)
def _own_agents() -> Iterator[None]:
    """Agents and tools that a test registers are its own, and so is what a bus in memory holds."""
    from ravi_django.testing import registered

    with registered():
        yield
    world.forget_buses()


@pytest.fixture(autouse=True)
def _own_celery_conf() -> Iterator[None]:
    """What a test sets in Celery's configuration goes with it: it would hide Django's settings from later tests."""
    from project.celery import app

    app.conf.get("broker_url")  # before the first read `changes` would be the whole configuration
    before = dict(app.conf.changes)
    yield
    app.conf.changes.clear()
    app.conf.changes.update(before)


@pytest.fixture(autouse=True)
def open_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user may run what a test registers, unless it says otherwise; tests of access override this."""
    world.patch(monkeypatch, "DEFAULT_ACCESS", "authenticated")


@pytest.fixture(autouse=True)
def late_results_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the next commit, however long a tool or a model takes on this machine."""
    world.patch(monkeypatch, "LATE_S", 3600.0)
    world.patch(monkeypatch, "QUICK_S", 3600.0)


@pytest.fixture
def valkey_url() -> Iterator[str]:
    """An empty Valkey database; skips where it is not known to be the tests' own."""
    if not _has_own_valkey and os.environ.get("RAVI_TEST_SERVERS") != "own":
        pytest.skip("needs a server of its own: REDIS_URL was given, or this is SQLite")
    import redis

    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest, django_test_environment: None, django_db_blocker: Any
) -> Iterator[None]:
    """The database is there, copied from the template; pytest-django makes one beside a DATABASE_URL that was given."""
    if not _has_own_database:
        request.getfixturevalue("django_db_setup")
    from ravi_django.testing import warm
    from tests.support import emptying

    with django_db_blocker.unblock():
        emptying.install()
    yield
    # Their threads hold connections to the database.
    warm.close()
    world.close_worker()
    world.forget_readers(close=True)
