"""Commands as a person runs them: real processes, on a database of their own beside pytest's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent


def obey_ctrl_c() -> None:
    """As in a terminal: what is started in the background of a shell ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Site:
    """An environment to run manage.py in."""

    def __init__(self, database: str, folder: Path, **environment: str) -> None:
        self.database = database
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if key not in {"REDIS_URL", "RAVI_MODEL"}}
        self.environment = kept | {
            "DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "command_site",
            "PYTHONPATH": f"{ROOT}:{HERE}",
            "LOG_LEVEL": "WARNING",
            **environment,
        }

    def with_(self, **environment: str) -> Site:
        other = Site(self.database, self.folder)
        other.environment = {**self.environment, **environment}
        return other

    def manage(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, "manage.py", *arguments], timeout)

    def python(self, code: str) -> str:
        """What a script prints, run in the site."""
        done = self._run([sys.executable, "-c", f"import django; django.setup()\n{code}"], 60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout)

    @contextmanager
    def background(self, *command: str) -> Iterator[Background]:
        output = self.folder / f"output-{len(list(self.folder.iterdir()))}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=obey_ctrl_c,
            )
        try:
            yield Background(process, output)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10)

    def managed(self, *arguments: str) -> Any:
        return self.background(sys.executable, "manage.py", *arguments)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Straight from the database."""
        if self.database.startswith("sqlite"):
            import sqlite3

            with sqlite3.connect(self.database.removeprefix("sqlite:///")) as connection:
                return connection.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.database) as connection:
            return connection.execute(sql).fetchall()

    def submit(self, agent: str, text: str = "hi", **options: str) -> str:
        """A run that nobody was told of."""
        return self.python(
            "from ravi_django.runtime.submit import submit_once\n"
            f"print(submit_once({agent!r}, {text!r}, send=lambda run_id: None, **{options!r})[0].id)"
        )

    def run(self, run_id: str) -> tuple[Any, ...]:
        """Status, output and lease owner."""
        key = run_id.replace("-", "") if self.database.startswith("sqlite") else run_id
        return self.rows(f"SELECT status, output, lease_owner FROM ravi_run WHERE id = '{key}'")[0]

    def empty(self) -> None:
        self.python("from django.core.management import call_command; call_command('flush', interactive=False)")


class Background:
    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    def says(self, words: str, timeout: float = 30) -> bool:
        from project.process import wait_until

        wait_until(lambda: words in self.text or self.process.poll() is not None, timeout, poll=0.05)
        return words in self.text


@pytest.fixture(scope="module")
def sqlite_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("sqlite-site")
    site = Site(f"sqlite:///{folder}/site.sqlite3", folder)
    assert site.manage("migrate").returncode == 0
    return site


@pytest.fixture(scope="module")
def postgres_site(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[str], str]) -> Site:
    """PostgreSQL and Valkey, so ENGINE is celery."""
    valkey = urlsplit(os.environ["REDIS_URL"])._replace(path="/7").geturl()  # a number that pytest does not use
    site = Site(new_database("ravi_commands"), tmp_path_factory.mktemp("postgres-site"), REDIS_URL=valkey)
    assert site.manage("migrate").returncode == 0
    return site


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[str], str]]:
    """An empty PostgreSQL database on the test run's server; its address."""
    if os.environ.get("RAVI_TEST_SQLITE") == "1":
        pytest.skip("there is no PostgreSQL on the SQLite run")
    import psycopg

    server = os.environ["DATABASE_URL"]
    made = []

    def statement(sql: str) -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql)

    def make(name: str) -> str:
        statement(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        statement(f"CREATE DATABASE {name}")
        made.append(name)
        return urlsplit(server)._replace(path=f"/{name}").geturl()

    yield make
    for name in made:
        statement(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def inline_site(request: pytest.FixtureRequest) -> Site:
    """A site whose processes drive their runs themselves."""
    name = "sqlite_site" if request.param == "sqlite" else "postgres_site"
    site: Site = request.getfixturevalue(name)
    return site.with_(RAVI_ENGINE="inline")
