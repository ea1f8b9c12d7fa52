"""Which workers of this machine run."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.world import workers_is_running


def test_a_process_that_ended_does_not_run_though_nobody_has_waited_for_it() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays in the table of processes

    assert workers_is_running(f"host:{os.getpid()}:a1b2c3")
    assert not workers_is_running(f"host:{ended.pid}:a1b2c3")
    ended.wait()
    assert not workers_is_running(f"host:{ended.pid}:a1b2c3")
