"""Poll the sources that are due, deliver their items, and set the next time. A source that hangs or fails does not
delay the others."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit
from uuid import UUID

from ravi_django.calls.llm.errors import error_text
from ravi_django.conf import conf
from ravi_django.engine.db.threads import DatabaseThreads
from ravi_django.models import Source
from ravi_django.runs import background_tasks
from ravi_django.wings.feeds.fetching.adapter import PollDelayed, Polled, SourceError
from ravi_django.wings.feeds.fetching.fetch import TURN_S
from ravi_django.wings.feeds.sources import delivery, items as source_rows
from ravi_django.wings.feeds.sources.delivery import UNREAD, UNREAD_S
from ravi_django.wings.feeds.sources.pollers import FEEDS_AT_ONCE, GAP_S, Polling, pollers, run_alone

log = logging.getLogger("ravi.sources")

BOUND_S = 50.0  # a task begins no poll later; its running polls finish while the next task begins
LOOK_S = 2.0  # between two looks for more due sources
WHOLE_S = 210.0  # of one poll
LEASE_S = 60.0  # a poller that is killed holds its sources for so long
RENEWALS = 3  # of each lease
PER_HOST = 5  # polls of one server that wait for their turn
BACK_S = 24 * 3600.0  # the longest pause after failures
AT_ONCE = 50  # runs of one sweep for unread items
DB_THREADS = 2

_at_work = threading.Lock()
_servers: Counter[str] = Counter()  # running requests in this process
_servers_lock = threading.Lock()


def poll_due(limit: int | None = None, *, bound_s: float = BOUND_S) -> int:
    """Poll due sources until none is left, `limit` polls were made or `bound_s` seconds are over; returns the number of
    polls. While one call takes sources, a second call in the process returns at once."""
    if not _at_work.acquire(blocking=False):
        return 0
    polls = _Polls(limit, bound_s, _at_work.release)
    try:
        return run_alone(polls.run())
    finally:
        polls.takes_no_more()


def sweep() -> None:
    """Hint the polls when something is due, and begin runs for unread items; a query each."""
    sweep_unread()
    if source_rows.any_source_due(pollers()):
        background_tasks.hint("ravi.poll_sources")


def sweep_unread() -> list[UUID]:
    """Begin runs for unread items of ended runs; one query when there are none. Returns the runs, which are hinted."""
    begun = []
    for source_id in source_rows.left_unread(AT_ONCE):
        try:
            run_id = delivery.deliver_unread(source_id)
        except Exception as error:
            log.warning("source %s: no run for unread items: %s", source_id, error, extra={"action": "sources.unread"})
            continue
        if run_id is not None:
            begun.append(run_id)
    return begun


class _Polls:
    """The polls of one task."""

    def __init__(self, limit: int | None, bound_s: float, done_taking: Callable[[], None] = lambda: None) -> None:
        self._left = limit
        self._begun = time.monotonic()
        self._give_up = self._begun + bound_s
        self._whole_s = WHOLE_S
        self._done_taking: Callable[[], None] | None = done_taking
        self._room = 4 * FEEDS_AT_ONCE  # some wait for their turn at a server
        self._pollers = pollers()
        self._asked: Counter[str] = Counter()  # requests of these polls, by server
        self._held: dict[UUID, Source] = {}  # sources of running polls
        self._renewing = asyncio.Lock()
        self._made = 0

    async def run(self) -> int:
        self._database = DatabaseThreads(DB_THREADS, "ravi-sources")
        self._polling = Polling()
        running: set[asyncio.Task[None]] = set()
        renewals = asyncio.create_task(self._renew())
        try:
            while True:
                for source in await self._claimed(self._room - len(running)):
                    running.add(asyncio.create_task(self._poll(source)))
                if not running or self._is_drained():
                    return self._made
                done, running = await asyncio.wait(running, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (renewals, *running):
                task.cancel()
            await asyncio.gather(renewals, *running, return_exceptions=True)
            self._leave_all()
            self._polling.close()
            self._database.close()

    def takes_no_more(self) -> None:
        """Another call in this process may take sources now."""
        done_taking, self._done_taking = self._done_taking, None
        if done_taking is not None:
            done_taking()

    def _is_drained(self) -> bool:
        stopped_s = background_tasks.stopped_s(self._begun)
        return stopped_s is not None and stopped_s >= float(conf.DRAIN_S)

    async def _claimed(self, room: int) -> list[Source]:
        """Claim more sources if there is room for many: each claim is a query."""
        wanted = min(room, self._room if self._left is None else self._left)
        if self._left == 0 or time.monotonic() > self._give_up or background_tasks.stopped_s(self._begun) is not None:
            self.takes_no_more()
            return []
        if wanted <= 0 or (room < self._room // 4 and wanted == room):
            return []
        claimed = await self._database.call(source_rows.claim_sources, list(self._pollers), wanted, LEASE_S)
        full = await self._database.call(source_rows.full_sources, [source.id for source in claimed])
        behind = [source for source in claimed if source.id in full]
        if behind:
            await self._database.call(source_rows.put_off, behind, UNREAD_S, UNREAD)
        taken = [source for source in claimed if source.id not in full and self._admit(source)]
        if crowd := [source for source in claimed if source not in taken and source not in behind]:
            pause = 1.0 + PER_HOST * GAP_S * random.uniform(1, 2)  # noqa: S311
            await self._database.call(source_rows.put_off, crowd, pause)
        if self._left is not None:
            self._left -= len(taken)
        self._held |= {source.id: source for source in taken}
        return taken

    async def _renew(self) -> None:
        """Renew the leases of the sources of running polls. Without a lease, an item is still delivered once."""
        while True:
            await asyncio.sleep(LEASE_S / RENEWALS)
            async with self._renewing:
                try:
                    await self._database.call(source_rows.renew_sources, list(self._held.values()), LEASE_S)
                except Exception as error:
                    log.warning("the leases were not renewed: %s", error, extra={"action": "sources.not_renewed"})

    async def _let_go(self, source: Source) -> None:
        """Stop renewing its lease."""
        async with self._renewing:
            self._held.pop(source.id, None)

    def _admit(self, source: Source) -> bool:
        """At most PER_HOST sources of one server."""
        server = _server(source)
        with _servers_lock:
            if server and (self._asked[server] >= PER_HOST or _servers[server] > self._asked[server]):
                return False  # an earlier task in this process still sends it requests
            self._asked[server] += 1
            _servers[server] += 1
        return True

    def _leave(self, source: Source) -> None:
        with _servers_lock:
            self._asked[_server(source)] -= 1
            _servers[_server(source)] -= 1

    def _leave_all(self) -> None:
        """Also for sources that were claimed but not polled because of an error."""
        global _servers
        with _servers_lock:
            _servers -= self._asked  # keeps what is above 0
            self._asked.clear()

    async def _poll(self, source: Source) -> None:
        try:
            await self._polled(source)
        except PollDelayed:
            await self._written(source, source_rows.put_off, [source], _spread(TURN_S))
        except SourceError as error:
            await self._written(source, _failed, source, error)
        except Exception as error:
            log.exception("the poll of source %s failed", source.id, extra={"action": "sources.failed"})
            await self._written(source, _failed, source, SourceError(error_text(error)))
        self._made += 1

    async def _polled(self, source: Source) -> None:
        try:
            polled = await self._within_bounds(source)
        finally:
            self._leave(source)
            await self._let_go(source)
        if await self._database.call(_deliver, source, polled):
            await self._database.call(_read, source, polled)

    async def _within_bounds(self, source: Source) -> Polled:
        """Do not wait for an adapter that ignores cancellation."""
        polling = asyncio.ensure_future(self._pollers[source.kind](source, self._polling))
        try:
            done, _ = await asyncio.wait({polling}, timeout=self._whole_s)
        finally:
            polling.cancel()
        if not done:
            raise SourceError(f"the poll took longer than {self._whole_s:g} s")
        return polling.result()

    async def _written(self, source: Source, write: Callable[..., object], *args: object) -> None:
        """An error here affects only this source, which is due again when its lease ends."""
        try:
            await self._database.call(write, *args)
        except Exception:
            log.exception("source %s: its poll was not written", source.id, extra={"action": "sources.not_written"})


def _server(source: Source) -> str:
    if source.kind != Source.Kind.FEED:
        return ""
    try:
        return urlsplit(source.location).netloc.lower()
    except ValueError:
        return ""


def _deliver(source: Source, polled: Polled) -> bool:
    """Deliver the items before the poll is recorded, so that a crash in between repeats the poll. Returns False if
    the rest of the items is delivered later."""
    result = delivery.deliver(source, polled.items)
    if result.again_in_s:
        source_rows.put_off([source], _spread(result.again_in_s), result.error)
        return False
    if result.error:
        raise SourceError(result.error)
    return True


def _read(source: Source, polled: Polled) -> None:
    every_s = source.every_s if polled.next_in_s is None else polled.next_in_s
    source_rows.source_polled(source, polled, _spread(max(every_s, polled.wait_s, 1.0)))


def _failed(source: Source, error: SourceError) -> None:
    every_s = max(source.every_s, 1)
    pause = max(
        every_s, min(every_s * 2.0 ** min(source.failures, 20), BACK_S)
    )  # not more often than a poll that works
    source_rows.source_failed(source, str(error), _spread(max(pause, error.retry_after or 0.0)), gone=error.gone)
    log.info("source %s: %s", source.id, error, extra={"action": "sources.no_items"})


def _spread(seconds: float) -> float:
    """Up to a tenth later, so that sources do not stay due at the same time."""
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311
