"""Renew all leases of a process, on an own thread and connection: a busy event loop must not lose them."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from contextlib import suppress
from uuid import UUID

from django.db import connections

from ravi_django.calls.model import model_limits
from ravi_django.conf import conf
from ravi_django.engine.db.connections import limit_waits
from ravi_django.engine.db.threads import with_retry
from ravi_django.engine.lease import claims
from ravi_django.engine.worker.drive import Driver
from ravi_django.runs import workers
from ravi_django.runs.budgets import accounts

log = logging.getLogger("ravi.heartbeat")

REPEAT_S = 1.0  # between a failed heartbeat and the next, while the leases expire


class Heartbeat(threading.Thread):
    """`first_s`: seconds until the first heartbeat. If stopped before, it writes nothing."""

    def __init__(self, engine: Driver, *, first_s: float = 0.0) -> None:
        super().__init__(name="ravi-heartbeat", daemon=True)
        self._engine = engine
        self._first_s = first_s
        self._loop_thread = threading.get_ident()  # it is created on the loop's thread
        self._ticked = time.monotonic()
        self._stop_asked = threading.Event()
        self.failed = False  # whether the last heartbeat failed: then the engine claims nothing
        self._unreached: list[UUID] = []  # runs that the last heartbeat had no time for

    def run(self) -> None:
        limit_waits()
        if self._stop_asked.wait(self._first_s) and self._engine.name not in workers.code_of:
            return
        while not self._stop_asked.is_set():
            pause = conf.HEARTBEAT_S
            try:
                self.beat()
                self.failed = False
            except Exception:
                self.failed = True
                log.exception("heartbeat failed", extra={"action": "heartbeat.failed"})
                pause = min(pause, REPEAT_S)
            self._stop_asked.wait(pause)
        try:
            self._sign_off()
        except Exception as error:
            log.warning("could not sign off: %s", error, extra={"action": "heartbeat.sign_off"})
        connections.close_all()

    def _sign_off(self) -> None:
        """Delete the worker's row, once no call that was given up runs in this process: it may live on."""
        name = self._engine.name
        while workers.code_of.get(name):
            with suppress(Exception):  # the database is away: again with the next
                with_retry(workers.worker_seen, name, 0)
            workers.code_changed.wait(conf.HEARTBEAT_S)
            workers.code_changed.clear()
        with_retry(workers.worker_gone, name)

    def stop(self) -> None:
        self._stop_asked.set()
        if not workers.code_of.get(self._engine.name):
            self.join(timeout=5)

    def beat(self) -> None:
        """Renew all leases at once. A loop that has not ticked for two lease times loses its leases."""
        if self._stalled():
            if workers.code_of.get(self._engine.name):  # threads run on
                with_retry(workers.worker_seen, self._engine.name)
            return
        asked_at = time.monotonic()
        late = {run_id: index for index, run_id in enumerate(self._unreached)}
        held = sorted(self._engine.active.values(), key=lambda active: late.get(active.lease.run_id, len(late)))
        leases = [(active.lease.run_id, active.lease.epoch) for active in held]
        seen = {
            active.lease.run_id: active.recorder.state.wake_state.wake_seq or active.lease.run.wake_seq
            for active in held
        }
        verdicts = with_retry(claims.heartbeat, self._engine.name, leases, seen) if leases else {}
        self._unreached = [run_id for run_id, verdict in verdicts.items() if verdict == "unreached"]
        for active in held:
            verdict = verdicts[active.lease.run_id]
            if verdict in ("ok", "cancel", "displaced", "woken"):
                active.recorder.state.renewed(asked_at)
            if verdict in ("cancel", "lost", "displaced", "woken"):
                args = (active.lease.run_id, active.lease.epoch, verdict)
                self._engine.loop.call_soon_threadsafe(self._engine.verdict, *args)
        with_retry(workers.worker_seen, self._engine.name, len(leases))
        try:
            accounts.refresh()
            model_limits.refresh()
        except Exception:  # the leases are renewed
            log.exception("could not refresh budgets and limits", extra={"action": "heartbeat.budgets"})

    def _stalled(self) -> bool:
        age = time.monotonic() - self._ticked
        self._engine.loop.call_soon_threadsafe(self._tick)
        if age < 2 * conf.LEASE_S:
            return False
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame else "?"
        message = "the event loop has not moved for %.0f s; its leases are not renewed. It is at:\n%s"
        log.error(message, age, stack, extra={"action": "loop.stalled"})
        return True

    def _tick(self) -> None:
        self._ticked = time.monotonic()
