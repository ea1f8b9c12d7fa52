"""`make demo` as a person meets it: real processes, real ports, Ctrl-C, and the occasional kill -9.

Most tests share one demo. A test that ends it leaves the next one to start it again.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from project.demo_check import answered, call, follow, followed, logged_in
from project.process import wait_until
from project.services import free_port
from tests.support import template
from tests.support.demo_process import ROOT, STOP_TIMEOUT_S, RunningDemo, all_gone, demo
from tests.support.patience import BOUND_S, seconds

PARTS = {"postgresql", "valkey", "feeds", "web", "worker", "beat"}
CONVERSATION = ("84", "demo's reader: A telescope on a hill", "ada's reader: A telescope on a hill")

pytestmark = [pytest.mark.timeout(400), pytest.mark.full]


@pytest.fixture
def port() -> Iterator[int]:
    """A free port; the data of its demos is removed afterwards."""
    port = free_port()
    yield port
    shutil.rmtree(ROOT / ".demo" / str(port), ignore_errors=True)


def migrated(port: int) -> int:
    """Give the port's demo a database with its tables."""
    folder = ROOT / ".demo" / str(port)
    folder.mkdir(parents=True)
    template.cluster(folder / "postgresql")
    return port


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RunningDemo]]:
    """Start the module's demo, unless it runs."""
    folder, port = tmp_path_factory.mktemp("demo"), migrated(free_port())
    demos: list[RunningDemo] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, ROOT / ".demo" / str(port), ignore_errors=True)

        def start() -> RunningDemo:
            if not demos or demos[-1].process.poll() is not None:
                demos.append(stack.enter_context(demo(port, folder)))
                assert demos[-1].says("log in as demo / demo"), demos[-1].text
            return demos[-1]

        yield start


@pytest.fixture
def running(start: Callable[[], RunningDemo]) -> RunningDemo:
    return start()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ravi/health/", timeout=seconds(5)) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_a_second_one_on_the_same_port_refuses_and_leaves_the_first_alone(running: RunningDemo, tmp_path: Path) -> None:
    with demo(running.port, tmp_path) as second:
        assert second.process.wait(BOUND_S) == 1
        assert f"another demo runs on port {running.port}" in second.text

    assert healthy(running.port)


def test_a_first_start_beside_another_demo_has_a_conversation_and_ends(running, port, tmp_path) -> None:
    """This one starts from nothing."""
    with demo(port, tmp_path, "--check") as checked:
        status = checked.process.wait(seconds(300))

    assert status == 0, checked.text
    assert checked.text.rstrip().endswith("demo: ok")
    assert all(words in checked.text for words in CONVERSATION)
    assert healthy(running.port)


def test_the_tour_s_button_kills_the_worker_and_the_answer_goes_on(running: RunningDemo) -> None:
    address = f"http://127.0.0.1:{running.port}"
    button = f"{address}/demo/kill-worker/"
    demo, ada = (logged_in(address, user) for user in ("demo", "ada"))
    with demo.open(f"{address}/ravi/ui/chat/") as page:
        token = re.search(
            r'kill-worker/"><input type="hidden" name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode()
        )
    form = urlencode({"csrfmiddlewaretoken": token and token[1]}).encode()
    for browser, body in ((ada, form), (demo, b"")):
        with pytest.raises(HTTPError, match="403"):
            browser.open(button, body)
    pressed: list[int] = []

    def press(frame: dict[str, Any]) -> None:
        if frame["type"] == "text.delta" and not pressed:
            pressed.append(demo.open(button, form).status)

    run = call(address, "POST", "runs/", {"agent": "react/storyteller", "input": "Tell me the story"})
    ticket = call(address, "POST", "tickets/", {})["ticket"]
    frames = follow(address, run["id"], ticket, patience=seconds(60), on_frame=press)

    assert pressed == [204]
    assert len({frame["attempt"] for frame in frames if frame["type"] == "text.delta"}) == 2  # leases
    assert [frame["type"] for frame in frames if frame.get("step") == "tool_result"] == ["progress"]
    assert "two keepers" in answered(address, run["id"])
    assert running.says("worker      started again") and "SIGKILL" in running.text


def test_the_tour_publishes_news_and_is_reminded(running: RunningDemo) -> None:
    address = f"http://127.0.0.1:{running.port}"
    title = f"A comet of {running.process.pid} records"
    run, _ = followed(address, "react/reporter", f"Publish: {title}")
    assert "is done" in answered(address, run["id"])
    run, _ = followed(address, "react/reminder", "Remind me to stretch")
    browser = logged_in(address, "demo")

    def came() -> bool:
        later = call(address, "GET", f"runs/?session={run['session']}")["results"]
        with browser.open(f"{address}/feed/items/") as items:
            return len(later) == 2 and title in items.read().decode()

    assert wait_until(came, seconds(60), poll=0.5)


def test_a_part_that_dies_is_reported_and_started_again(running: RunningDemo) -> None:
    running.part("uvicorn").kill()

    assert running.says("web         started again")
    assert "SIGKILL" in running.text
    assert wait_until(lambda: healthy(running.port), BOUND_S, poll=0.2)


def test_starts_again_after_it_was_killed(start: Callable[[], RunningDemo]) -> None:
    killed = start()
    family = killed.family()
    killed.process.kill()
    killed.process.wait(seconds(30))

    again = start()

    assert again is not killed
    assert all_gone(family)
    # Its file of variables is for a person's own shell.
    check = f". .demo/{again.port}/env && exec {sys.executable} manage.py ravi_doctor"
    checked = subprocess.run(["bash", "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=seconds(200))
    assert " errors=0" in checked.stdout, checked.stdout + checked.stderr
    run, _ = followed(f"http://127.0.0.1:{again.port}", "react/assistant", "What is 12 * 7?")
    assert "84" in answered(f"http://127.0.0.1:{again.port}", run["id"])


def test_everything_ends_with_ctrl_c(running: RunningDemo) -> None:
    assert all(f"  {part} " in running.text for part in PARTS)
    family = running.family()
    assert len(family) > len(PARTS)

    os.killpg(running.process.pid, signal.SIGINT)

    assert running.process.wait(STOP_TIMEOUT_S) == 0
    assert all_gone(family)


def test_everything_ends_with_sigterm_while_it_starts(port: int, tmp_path: Path) -> None:
    with demo(migrated(port), tmp_path) as starting:
        assert starting.says("  feeds "), starting.text
        family = starting.family()
        assert len(family) >= 3

        starting.process.terminate()

        assert starting.process.wait(STOP_TIMEOUT_S) == 0
        assert all_gone(family)
    assert starting.text.endswith("demo: stopped\n")


def test_a_taken_port_is_refused_in_words(port: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", port)), demo(port, tmp_path) as refused:
        assert refused.process.wait(BOUND_S) == 1
        assert f"port {port} on 127.0.0.1 is taken" in refused.text
