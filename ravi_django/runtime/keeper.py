"""Looks for what nobody hinted; without a broker it sweeps too, as beat does for Celery workers."""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import UUID

from ravi_django.conf import conf
from ravi_django.runtime import sweeper
from ravi_django.runtime.engine import Engine

log = logging.getLogger("ravi.keeper")


async def keep(engine: Engine, poll_s: float | None = None, *, sweeping: bool = True) -> None:
    """Until the engine drains: look for claimable runs every `poll_s` seconds (SWEEP_S when None), and sweep every
    SWEEP_S."""

    def hint_all(run_ids: list[UUID]) -> None:
        for run_id in run_ids:
            engine.loop.call_soon_threadsafe(engine.hint, run_id)

    last = float("-inf")
    while not engine.draining:
        try:
            if sweeping and time.monotonic() - last >= conf.SWEEP_S:
                await engine.database.call(sweeper.sweep, hint_all)
                last = time.monotonic()
            engine.look()
        except Exception as error:
            log.warning("could not sweep: %s", error, extra={"action": "sweep.failed"})
        await asyncio.sleep(poll_s or conf.SWEEP_S)
