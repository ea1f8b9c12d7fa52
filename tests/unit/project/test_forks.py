"""The fork server of the tests: its processes do what `python` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from project.process import wait_until
from tests.support import forks

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


@pytest.mark.parametrize("code", PROGRAMS)
def test_a_fork_ends_as_python_does(code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(code)
    options = {"capture_output": True, "text": True, "input": "in", "cwd": tmp_path, "env": {"PATH": ""}}

    for command in (["-c", code, "argument"], [str(script), "argument"]):
        expected = subprocess.run([sys.executable, *command], preexec_fn=_interruptible, **options)
        found = forks.run(command, **options)

        assert (found.returncode, found.stdout, found.stderr) == (
            expected.returncode,
            expected.stdout,
            expected.stderr,
        )


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

    assert wait_until(lambda: not psutil.pid_exists(pid), 60)
