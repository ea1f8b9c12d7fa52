"""Processes that fell asleep at a point, and go on behind the back of whoever took their run over: zombies."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.acceptance.crash.lab import Lab, Process

LEASE_S = 2.0  # of the laboratory's settings
ASLEEP_S = 10 * LEASE_S  # at most: one that sleeps in a transaction keeps its run from being taken over


class Sleepers:
    """Wakes each when its run has been taken over, or, one that is `kept`, when it is told to."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._asleep: dict[str, tuple[Process, float]] = {}  # by tree: who, since when
        self._woken: dict[str, tuple[Process, object]] = {}  # who, and the database's time
        self._known: set[Path] = set()
        self._retired: set[int] = set()
        self.kept: set[str] = set()
        self.overslept: set[str] = set()  # nobody had taken these over by then

    def tend(self) -> None:
        for path in set((self._lab.folder / "fired").glob("*:STOP")) - self._known:
            self._notice(path)
        for tree_id, (_, since) in list(self._asleep.items()):
            late, taken_over = time.monotonic() - since > ASLEEP_S, self._taken_over(tree_id)
            if tree_id not in self.kept and (late or taken_over):
                self.overslept |= set() if taken_over else {tree_id}
                self.wake(tree_id)
        if len(self._lab.awake()) > self._lab.wanted:
            self._retire_one()

    def _retire_one(self) -> None:
        """There are others in the place of those who slept."""
        for tree_id, (process, _) in self._woken.items():
            if process.running and process.pid not in self._retired and self.up(tree_id):
                self._retired.add(process.pid)
                self._lab.signal(process, signal.SIGTERM)
                return

    def _notice(self, path: Path) -> None:
        if not (pid := path.read_text()).isdigit():
            return  # about to be written
        self._known.add(path)
        tree_id = path.name.partition(".")[0]
        process = self._lab.process(int(pid))
        process.stopped = True
        self._asleep[tree_id] = (process, time.monotonic())

    def _taken_over(self, tree_id: str) -> bool:
        sql = "SELECT 1 FROM lab_takeover WHERE run IN (SELECT id FROM ravi_run WHERE %s IN (id, root_id)) LIMIT 1"
        return bool(self._lab.query(sql, tree_id))

    def wake(self, tree_id: str) -> None:
        process, _ = self._asleep.pop(tree_id)
        self._woken[tree_id] = (process, self._lab.query("SELECT now() AS now")[0]["now"])
        self._lab.signal(process, signal.SIGCONT)

    def up(self, tree_id: str) -> bool:
        """Whether it has been awake for two heartbeats at least: what it was at, it has done or given up."""
        if tree_id not in self._woken:
            return False
        process, since = self._woken[tree_id]
        sql = "SELECT 1 FROM ravi_workerprocess WHERE name LIKE %s AND seen_at > %s::timestamptz + interval '1.2 s'"
        return not process.running or bool(self._lab.query(sql, f"%:{process.pid}:%", since))
