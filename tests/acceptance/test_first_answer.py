"""The README's first answer: every command and file of its section is run, from `django-admin startproject` on."""

from __future__ import annotations

import ast
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from project.process import wait_until
from project.services import free_port, port_is_free
from ravi_django.checks import SQLITE_LINE
from tests.support import browser
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.patience import BOUND_S, seconds

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "README.md").read_text().partition("## A first answer\n")[2].partition("\n## ")[0]
FILE = re.compile(r"(?:# |<!-- )(shop/[\w/]+\.\w+)(?: -->)?\n")
MOST = 7  # from `startproject` on
ANSWER = "Order 7 left the warehouse this morning."


def actions(text: str) -> list[tuple[str, str]]:
    """What a reader does: (a file's path, its text), or ("", a command)."""
    found: list[tuple[str, str]] = []
    for kind, body in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if kind == "sh":
            found += [("", line) for line in body.splitlines()]
        else:
            file = FILE.match(body)
            assert file, f"the block names no file: {body}"
            found.append((file.group(1), body[file.end() :]))
    return found


class Reader:
    """Follows the README in an empty folder."""

    def __init__(self, folder: Path, model: OpenAIServer) -> None:
        self.folder, self.model, self.flows = folder, model, model.flows
        self.port = free_port()
        kept = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG", "VIRTUAL_ENV")}
        self.env = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OPENAI_API_BASE": model.base_url,
            **{f"DJANGO_SUPERUSER_{name}": value for name, value in ACCOUNT.items()},
        }
        self.server: subprocess.Popen[bytes] | None = None

    def does(self, file: str, text: str) -> None:
        if file:
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as opened:
                opened.write(f"\n{text}")
        elif text.endswith(" runserver"):
            key, *command = [*text.split(), f"127.0.0.1:{self.port}"]
            name, _, value = key.partition("=")
            assert value == "…"
            self.env[name] = "key-of-the-test"
            with (self.folder / "server.log").open("wb") as log:
                self.server = subprocess.Popen(
                    command, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True
                )
            assert wait_until(lambda: not port_is_free("127.0.0.1", self.port), seconds(30))
        elif text != "pip install ravi-django":  # it is installed
            self._runs(text)

    def _runs(self, text: str) -> None:
        command, _, folder = text.partition(" && cd ")
        if command.endswith(" createsuperuser"):
            command += " --no-input"  # the account comes from the environment
        ran = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=seconds(60)
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
        self.folder /= folder

    def submits(self, text: str) -> None:
        """In `manage.py shell`, which ends at once."""
        code = f"from ravi_django import submit; submit('react/helper', {text!r}); import os; os._exit(0)"
        self._runs(f'python manage.py shell -v 0 -c "{code}"')

    def run(self) -> tuple[str, str, str]:
        """The newest run's status, worker and output."""
        with closing(sqlite3.connect(self.folder / "db.sqlite3")) as connection:
            row = "SELECT status, lease_owner, output FROM ravi_run ORDER BY created_at DESC LIMIT 1"
            status, worker, output = connection.execute(row).fetchone()
        return status, worker, output or ""

    def close(self) -> None:
        if self.server is not None and self.server.poll() is None:
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.wait(seconds(20))


ACCOUNT = {"USERNAME": "ada", "PASSWORD": "a-password-of-the-test", "EMAIL": "ada@example.com"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with OpenAIServer(Reply(text=ANSWER)) as model:
        reading = Reader(tmp_path, model)
        yield reading
        reading.close()


@pytest.mark.timeout(240)
def test_the_readme_leads_to_an_answer_that_streams_to_the_chat_without_asgi(reader, chromium) -> None:
    steps = actions(SECTION)
    assert len(steps[1:]) <= MOST, "after pip install"

    for step in steps:
        reader.does(*step)
    with chromium() as running:
        page = browser.new_page(running, f"http://127.0.0.1:{reader.port}")
        page.goto("/ravi/")
        page.fill("[name=username]", ACCOUNT["USERNAME"])
        page.fill("[name=password]", ACCOUNT["PASSWORD"])
        page.click("[type=submit]")
        reader.flows.clear()
        page.wait_for_selector("ravi-chat:defined")
        page.fill("#text", "Where is order 7?")
        page.press("#text", "Enter")
        first = f".answer.live .prose:has-text('{ANSWER.split()[0]}')"  # the model has said no more yet
        page.wait_for_selector(first, timeout=BOUND_S * 1000)  # the server imports litellm first
        page.wait_for_selector("#banner:has-text('no ASGI process')")
        assert ANSWER not in page.inner_text(".answer")
        reader.flows.set()
        page.wait_for_selector(f".answer .prose:has-text('{ANSWER}')")
        page.wait_for_selector("#status:text-is('Done')")
        page.locator("#banner").wait_for(state="hidden")
        errors = page.errors
    assert errors == []
    assert "; no broker; agents: react/helper; " in (reader.folder / "server.log").read_text()


@pytest.mark.timeout(240)
def test_the_engine_starts_with_the_server_and_an_answer_goes_on_after_a_reload_and_after_a_kill(reader) -> None:
    steps = actions(SECTION)
    for step in steps[:2]:
        reader.does(*step)
    reader.does("shop/settings.py", 'RAVI = {"LEASE_S": 3600}')  # no lease expires in this test
    for step in steps[2:]:
        reader.does(*step)
    reader.flows.clear()

    reader.submits("Where is order 7?")

    assert wait_until(lambda: reader.run()[0] == "running", BOUND_S)
    assert wait_until(lambda: reader.model.requests, BOUND_S)  # the answer has begun
    first = reader.run()[1]
    os.utime(reader.folder / "shop" / "agents" / "__init__.py")  # the server reloads
    assert wait_until(lambda: reader.run()[0] == "running" and reader.run()[1] != first, BOUND_S)
    os.killpg(reader.server.pid, signal.SIGKILL)
    reader.server.wait(BOUND_S)
    reader.does("", "OPENAI_API_KEY=… python manage.py runserver")
    reader.flows.set()
    assert wait_until(lambda: reader.run()[0] == "completed", BOUND_S)
    assert ANSWER in reader.run()[2]


def test_the_readme_says_of_sqlite_what_the_check_says() -> None:
    settings = dict(actions(SECTION))["shop/settings.py"]

    assert ast.unparse(ast.parse(SQLITE_LINE)) in ast.unparse(ast.parse(settings))
