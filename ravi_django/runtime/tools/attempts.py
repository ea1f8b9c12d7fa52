"""The code of one attempt at an at-most-once effect, which may go on after its call was given up.

Until it ends, the worker's row lists it: `runs/workers.py`. Its late result is an answer to the request about it, or
the result of the call where nobody was asked.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import connections

from ravi_django.kernel.content import blocks_json
from ravi_django.kernel.errors import ToolRefused
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import Tool
from ravi_django.runtime.db.threads import with_retry
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.lease.caps import timeout_of
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.people import uncertain
from ravi_django.runtime.runs import workers
from ravi_django.runtime.tools import results
from ravi_django.runtime.tools.running import is_pause

log = logging.getLogger("ravi.tools")


class Attempt:
    """Used by the caller on the event loop, and by the code on its thread or task."""

    def __init__(self, ctx: RunState, tool: Tool, entry: Entry) -> None:
        self._values: list[Any] = []  # what the code has returned, if it has
        self._run, self._entry, self._tool = ctx.effects.lease.run, entry, tool
        self._number = entry.attempt  # the entry becomes the next attempt
        self._worker, self._timeout = ctx.effects.lease.owner, timeout_of(tool)
        self._ends = ctx.effects.present() + timedelta(seconds=self._timeout)
        self._key = uncertain.key_of(self._run, entry)
        self._lock = threading.Lock()
        self._given_up = False

    @contextmanager
    def running(self) -> Iterator[list[Any]]:
        """Around the code; takes the value that it returns. Raises ToolRefused if the call was given up before."""
        with self._lock:
            if self._given_up:
                raise ToolRefused("not run: its call was given up")
            workers.code_begins(self._worker, self._key, self._ends, self._timeout)
        values: list[Any] = []
        try:
            yield values
        finally:
            with self._lock:
                self._values = [value for value in values if not (inspect.isawaitable(value) or is_pause(value))]
                workers.code_ended(self._worker, self._key)
                is_late = self._given_up
            if is_late:
                with suppress(RuntimeError):  # the process ends
                    threading.Thread(target=self._deliver, name="ravi-late", daemon=True).start()

    def result(self) -> ToolExecutionResult | None:
        """Of code that has returned; None without it."""
        return results.happened(self._tool.name, self._values[0]) if self._values else None

    def give_up(self) -> None:
        """Code that has not begun never does. Code that runs is listed until it ends."""
        with self._lock:
            self._given_up = True

    def _deliver(self) -> None:
        content = None
        log.warning("%s ended after its call was given up", self._tool.name, extra={"action": "tool.ended_late"})
        try:
            if (result := self.result()) is not None:
                fitted = results.fit(Entry("", ""), result, results.limit_of(self._tool), readable=False)
                content = blocks_json(fitted.content)
            with_retry(uncertain.end_late, self._run, self._entry, self._number, self._worker, content)
        except Exception:
            log.exception("the late end of %s is not written", self._tool.name, extra={"action": "tool.late_lost"})
        finally:
            connections.close_all()
