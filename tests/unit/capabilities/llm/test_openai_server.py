"""The test server as a process, the way the benchmarks use it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support import forks

SERVER = Path(__file__).parents[3] / "support" / "openai_server.py"


@pytest.fixture
def server(tmp_path):
    """Start the server with flags; gives its address and its log."""
    started = []

    def start(*flags: str) -> tuple[str, Path]:
        log = tmp_path / "log.jsonl"
        command = [SERVER, "--port", "0", "--log", log, *flags]
        process = forks.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return f"http://127.0.0.1:{int(process.stdout.readline())}/v1/chat/completions", log

    yield start
    for process in started:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def ask(url: str, *messages: dict, **body) -> httpx.Response:
    return httpx.post(url, json={"model": "m1", "messages": list(messages), **body}, timeout=20)


def test_steps_then_text_without_streaming(server):
    url, log = server("--steps", "1", "--tokens", "3", "--tool", "search")
    user = {"role": "user", "content": "go"}

    asked = ask(url, user).json()
    call = asked["choices"][0]["message"]
    answered = ask(
        url, user, call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "x"}
    ).json()

    assert asked["model"] == "m1"
    assert call["tool_calls"][0]["function"] == {"name": "search", "arguments": "{}"}
    assert answered["choices"][0]["message"]["content"] == "word0 word1 word2"
    assert answered["usage"]["completion_tokens"] == 3
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert [len(entry["body"]["messages"]) for entry in logged] == [1, 3]


def test_fails_first_and_streams(server):
    url, _ = server("--fail-first", "1", "--tokens", "2")
    user = {"role": "user", "content": "go"}

    refused = ask(url, user)
    streamed = ask(url, user, stream=True, stream_options={"include_usage": True})

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "0.05")
    lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["usage"]["completion_tokens"] == 2
