"""pytest over and over in one tree, each time in a process of its own that need not import the world first.

Run as a script, with the tree as its working directory and its servers' addresses in the environment. It imports what
the project builds on, nothing of the project, then reads requests from its input, a line of JSON each, and forks for
each; the answer is a line of JSON:

- `tests`: files, or tests of them by their ids, of all cases or of one; an id that is not there is passed over;
- `first`: whether to stop at the first failure;
- `bytecode`: whether to keep what is compiled; not where the tree is not what it was;
- the answer has the ids that `passed` and that `failed`, in order, pytest's `exit` and the `output`'s end.

The database at DATABASE_URL is the test database: it is there, migrated and empty, before each request.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TEST_S = 60  # a test that hangs without its guard has failed
RUN_S = 240  # one request
PLUGINS = ("pytest_django.plugin", "pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
# Those that need no Django settings to be imported, and take the longest.
WARM = (
    "celery.app.base", "channels", "channels.layers", "channels_redis.core", "django.contrib.admin.filters",
    "django.core.handlers.asgi", "django.core.management", "django.core.serializers.json",
    "django.db.backends.postgresql.base", "django.db.migrations.executor", "django.db.models", "django.test.client",
    "django.test.utils", "httpx", "hypothesis.stateful", "jsonschema", "kombu", "psycopg", "pydantic",
    "redis.asyncio", "requests", "rest_framework.compat", "uvicorn",
)  # fmt: skip


class Results:
    """A pytest plugin: runs the wanted tests alone, and writes each one's end down as it comes."""

    def __init__(self, wanted: set[str], path: Path) -> None:
        self._wanted = wanted
        self._file = path.open("w")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wanted:
            items[:] = [item for item in items if {item.nodeid, item.nodeid.partition("[")[0]} & self._wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or (report.passed and report.when == "call"):
            print(json.dumps([report.nodeid, report.outcome]), file=self._file, flush=True)


def main() -> None:
    os.environ.setdefault("RAVI_TEST_BOUND_S", "20")  # what hangs without its guard need not do so for long
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="ravi-pytest-") as folder:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), Path(folder))), file=answers, flush=True)


def answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    results, output = folder / "results", folder / "output"
    results.write_text("")
    child = os.fork()
    if child == 0:
        run(request, results, output, folder / "tmp")
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests started and left
    ends = [json.loads(line) for line in results.read_text().splitlines()]
    failed = list(dict.fromkeys(name for name, outcome in ends if outcome == "failed"))
    return {
        "passed": [name for name, outcome in ends if outcome == "passed" and name not in failed],
        "failed": failed,
        "exit": os.waitstatus_to_exitcode(status),
        "output": output.read_text(errors="replace")[-3000:],
    }


def run(request: dict[str, Any], results: Path, output: Path, temporary: Path) -> None:
    """In the child: never returns."""
    code = 70
    try:
        os.setsid()
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream, target in ((os.open(os.devnull, os.O_RDONLY), 0), (handle, 1), (handle, 2)):
            os.dup2(stream, target)
        faulthandler.dump_traceback_later(RUN_S, exit=True)
        sys.dont_write_bytecode = not request["bytecode"]
        from django.test import utils

        utils.setup_databases = lambda *_, **__: []  # pytest-django asks for it: what is there is taken as it is
        code = pytest.main(arguments(request["tests"], request["first"], temporary), [plugin(request, results)])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def plugin(request: dict[str, Any], results: Path) -> Results:
    return Results({test for test in request["tests"] if "::" in test}, results)


def arguments(tests: Sequence[str], first: bool, temporary: Path) -> list[str]:
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    loaded = [part for name in PLUGINS for part in ("-p", name)]
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--basetemp", str(temporary), "--tb=short"]
    options += ["-m", "not llm"]  # those marked crash, too: only they may notice that the guard is out
    return [*loaded, *options, "-o", f"timeout={TEST_S}", *(["-x"] if first else []), *files]


if __name__ == "__main__":
    main()
