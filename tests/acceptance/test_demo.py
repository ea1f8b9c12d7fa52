"""`make demo` as a person meets it: real processes, real ports, Ctrl-C, and the occasional kill -9."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.process import wait_until
from project.services import free_port
from tests.support.demo_process import ROOT, STOP_TIMEOUT_S, all_gone, demo

PARTS = {"postgresql", "valkey", "feeds", "web", "worker", "beat"}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two free ports; what the demos on them kept is removed afterwards."""
    found = [free_port(), free_port()]
    yield found
    for port in found:
        shutil.rmtree(ROOT / ".demo" / str(port), ignore_errors=True)


@pytest.fixture
def port(ports: list[int]) -> int:
    return ports[0]


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ravi/health/", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_check_has_a_conversation_and_ends(port: int, tmp_path: Path) -> None:
    with demo(port, tmp_path, "--check") as checked:
        status = checked.process.wait(150)

        assert status == 0, checked.text
        assert checked.text.rstrip().endswith("demo: ok")
        assert "84" in checked.text
        assert "demo's reader: A telescope on a hill" in checked.text
        assert "ada's reader: A telescope on a hill" in checked.text


@pytest.mark.parametrize("how", ["terminate", "interrupt the group"])
def test_everything_ends_with_it(port: int, tmp_path: Path, how: str) -> None:
    with demo(port, tmp_path) as running:
        assert running.says("log in as demo / demo"), running.text
        assert all(f"  {part} " in running.text for part in PARTS)
        family = running.family()
        assert len(family) > len(PARTS)

        if how == "terminate":
            running.process.terminate()
        else:
            os.killpg(running.process.pid, signal.SIGINT)

        assert running.process.wait(STOP_TIMEOUT_S) == 0
        assert all_gone(family)


def test_starts_again_after_it_was_killed(port: int, tmp_path: Path) -> None:
    with demo(port, tmp_path) as killed:
        assert killed.says("log in as demo / demo"), killed.text
        family = killed.family()
        killed.process.kill()
        killed.process.wait(30)

    with demo(port, tmp_path, "--check") as checked:
        assert checked.process.wait(150) == 0, checked.text
        assert all_gone(family)


def test_a_part_that_dies_is_reported_and_started_again(port: int, tmp_path: Path) -> None:
    with demo(port, tmp_path) as running:
        assert running.says("log in as demo / demo"), running.text

        running.part("worker").kill()
        running.part("uvicorn").kill()

        assert running.says("worker      started again")
        assert running.says("web         started again")
        assert "SIGKILL" in running.text
        assert wait_until(lambda: healthy(port), 30, poll=0.2)


def test_a_second_one_on_the_same_port_refuses_and_leaves_the_first_alone(port: int, tmp_path: Path) -> None:
    with demo(port, tmp_path) as first:
        assert first.says("log in as demo / demo"), first.text

        with demo(port, tmp_path) as second:
            assert second.process.wait(30) == 1
            assert f"another demo runs on port {port}" in second.text

        assert healthy(port)


def test_two_ports_run_side_by_side(ports: list[int], tmp_path: Path) -> None:
    with demo(ports[0], tmp_path) as one, demo(ports[1], tmp_path, "--check") as other:
        assert other.process.wait(200) == 0, other.text
        assert one.says("log in as demo / demo"), one.text
        assert healthy(one.port)


def test_a_taken_port_is_refused_in_words(port: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", port)), demo(port, tmp_path) as refused:
        assert refused.process.wait(30) == 1
        assert f"port {port} on 127.0.0.1 is taken" in refused.text
