"""Without a broker: SQLite, and the engine in a script of one's own or in `ravi_worker`."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from project.process import Child, wait_until
from tests.support import forks, template
from tests.support.model_server import ModelServer, said
from tests.support.openai_server import Body, Reply
from tests.support.patience import BOUND_S
from tests.support.site_process import AGENT, ROOT, Client

pytestmark = pytest.mark.full


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def environment(tmp_path: Path, model: ModelServer) -> dict[str, str]:
    """Of a site on SQLite, migrated."""
    unset = {"REDIS_URL", "RAVI_MODEL"}
    return {key: value for key, value in os.environ.items() if key not in unset} | {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "DATABASE_URL": f"sqlite:///{template.sqlite(tmp_path / 'db.sqlite3')}",
        "OPENAI_API_BASE": model.base_url,
        "OPENAI_API_KEY": "sk-of-the-test-server",
    }


def calculating(body: Body) -> Reply:
    results = [message for message in body["messages"] if message["role"] == "tool"]
    if results:
        return Reply(text=f"It is {said(results[-1])}.")
    return Reply(tool_calls=(("calculator", {"expression": "12 * 7"}),))


def test_the_minimal_agent_answers(model: ModelServer, environment: dict[str, str]) -> None:
    about = model.conversation("what is 12 * 7", script=calculating)

    script = ["-m", "examples.seeds.minimal_agent", about.text]
    done = forks.run(script, env=environment, capture_output=True, text=True, timeout=BOUND_S)

    assert (done.returncode, done.stdout) == (0, "It is 84.\n"), done.stderr
    assert "Traceback" not in done.stderr and "never" not in done.stderr, done.stderr
    assert [body["model"] for body in about.requests] == ["gpt-4o", "gpt-4o"]
    assert said(about.requests[0]["messages"][0]) == "You are a helpful assistant."


def test_commands_say_that_the_database_is_not_migrated(environment: dict[str, str], tmp_path: Path) -> None:
    environment["DATABASE_URL"] = f"sqlite:///{tmp_path / 'empty.sqlite3'}"

    for command in (["ravi_run", AGENT, "hi"], ["ravi_worker"]):
        done = forks.run(["manage.py", *command], env=environment, capture_output=True, text=True, timeout=BOUND_S)
        assert "the database is not ready (manage.py migrate?): no such table: ravi_agent" in done.stderr, command
        assert done.returncode and "Traceback" not in done.stderr, command


def test_ravi_worker_drives_what_another_process_submits(model, environment, tmp_path) -> None:
    environment["RAVI_MODEL"] = "openai/test-model"
    worker = Child(  # the one `manage.py ravi_worker` that is no fork
        "ravi_worker",
        [sys.executable, "manage.py", "ravi_worker"],
        log=tmp_path / "ravi_worker.log",
        pid_file=tmp_path / "ravi_worker.pid",
        env=environment,
        cwd=ROOT,
    )
    abouts = [model.conversation(f"number {number}", script=calculating) for number in range(20)]
    client = Client(tmp_path, environment)
    try:
        for about in abouts[:10]:  # before it starts, and while it runs
            client.ask("submit", text=about.text, agent=AGENT, hint="")
        worker.start()
        for about in abouts[10:]:
            client.ask("submit", text=about.text, agent=AGENT, hint="")

        ended = wait_until(lambda: len(outputs(tmp_path)) == 20 or not worker.running, BOUND_S, poll=0.1)
        worker.ask_to_stop()
        assert wait_until(lambda: not worker.running, BOUND_S)
    finally:
        worker.stop()
        client.close()

    assert ended and outputs(tmp_path) == ["It is 84."] * 20, worker.tail(60)
    assert worker.returncode == 0, worker.tail(60)
    start = next(line for line in worker.log.read_text().splitlines() if line.startswith("ravi_django "))
    assert "; no broker; agents: " in start and AGENT in start and "; lease " in start
    assert f"sqlite {tmp_path / 'db.sqlite3'}; Ctrl-C drains" in start
    assert [about.calls() for about in abouts] == [[1, 2]] * 20


def outputs(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "db.sqlite3", timeout=BOUND_S)) as connection:
        return [row[0] for row in connection.execute("SELECT output FROM ravi_run WHERE status = 'completed'")]
