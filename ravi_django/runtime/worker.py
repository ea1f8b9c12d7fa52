"""One engine a process, on a thread and an event loop of its own. Made when first used, and never before a fork."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import Future
from uuid import UUID

from ravi_django.conf import conf
from ravi_django.runtime import background, buffer, database, dispatch
from ravi_django.runtime.engine import Engine
from ravi_django.runtime.keeper import keep

log = logging.getLogger("ravi.worker")


class Worker:
    """Runs an Engine on its own thread; safe to call from any other."""

    def __init__(self) -> None:
        self._ready: Future[Engine] = Future()
        self._loop = asyncio.SelectorEventLoop()  # whatever the site's policy is: `branches` looks into it
        self._keeper: Future[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="ravi-loop", daemon=True)
        self._thread.start()
        self.engine = self._ready.result(timeout=60)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _start(self) -> None:
        try:
            self._ready.set_result(Engine())
        except BaseException as error:
            self._ready.set_exception(error)
            raise

    def hint(self, run_id: UUID | str) -> None:
        """Try for a run's lease, and return at once."""
        self._loop.call_soon_threadsafe(self.engine.hint, run_id)

    def look(self) -> None:
        """Look for any claimable run."""
        self._loop.call_soon_threadsafe(self.engine.look)

    def cancel(self, run_id: UUID) -> None:
        """Cancel a run that is driven here."""
        self._loop.call_soon_threadsafe(self.engine.cancel_run, run_id)

    def keep_looking(self, *, sweeping: bool = False) -> None:
        """Look every RAVI["SWEEP_S"] seconds. No hint comes while the broker is away, and Celery itself takes up to
        half a minute to see that it is back. `sweeping` does the beat's part too."""
        self._keeper = asyncio.run_coroutine_threadsafe(keep(self.engine, sweeping=sweeping), self._loop)

    def stop_claiming(self) -> None:
        self.engine.draining = True

    def close(self) -> None:
        """Drain, then end the loop and the thread."""
        if not self._thread.is_alive():
            return
        if self._keeper is not None:
            self._keeper.cancel()
        background.stop()
        asyncio.run_coroutine_threadsafe(self.engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


_worker: Worker | None = None
_lock = threading.Lock()


def get_worker() -> Worker:
    """This process's worker; started by the first call."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = Worker()
            dispatch.register_cancel(_worker.cancel)
            if conf.ENGINE == "inline":  # nobody else looks after these runs
                _worker.keep_looking(sweeping=True)
        return _worker


def close_worker() -> None:
    """Drain this process's worker, if it has one."""
    global _worker
    with _lock:
        worker, _worker = _worker, None
        dispatch.register_cancel(None)
    if worker is not None:
        worker.close()


def _after_fork() -> None:
    """Threads, loops and connections of the parent are not ours."""
    global _worker, _lock
    _worker, _lock = None, threading.Lock()
    dispatch.register_cancel(None)
    buffer.forget_buffers()
    database.forget_readers()


os.register_at_fork(after_in_child=_after_fork)
