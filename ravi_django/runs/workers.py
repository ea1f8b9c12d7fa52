"""Live worker processes and the code that runs in them, the time of the last sweep, and the runs that the sweep has to
hint.

A process lists the at-most-once calls whose code runs in it: a thread or a task may continue for long after its call
was abandoned. Until the code has ended, people cannot decide on the call, and it is not repeated.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import F, Q, QuerySet

from ravi_django.calls.llm.names import set_variables
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.lease.claims import expired, ready, skip_locked, timed
from ravi_django.models import Run, SweepState, WorkerProcess
from ravi_django.runs.catalog.registry import known_addresses

log = logging.getLogger("ravi.sweep")

T = TypeVar("T")

LISTED_S = 86_400  # a day, above any timeout of a tool
MISSED = 3  # heartbeats or sweeps that may be missing before a worker or the sweep counts as late


def each(fix: Callable[[Any], T], row: Any) -> T | None:
    """Call `fix` for one row; None if it fails."""
    try:
        return fix(row)
    except Exception as error:
        log.warning("the sweep left %s for the next: %s", row, error, extra={"action": "sweep.row_failed"})
        return None


def apart(fix: Callable[[list[Any]], T], rows: list[Any]) -> list[T]:
    """Call `fix` for all rows at once, and if it fails for each one alone. Returns the results."""
    try:
        return [fix(rows)]
    except Exception:
        return [result for row in rows if (result := each(lambda row: fix([row]), row)) is not None]


def worker_seen(name: str, runs: int | None = None) -> None:
    """Write the row of a worker, with the code that runs in it."""
    with _writing:  # an older list must not replace a newer one
        seen = {"seen_at": clock.now(), "release": conf.RELEASE, "code": dict(code_of.get(name, {}))}
        seen |= {"agents": known_addresses(), "keys": set_variables()} | ({} if runs is None else {"runs": runs})
        create = {**seen, "started_at": clock.now()}
        WorkerProcess.objects.update_or_create(name=name, defaults=seen, create_defaults=create)


def worker_gone(name: str) -> None:
    with _writing:
        WorkerProcess.objects.filter(name=name).delete()
        code_of.pop(name, None)


def is_running(name: str) -> bool:
    """Whether the process of a worker of this machine runs."""
    if os.name != "posix":  # there the signal 0 ends a process
        return True
    pid = int(name.rsplit(":", 2)[1])
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True
    return state not in "ZX"  # in a container without an init an ended process stays in the table


def forget_killed_here() -> None:
    """Delete the rows of workers of this machine that ended without doing so: Ctrl-C may kill a `runserver`."""
    rows = WorkerProcess.objects.filter(name__startswith=f"{socket.gethostname()}:", code={})
    killed = [name for name in rows.values_list("name", flat=True) if not is_running(name)]
    WorkerProcess.objects.filter(name__in=killed).delete()


def forget_dead_workers(older_than_s: float) -> None:
    """A row that lists code is needed until the code counts as ended."""
    is_past = Q(code={}) | Q(seen_at__lt=clock.after(-LISTED_S))
    WorkerProcess.objects.filter(is_past, seen_at__lt=clock.after(-older_than_s)).delete()


# ------------------------------------------------------------------------------------------- code that runs


@dataclass(frozen=True, slots=True)
class RunningCode:
    """The code of an at-most-once call, as the row of its worker lists it."""

    worker: str
    seen_at: datetime  # when the worker was last seen
    ends: datetime  # the end of the call's timeout
    timeout: float  # seconds

    def __str__(self) -> str:
        return f"its code is still running in worker {self.worker}, last seen at {self.seen_at:%H:%M:%S} UTC"

    @property
    def until(self) -> datetime:
        """When it counts as ended, unless its worker is seen again."""
        return self.seen_at + timedelta(seconds=conf.LEASE_S + self.timeout)


code_of: dict[str, dict[str, list[Any]]] = {}  # of this process: by worker and call, the end of the timeout, and it
code_changed = threading.Event()  # code has ended
_writing = threading.Lock()


def _after_fork() -> None:
    """The parent's threads do not run in this process."""
    global _writing
    _writing = threading.Lock()
    code_of.clear()


os.register_at_fork(after_in_child=_after_fork)


def key_of(run_id: UUID, generation: int, path: str, attempt: int) -> str:
    return f"{run_id}:{generation}:{path}:{attempt}"


def code_begins(worker: str, key: str, ends: datetime, timeout: float) -> None:
    code_of.setdefault(worker, {})[key] = [ends.isoformat(), timeout]


def code_ended(worker: str, key: str) -> None:
    code_of.get(worker, {}).pop(key, None)
    code_changed.set()


def running_code(key: str) -> RunningCode | None:
    """The code of a call, if it may still run in some process. Code of this process is listed first: no heartbeat may
    have written it yet."""
    for name, calls in list(code_of.items()):
        if key in calls:
            worker_seen(name)
    now = clock.present()
    for row in WorkerProcess.objects.exclude(code={}):
        if key in row.code and key in code_of.get(row.name, row.code):  # a heartbeat may list what has ended here
            ends, timeout = row.code[key]
            code = RunningCode(row.name, row.seen_at, datetime.fromisoformat(ends), timeout)
            if code.until > now:
                return code
    return None


def alive() -> QuerySet[WorkerProcess]:
    return WorkerProcess.objects.filter(seen_at__gte=clock.after(-MISSED * conf.HEARTBEAT_S))


def swept() -> None:
    SweepState.objects.update_or_create(id=1, defaults={"ran_at": clock.now()})


def due_for_hint(limit: int) -> list[UUID]:
    """Claimable runs that no hint has reached, expired leases first. The next hint of each comes later, so that runs
    which no worker can claim do not fill every batch."""
    quiet = Q(hint_after__isnull=True) | Q(hint_after__lte=clock.now())
    with transaction.atomic():
        due: list[tuple[UUID, int]] = []
        for part in (expired(), timed(), ready()):
            due += skip_locked(part.filter(quiet)).values_list("id", "hints")[: limit - len(due)]
        groups: dict[int, list[UUID]] = {}
        for run_id, hints in due:
            groups.setdefault(min(hints, 6), []).append(run_id)
        for hints, ids in groups.items():
            delay = min(conf.SWEEP_S * 2**hints, 300.0)
            Run.objects.filter(id__in=ids).update(hints=F("hints") + 1, hint_after=clock.after(delay))
    return [run_id for run_id, _ in due]


def hint_failed(run_ids: Sequence[UUID]) -> None:
    """No hint was sent for these: the next sweep hints them again, whatever the backoff."""
    Run.objects.filter(id__in=run_ids, hints__gt=0).update(hints=F("hints") - 1, hint_after=None)
