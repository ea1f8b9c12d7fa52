"""A copy of the tree with servers of its own, where one guard after the other is taken out and put back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psycopg
import redis

from project.services import Postgres, Valkey
from tests.support import guards, template
from tests.support.guards import Guard

WARM_PYTEST = Path(__file__).with_name("warm_pytest.py")
TESTED = "ravi_tested"
NOTHING_RAN = 5  # pytest's exit


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: list[str]  # tests' ids
    failed: list[str]  # in the order in which they failed
    exit: int  # pytest's
    output: str  # its end

    @property
    def is_broken(self) -> bool:
        """The tests did not run to their end."""
        return self.exit not in (0, 1, NOTHING_RAN)


def is_case(test: str, killer: str) -> bool:
    """Whether a test that ran is this one, or a case of it."""
    return killer in (test, test.partition("[")[0])


class Bench:
    """Everything stays up from `with Bench(…)` to its end. Open it in the main thread: its servers end with the thread
    that started them. Then one thread at a time may use it."""

    def __init__(self, folder: Path, whole: Path) -> None:
        self.tree = folder / "tree"
        self._folder = folder
        self._whole = whole
        self._stack = ExitStack()
        self._taken_out = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            shutil.copytree(self._whole, self.tree)
            cluster = template.cluster(self._folder / "postgresql")
            self._postgres = stack.enter_context(Postgres(cluster, fast=True))
            self._valkey = stack.enter_context(Valkey(self._folder / "valkey", fast=True))
            self._server = stack.enter_context(psycopg.connect(self._postgres.url, autocommit=True))
            self._streams = stack.enter_context(redis.Redis.from_url(self._valkey.url))
            self._pytest = stack.enter_context(self._start_pytest())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def without(self, guard: Guard) -> Iterator[None]:
        """The guard is out of the tree."""
        path, mutated = guards.without(guard, self.tree)
        text, times = path.read_text(), path.stat()
        path.write_text(mutated)
        # Python compares whole seconds and the length: what was compiled with the guard must not be taken for this.
        os.utime(path, (times.st_atime, times.st_mtime + 2))
        self._taken_out = True
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            self._taken_out = False

    def run(self, tests: Sequence[str], *, first: bool = False) -> Outcome:
        """Run files of tests, or tests by their ids, of all cases or of one, on empty servers; `first` ends at the
        first failure."""
        self._server.execute(f"DROP DATABASE IF EXISTS {TESTED} WITH (FORCE)")
        template.database(self._postgres.url, TESTED)
        self._streams.flushall()
        request = {"tests": list(tests), "first": first, "bytecode": not self._taken_out}
        assert self._pytest.stdin
        assert self._pytest.stdout
        self._pytest.stdin.write(json.dumps(request) + "\n")
        self._pytest.stdin.flush()
        return Outcome(**json.loads(self._pytest.stdout.readline()))

    def _start_pytest(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", WARM_PYTEST]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.tree, env=self._environment(TESTED), stdin=pipe, stdout=pipe, text=True
        )

    def _environment(self, database: str) -> dict[str, str]:
        """The tree comes before an installed copy of the project, in what the tests start too."""
        return os.environ | {
            "DATABASE_URL": urlsplit(self._postgres.url)._replace(path=f"/{database}").geturl(),
            "REDIS_URL": self._valkey.url,
            "RAVI_TEST_SERVERS": "own",
            "PYTHONPATH": str(self.tree),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "RAVI_TEST_SHRINKS": "0",
            "CI": "true",  # there, hypothesis takes the same examples each time
        }
