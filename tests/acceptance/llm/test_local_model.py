"""A real language model behind llama.cpp's server, through everything: HTTP, Celery, litellm, the websocket.

`make test-llm` runs these; they need the extra `local`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project.demo_check import THINKING_S, call, follow
from project.services import free_port
from tests.support.demo_process import ROOT, STOP_TIMEOUT_S, RunningDemo, all_gone, demo

pytestmark = [pytest.mark.llm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    port = free_port()
    with demo(port, tmp_path_factory.mktemp("demo"), model="local") as found:
        assert found.says("log in as demo / demo"), found.text
        yield found
    shutil.rmtree(ROOT / ".demo" / str(port), ignore_errors=True)


Frames = list[dict[str, Any]]


def converse(running: RunningDemo, text: str, session: str | None = None) -> tuple[dict[str, Any], Frames]:
    """The run when it is over, and every frame of it."""
    address = f"http://127.0.0.1:{running.port}"
    asked = {"agent": "react/assistant", "input": text} | ({"session": session} if session else {})
    run = call(address, "POST", "runs/", asked)
    ticket = call(address, "POST", "tickets/", {})["ticket"]
    frames = follow(address, run["id"], ticket, patience=THINKING_S)
    return call(address, "GET", f"runs/{run['id']}/"), frames


def streamed(frames: Frames) -> list[str]:
    return [frame["text"] for frame in frames if frame["type"] == "text.delta"]


def test_an_answer_is_streamed_through_the_whole_stack(running):
    run, frames = converse(running, "Tell me in a few sentences what a cat is.")

    assert (run["status"], run["error"]) == ("completed", None)
    assert len(streamed(frames)) > 1, "it came in one piece"
    assert run["output"].strip()
    assert "".join(streamed(frames)) == run["output"]
    assert run["usage"]["input_tokens"] > 0 and run["usage"]["output_tokens"] > 0
    assert run["usage"]["cost"] is None, "nobody knows its price"
    (completion,) = [frame for frame in frames if frame["type"] == "completion"]
    assert completion["usage"]["output_tokens"] == run["usage"]["output_tokens"]


def test_what_was_said_before_is_sent_along(running):
    first, _ = converse(running, "Hello, I am Ada.")

    second, _ = converse(running, "What can you tell me about rain?", session=first["session"])

    assert second["status"] == "completed"
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"] // 2


def test_its_server_ends_with_the_demo(tmp_path: Path):
    port = free_port()
    try:
        with demo(port, tmp_path, model="local") as running:
            assert running.says("log in as demo / demo"), running.text
            family = running.family()
            assert running.part("project.local_model") in family

            running.process.terminate()

            assert running.process.wait(STOP_TIMEOUT_S) == 0
            assert all_gone(family)
    finally:
        shutil.rmtree(ROOT / ".demo" / str(port), ignore_errors=True)
