"""One child process of the demo: started in a session of its own, logged to a file, never left behind.

The ways a child can be left behind, and what is done about each:

- the supervisor ends normally or by a signal: `stop()`;
- the supervisor is killed with SIGKILL: on Linux the kernel kills the child (PR_SET_PDEATHSIG);
- the same where the kernel cannot: the pid file lets the next start end the leftover, and only if it is ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ProcessError(Exception):
    """A child did not start or stop as it should. The message ends with the tail of its log."""


def wait_until(condition: Callable[[], bool], timeout: float, *, poll: float = 0.02) -> bool:
    """True as soon as the condition holds; False when it did not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll)
    return True


class Child:
    """A process that can be started, stopped and started again. Start it from the main thread: the kernel ties the
    child's life to the *thread* that started it.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        pid_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,  # numeric user id to run as; its primary group comes along
        stop_signals: Sequence[tuple[signal.Signals, float]] = ((signal.SIGTERM, 8.0),),  # each with its patience in s
        death_signal: signal.Signals = signal.SIGKILL,  # sent by the kernel when the supervisor is gone
    ) -> None:
        self.name = name
        self.argv = [str(part) for part in argv]
        self.log = log
        self.pid_file = pid_file
        self.env = dict(env or {})
        self.cwd = cwd
        self.user = user
        self.stop_signals = stop_signals
        self.death_signal = death_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while running or when never started."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; a no-op while it runs. Ends what an earlier supervisor left behind first."""
        if self.running:
            return
        self.end_leftover()
        self._asked = False
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = self._popen(log)
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.pid_file.write_text(json.dumps({"pid": self._process.pid, "created": _created(self._process.pid)}))

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.cwd,
            env={**os.environ, **self.env},
            start_new_session=True,  # the terminal's Ctrl-C is for the supervisor, which stops us in order
            preexec_fn=_die_with_parent(self.death_signal),
            **as_user(self.user),
        )

    def end_leftover(self) -> None:
        """End the process that the pid file names, when it still is the one that an earlier supervisor started (a pid
        is reused sooner or later; a pid and a start time together are not)."""
        try:
            noted = json.loads(self.pid_file.read_text())
            process = psutil.Process(noted["pid"])
            if abs(process.create_time() - noted["created"]) < 2.0:
                end_process(process, self.stop_signals)
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            pass  # no pid file, half a pid file, or no such process: nothing was left
        self.pid_file.unlink(missing_ok=True)

    def ask_to_stop(self) -> None:
        """Send the first stop signal and return: lets several children stop at the same time."""
        if self.running and self._process:
            self._asked = True
            self._process.send_signal(self.stop_signals[0][0])

    def stop(self) -> None:
        """Stop the process, patiently first, with SIGKILL at last. Does nothing when it is not running."""
        if self._process is None:
            return
        for stop_signal, patience in self.stop_signals:
            if not self.running:
                break
            if not self._asked:  # twice would be taken for impatience
                self._process.send_signal(stop_signal)
            self._asked = False
            wait_until(lambda: not self.running, patience)
        if self.running:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL to the process and whatever it started in its session."""
        if self._process is None:
            return
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._forget()

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 16_384))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _forget(self) -> None:
        self.pid_file.unlink(missing_ok=True)


def end_process(process: psutil.Process, stop_signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """End a process that is not our child, patiently first, with SIGKILL at last."""
    for stop_signal, patience in (*stop_signals, (signal.SIGKILL, 5.0)):
        try:
            process.send_signal(stop_signal)
            process.wait(timeout=patience)
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            pass
        return


def _created(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:  # gone already: the caller will find out from the exit status
        return 0.0


def as_user(user: int | None) -> dict[str, Any]:
    """Arguments of `subprocess` to run as that user, and nothing for None."""
    if user is None:
        return {}
    import pwd

    return {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    if _LIBC is None:
        return None
    libc, supervisor = _LIBC, os.getpid()

    def prepare() -> None:
        # After setuid (which would clear it) and before exec. The parent may have died in between.
        libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)

    return prepare
