"""The engine of a process: claims leases, drives them on one event loop, and drains them at its end.

Celery workers, `ravi_worker` and the in-process `Runtime` use it. `drive.py` drives one lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import Error

from ravi_django.bytes_budget import process_bytes
from ravi_django.calls.llm import close_clients
from ravi_django.calls.model import model_limits, permits
from ravi_django.conf import conf
from ravi_django.engine.db.threads import CLOSE_S, DatabaseThreads, on_thread
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease import claims, paths
from ravi_django.engine.lease.appender import Appender
from ravi_django.engine.worker.drive import Driver
from ravi_django.engine.worker.heartbeat import Heartbeat
from ravi_django.live.streams.publisher import Publisher
from ravi_django.runs import hints
from ravi_django.runs.catalog.registry import known_addresses

log = logging.getLogger("ravi.engine")

BATCH = 16  # runs of one claim, at most
GRANT_S = 1.0  # between two looks whether runs that wait for a model's limit have their turn
END_S = 5.0  # for leases to end after they were stopped


class Engine(Driver):
    """Create it inside the event loop that it uses; `close` drains it.

    With an `appender` (`ravi_django.testing`) the engine leaves the appender's connections open, and its first
    heartbeat is due after HEARTBEAT_S: a short drive then opens no connection.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        on_promoted: Callable[[UUID], None] | None = None,
        appender: Appender | None = None,
    ) -> None:
        super().__init__()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.appender = appender or Appender(DatabaseThreads(int(conf.DB_THREADS)))
        self.database = self.appender.database
        self._owns_database = appender is None
        self.in_test = appender is not None
        self.publisher = Publisher()
        self._leases: set[asyncio.Task[Any]] = set()
        self._hinted: dict[UUID, bool] = {}  # hinted runs whose claims are to come, and whether they were hinted since
        self._driving = 0  # leases held or being claimed
        self._looking = False
        self._grants = False
        self._more = False  # there may be claimable runs that were not hinted here
        self._on_promoted = on_promoted
        self._restore_task_factory = paths.install(self.loop)
        self.heartbeat = Heartbeat(self, first_s=0.0 if self._owns_database else conf.HEARTBEAT_S)
        self.heartbeat.start()
        self._timer = self.loop.call_later(GRANT_S, self._grant_soon)

    # -------------------------------------------------------------------------------------------- one lease

    async def drive(self, run_id: UUID | str) -> bool:
        """Claim a run and drive one lease of it; returns whether the claim succeeded."""
        key = run_id if isinstance(run_id, UUID) else UUID(run_id)
        if not self.has_room or self.database.waiting >= BATCH:
            self._hinted.pop(key, None)
            if self.has_room:
                self.look()  # in the order of `claim_at`: no hint queues behind hundreds of another owner's
            self._more = self._more or not self.has_room
            return False  # the row stays claimable
        suspect = self._suspect
        self._driving += 1
        try:
            leases = await self._claim(1, claims.claim, run_id, self.name, known_addresses(), suspect is None)
        finally:
            was_hinted = self._hinted.pop(key, False)
        if not leases and was_hinted:  # the claim may have been earlier than the wake-up of the last hint
            return await self.drive(run_id)
        for lease in leases:
            await self._drive_claimed(lease)
        if not leases and suspect is not None and await self.database.call(claims.waits_as_suspect, run_id):
            warning = "run %s waits: its workers died, and this one drives run %s, whose workers died too"
            log.warning(warning, run_id, suspect, extra={"action": "run.suspect_waits"})
        return bool(leases)

    async def _claim(self, room: int, claim: Callable[..., Lease | list[Lease] | None], *args: Any) -> list[Lease]:
        """Claim on a database thread. So many slots are taken already: those without a lease are given back."""
        leases: list[Lease] = []
        try:
            asked_at = time.monotonic()
            claimed = await self.database.call(claim, *args) or []
            leases = [
                replace(lease, asked_at=asked_at) for lease in (claimed if isinstance(claimed, list) else [claimed])
            ]
        finally:
            self._driving -= room - len(leases)
            if not leases and self._more and self.has_room:
                self.look()
        return leases

    async def _drive_claimed(self, lease: Lease) -> None:
        try:
            await self._drive_lease(lease)
        finally:
            self._driving -= 1
            if self._more:
                self.look()

    @property
    def has_room(self) -> bool:
        """Whether there is a slot for any run. The last slot is kept for expired leases."""
        return self._has_slot(max(1, conf.MAX_RUNS - 1))

    def _has_slot(self, slots: int) -> bool:
        unable = self.draining or self.heartbeat.failed or self._tools.is_exhausted or process_bytes.is_full
        return self._driving < slots and not unable

    # --------------------------------------------------------------------------------------------- many leases

    def hint(self, run_id: UUID | str) -> asyncio.Task[bool] | None:
        """Try for the lease of a run in the background. Called on the loop's thread."""
        if self.draining:
            return None
        key = run_id if isinstance(run_id, UUID) else UUID(run_id)
        active = self.active.get(key)
        if active is not None:  # it is driven here: one of its waits may be met
            return self._background(active.recorder.refresh()) if active.recorder.waits.waits_for else None
        if key in self._hinted:
            self._hinted[key] = True
            return None
        self._hinted[key] = False
        return self._background(self.drive(key))

    def is_here(self, run_id: UUID) -> bool:
        """Whether the run is driven here, or its claim is under way."""
        return run_id in self.active or run_id in self._hinted

    def wake(self, run_ids: Iterable[UUID]) -> None:
        """Hint runs that a run driven here has made claimable: here while half of the process is free or the run is
        here already, else through the broker."""
        elsewhere = []
        for run_id in run_ids:
            if run_id in self.active or self._has_slot(max(1, conf.MAX_RUNS // 2)):
                self.promote(run_id)
            else:
                elsewhere.append(run_id)
        self._more = self._more or bool(elsewhere)
        if elsewhere and conf.ENGINE == "celery":
            self._background(asyncio.to_thread(hints.send_many, elsewhere))

    def _background(self, coro: Any) -> asyncio.Task[Any]:
        with paths.entered(None):  # not part of a run whose code may be the caller
            task = asyncio.create_task(coro)
        self._leases.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._leases.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a lease failed: %s", task.exception(), exc_info=task.exception())

    def look(self) -> None:
        """Look for the next claimable runs, one look at a time. After a look that found nothing, the end of a lease
        starts a new look only if a hint has found no room."""
        has_room = self.has_room
        self._more = self._looking or not has_room
        if not self._looking and self._has_slot(conf.MAX_RUNS):
            self._looking = True
            room = min(BATCH - self.database.waiting, conf.MAX_RUNS - 1 - self._driving) if has_room else 1
            room = max(1, room)
            self._driving += room  # before the task begins: the slots are taken from now on
            self._background(self._look(room, not has_room))

    async def _look(self, room: int, only_expired: bool) -> None:
        """Claim what there is room for, and look again. The next claim queues for a database thread behind the loads of
        these runs, and takes no more than a batch with the calls that wait: a process claims what it can start at once
        and leaves the rest to others, and what comes meanwhile has its turn by `claim_at`."""
        leases = await self._claim(room, self._claim_batch, room, only_expired)
        for lease in leases:
            self._background(self._drive_claimed(lease))
        if leases:
            self.look()

    def _claim_batch(self, room: int, only_expired: bool) -> list[Lease]:
        try:
            suspects = self._suspect is None
            return claims.claim_batch(self.name, known_addresses(), room, suspects, only_expired=only_expired)
        finally:
            self._looking = False

    def _grant_soon(self) -> None:
        if model_limits.is_waited_for() and not (self.draining or self.in_test or self._grants):
            self._background(self._grant())
        self._timer = self.loop.call_later(GRANT_S, self._grant_soon)

    async def _grant(self) -> None:
        """Wake the runs that wait for a model's limit and have their turn."""
        self._grants = True
        try:
            self.wake(await self.database.call(permits.grant))
        finally:
            self._grants = False

    def promote(self, run_id: UUID) -> None:
        if self._on_promoted is not None:
            self._on_promoted(run_id)
        else:
            self.hint(run_id)

    def verdict(self, run_id: UUID, epoch: int, verdict: str) -> None:
        """Act on the heartbeat's verdict on a lease: "cancel", "lost", "displaced" or "woken"."""
        active = self.active.get(run_id)
        if active is None or active.lease.epoch != epoch:
            return
        if verdict == "lost":
            active.lost = True
            active.cancel_task()
        elif verdict == "cancel":
            self.cancel(active, "cancelled")
        elif verdict == "displaced":
            active.recorder.waits.drain()
        elif verdict == "woken" and active.recorder.waits.waits_for:
            self._background(active.recorder.refresh())

    def cancel_run(self, run_id: UUID) -> None:
        """Cancel a run that is driven here, without waiting for a heartbeat."""
        if active := self.active.get(run_id):
            self.cancel(active, "cancelled")

    # --------------------------------------------------------------------------------------------- the end

    async def close(self, drain_s: float | None = None) -> None:
        """Stop claiming, start no new effect, wait for open calls, release the other runs as pending, and stop."""
        self.draining = True
        self._timer.cancel()
        for active in list(self.active.values()):
            active.recorder.waits.drain()
        if self._leases:
            await asyncio.wait(self._leases, timeout=conf.DRAIN_S if drain_s is None else drain_s)
        for active in list(self.active.values()):
            active.recorder.waits.drain()
            active.recorder.state.give_up()
            active.cancel_task()
        if self._leases:
            await asyncio.wait(self._leases, timeout=END_S)
        self._restore_task_factory()
        if self._owns_database:
            self.appender.close()
        await close_clients()
        await on_thread(self._close_threads)
        try:
            if self.publisher.has_ended:
                async with asyncio.timeout(CLOSE_S):
                    await self.database.call(self.publisher.archive)
        except (TimeoutError, Error):
            log.warning("ended streams are left to the sweep", extra={"action": "publish.archive"})
        finally:
            if self._owns_database:
                await on_thread(self.database.close)

    def _close_threads(self) -> None:
        self.heartbeat.stop()
        self.publisher.close()
        self._tools.close()
