"""Commands as an operator runs them: in processes, on a database beside pytest's."""

from __future__ import annotations

import copy
import os
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from project.services import Postgres
from tests.support import forks, template
from tests.support.patience import seconds

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
# A fork server of its own for each environment of a site. It has read the settings and loaded the apps and the views.
HOST = """
import os, sys, django
from pathlib import Path
from django.urls import get_resolver
from tests.support import forks
django.setup()
get_resolver().url_patterns
if os.fork() == 0:
    forks.serve(Path(sys.argv[1]))
os._exit(0)
"""


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
        self.hosts: dict[str, forks.Forks] = {}  # by their environment

    def with_(self, **environment: str) -> Site:
        other = copy.copy(self)
        other.environment = {**self.environment, **environment}
        return other

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()

    def start(self, *argv: str, **options: Any) -> forks.Popen:
        """`python *argv` in the site."""
        key = str(sorted(self.environment.items()))
        if key not in self.hosts:
            self.hosts[key] = forks.Forks(self.folder / f"host-{len(self.hosts)}", self._host)
        return forks.Popen(argv, env=self.environment, forks=self.hosts[key], text=True, **options)

    def _host(self, path: Path, listener: socket.socket) -> None:
        forks.run(["-c", HOST, path], env=self.environment, stdin=listener, check=True)

    def manage(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return self.run_python("manage.py", *arguments, timeout=timeout)

    def python(self, code: str) -> str:
        """The output of a script in the site."""
        done = self.run_python("-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_python(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        with self.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    @contextmanager
    def background(self, *argv: str) -> Iterator[Background]:
        output = self.folder / f"output-{len(list(self.folder.iterdir()))}.txt"
        with output.open("w") as file:
            process = self.start(*argv, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield Background(process, output)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(seconds(10))

    def managed(self, *arguments: str) -> Any:
        return self.background("manage.py", *arguments)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Straight from the database."""
        if self.database.startswith("sqlite"):
            with closing(sqlite3.connect(self.database.removeprefix("sqlite:///"))) as connection:
                return connection.execute(sql).fetchall()
        with psycopg.connect(self.database) as connection:
            return connection.execute(sql).fetchall()

    def submit(self, agent: str, text: str = "hi", **options: str) -> str:
        """A run that nobody was told of."""
        return self.python(
            "from tests.support.world import submit_once\n"
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

    def says(self, words: str, timeout: float = 60) -> bool:
        from project.process import wait_until

        wait_until(lambda: words in self.text or self.process.poll() is not None, timeout, poll=0.05)
        return words in self.text


@pytest.fixture(scope="module")
def sqlite_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sqlite-site")
    with closing(Site(f"sqlite:///{template.sqlite(folder / 'site.sqlite3')}", folder)) as site:
        yield site


@pytest.fixture(scope="module")
def postgres_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """PostgreSQL and Valkey, so ENGINE is celery."""
    if os.environ.get("RAVI_TEST_SQLITE") == "1":
        pytest.skip("there is no PostgreSQL on the SQLite run")
    name = f"ravi_commands_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
    valkey = urlsplit(os.environ["REDIS_URL"])._replace(path="/7").geturl()  # a number that pytest does not use
    with ExitStack() as stack:
        server = os.environ.get("RAVI_TEST_POSTGRES")
        if server is None:  # a DATABASE_URL was given; PostgreSQL's user cannot reach pytest's folder
            cluster = template.cluster(Path(stack.enter_context(TemporaryDirectory())) / "postgresql")
            server = stack.enter_context(Postgres(cluster, fast=True)).url
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(drop)
            folder = tmp_path_factory.mktemp("postgres-site")
            with closing(Site(template.database(server, name), folder, REDIS_URL=valkey)) as site:
                yield site
            connection.execute(drop)


@pytest.fixture(params=["sqlite", "postgresql"])
def inline_site(request: pytest.FixtureRequest) -> Site:
    """A site whose processes drive their runs themselves."""
    name = "sqlite_site" if request.param == "sqlite" else "postgres_site"
    site: Site = request.getfixturevalue(name)
    return site.with_(RAVI_ENGINE="inline")
