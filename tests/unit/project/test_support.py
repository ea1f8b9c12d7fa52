"""The support of the tests, their fork server, and what makes their environment."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from project.process import wait_until
from tests.support import forks
from tests.support.patience import BOUND_S
from tests.support.required import missing


@pytest.mark.parametrize(
    ("required", "end"), [(None, pytest.skip.Exception), ("0", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_a_missing_program_skips_a_test_or_fails_it_where_all_are_required(monkeypatch, required, end):
    monkeypatch.delenv("RAVI_REQUIRE_ALL", raising=False)
    if required is not None:
        monkeypatch.setenv("RAVI_REQUIRE_ALL", required)
    with pytest.raises(end, match="Chromium is missing: playwright install chromium"):
        missing("Chromium", "playwright install chromium")


PROGRAMS = (
    "import os, sys; print(sys.argv, sys.path[0], __name__, os.getcwd(), os.environ.get('HOME'), sys.stdin.read())",
    "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "raise SystemExit('words')",
    "def wrong(): 1/0\nwrong()",
    "no syntax",
    "import os, signal; print('lost'); os.kill(os.getpid(), signal.SIGKILL)",
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "import atexit, threading, time; atexit.register(print, 'last')\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('before'))).start()",
)


def _interruptible() -> None:
    """A shell's background job ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ended(program: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """From 3.13 on a traceback has the lines of `-c` too."""
    return program.returncode, program.stdout, re.sub(r"^    .*\n", "", program.stderr, flags=re.MULTILINE)


@pytest.mark.full
@pytest.mark.parametrize("code", PROGRAMS)
def test_a_fork_ends_as_python_does(code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(code)
    options = {"capture_output": True, "text": True, "input": "in", "cwd": tmp_path, "env": {"PATH": ""}}
    for command in (["-c", code, "argument"], [str(script), "argument"]):
        expected = subprocess.run([sys.executable, *command], preexec_fn=_interruptible, **options)
        found = forks.run(command, **options)
        assert _ended(found) == _ended(expected)


def test_a_fork_has_litellm_and_no_settings():
    code = "import sys; from django.conf import settings; print(settings.configured, *sys.modules)"
    configured, *modules = forks.run(["-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert configured == "False"
    assert "litellm" in modules and "project" not in modules and "ravi_django.models" not in modules


def test_a_fork_dies_with_the_process_that_asked_for_it():
    code = (
        "import os\nfrom tests.support import forks\n"
        "fork = forks.Popen(['-c', 'input()'], stdin=forks.subprocess.PIPE)\n"
        "print(fork.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    env = {**os.environ, "RAVI_TEST_FORKS": str(forks._forks().path)}
    pid = int(forks.run(["-c", code], env=env, capture_output=True, text=True).stdout)
    assert wait_until(lambda: not psutil.pid_exists(pid), BOUND_S)


def test_the_fork_server_outlives_clients_that_go_at_once(tmp_path):
    code = "import sys; from pathlib import Path; from tests.support import forks; forks.serve(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "socket")]
    started = []
    own = forks.Forks(tmp_path / "socket", lambda path, stdin: started.append(subprocess.Popen(command, stdin=stdin)))
    request = json.dumps({"argv": ["-c", ""], "env": {}, "cwd": "/"}).encode()
    with own.connect() as first:  # it connects before, so no new server answers it
        socket.send_fds(first, [request], [0, 1, 2])
        assert first.recv(forks.MESSAGE_BYTES)
        server = psutil.Process(started[0].pid)
        server.cpu_affinity(server.cpu_affinity()[:1])  # a fork has done little when the server runs again
        for _ in range(10):
            with own.connect() as client:
                socket.send_fds(client, [request], [0, 1, 2])

        assert forks.run(["-c", "print(1)"], capture_output=True, forks=own).stdout == b"1\n"
    own.close()
    assert [server.wait(BOUND_S) for server in started] == [0]


ROOT = Path(__file__).resolve().parents[3]


def test_an_environment_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    (copy / ".ci").mkdir(parents=True)
    (other / "bin").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "install", copy / ".ci" / "install")
    shutil.copy(ROOT / "pyproject.toml", copy / "pyproject.toml")
    used = other / "used"
    python = other / "bin" / "python"
    python.write_text(f"#!/bin/sh\ntouch {used}\n")
    python.chmod(0o755)
    (copy / ".venv").symlink_to(other)

    command = [sys.executable, str(copy / ".ci" / "install"), "dev"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)

    assert done.returncode == 2 and f".venv is a link to {other}" in done.stderr
    assert not used.exists() and not list(other.glob(".installed-*"))
