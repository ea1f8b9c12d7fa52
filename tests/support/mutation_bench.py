"""A copy of the tree with servers of its own, where one guard after the other is taken out and put back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg
import redis

from project.services import Postgres, Valkey
from tests.support import forks, guards, template
from tests.support.guards import Guard
from tests.support.patience import seconds

TEST_S = 60  # a test that hangs without its guard has failed
RUN_S = seconds(240)  # one run of tests
DATABASE = "ravi_main"  # which tests/conftest.py makes
NOTHING_RAN = 5  # pytest's exit
NOT_KEPT = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")  # of the environment: tests/conftest.py sets them
PLUGINS = ("pytest_django.plugin", "pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
OPTIONS = [
    *(part for name in PLUGINS for part in ("-p", name)),
    *("-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=short", "-rfEp", "-o", f"timeout={TEST_S}"),
    *("-m", "not llm"),  # those marked crash, too: only they may notice that the guard is out
]
# A fork server that has imported the libraries, and nothing of the project.
HOST = "import sys; from pathlib import Path; from tests.support import forks; import pytest, hypothesis.stateful\n"
HOST += "forks.import_libraries(); forks.serve(Path(sys.argv[1]))"
PYTEST = "import sys, pytest; sys.dont_write_bytecode = {}; sys.exit(pytest.main(sys.argv[1:]))"
END = re.compile(r"^(PASSED|FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


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
            postgres = stack.enter_context(Postgres(cluster, fast=True))
            valkey = stack.enter_context(Valkey(self._folder / "valkey", fast=True))
            self._server = stack.enter_context(psycopg.connect(postgres.url, autocommit=True))
            self._streams = stack.enter_context(redis.Redis.from_url(valkey.url))
            kept = {name: value for name, value in os.environ.items() if name not in NOT_KEPT}
            self._environment = kept | {
                "RAVI_TEST_POSTGRES": postgres.url,
                "REDIS_URL": valkey.url,
                "RAVI_TEST_SERVERS": "own",
                "RAVI_TEST_BOUND_S": "20",  # what hangs without its guard need not do so for long
                "RAVI_TEST_SHRINKS": "0",
                "PYTHONPATH": str(self.tree),  # before an installed copy of the project, in what the tests start too
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "CI": "true",  # there, hypothesis takes the same examples each time
            }
            self._forks = forks.Forks(self._folder / "forks", self._start_forks)
            stack.callback(self._forks.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._host.wait(20)

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
        first failure. An id that is not there is passed over."""
        tests = [test for test in tests if "::" not in test or guards.is_test(test, self.tree)]
        if not tests:
            return Outcome([], [], NOTHING_RAN, "")
        self._server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        self._streams.flushall()
        code, temporary = PYTEST.format(self._taken_out), self._folder / "tmp"
        with forks.Popen(
            ["-c", code, *OPTIONS, "--basetemp", temporary, *(["-x"] if first else []), *tests],
            forks=self._forks,
            cwd=self.tree,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                output, _ = process.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what its tests started and left
        ends = END.findall(output)
        failed = list(dict.fromkeys(test for end, test in ends if end != "PASSED"))
        passed = [test for end, test in ends if end == "PASSED" and test not in failed]
        return Outcome(passed, failed, process.returncode, output[-3000:])

    def _start_forks(self, path: Path, listener: socket.socket) -> None:
        with path.with_name("forks.log").open("wb") as log:
            command = [sys.executable, "-c", HOST, path]
            self._host = subprocess.Popen(
                command, cwd=self.tree, env=self._environment, stdin=listener, stdout=log, stderr=log
            )
