"""What a crash between a tool's effect and its row means: one guarantee for each value of `Effect`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, connections

from ravi_django.calls.llm.errors import error_text
from ravi_django.calls.tools.execute import ToolEndedOddly, execute, is_pause, on_a_thread, scope_below
from ravi_django.calls.tools.pauses import PauseRefused
from ravi_django.calls.tools.results import error as _error, fit, happened, limit_of, result_of
from ravi_django.calls.tools.tool_threads import NoThreadLeft
from ravi_django.calls.tools.uncertain import decide
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db.threads import may_pass, with_retry
from ravi_django.engine.journal.entries import Entry, NotJson
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.appender import append_repeatable
from ravi_django.engine.lease.lease_state import NotRenewed
from ravi_django.engine.lease.result_order import Commit
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.tool_limits import KIND, timeout_of
from ravi_django.kernel.content import blocks_json
from ravi_django.kernel.errors import CancellationError, LeaseLostError, ToolRefused, TransientError, message_of
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import Effect, Tool
from ravi_django.live.streams import hidden
from ravi_django.people import uncertain
from ravi_django.runs import failures, workers

log = logging.getLogger("ravi.tools")

Keep = Callable[[Entry, ToolExecutionResult], ToolExecutionResult]  # fills the row in; returns what it holds


async def perform(ctx: RunState, tool: Tool, ready: dict[str, Any], entry: Entry, *, keep: Keep) -> ToolExecutionResult:
    """Run the tool, with its promise. `keep` is called with a transactional tool's result, on its thread, before the
    commit: an error rolls back."""
    match tool.promised_effect:
        case Effect.TRANSACTIONAL:
            return await _transactional(ctx, tool, ready, entry, keep)
        case Effect.AT_MOST_ONCE:
            return await _at_most_once(ctx, tool, ready, entry)
        case _:
            return await _idempotent(ctx, tool, ready, entry)


async def _idempotent(ctx: RunState, tool: Tool, ready: dict[str, Any], entry: Entry) -> ToolExecutionResult:
    try:
        return await execute(ctx, tool, ready, entry.path)
    except NoThreadLeft as error:
        raise _elsewhere(ctx, error) from error
    except (ToolRefused, ToolEndedOddly) as error:
        if isinstance(error, ToolEndedOddly):
            _log(ctx, tool, entry, error)
        return _error(message_of(error))
    except (TransientError, CancellationError, LeaseLostError) as error:
        if isinstance(error, TransientError):
            is_last = ctx.recorder.state.last_attempt
            _log(ctx, tool, entry, error, logging.ERROR if is_last else logging.WARNING)
            if is_last:
                return _error(f"{error.type}: {message_of(error)}")
        hidden.drop_error_text(error, tool)
        raise
    except TimeoutError as error:
        await _not_ours(ctx)
        _log(ctx, tool, entry, error)
        return _error(f"{tool.name} did not finish within {timeout_of(tool):g} s")
    except Exception as error:
        _log(ctx, tool, entry, error)
        return _error(error_text(error))


async def _at_most_once(ctx: RunState, tool: Tool, ready: dict[str, Any], entry: Entry) -> ToolExecutionResult:
    """A started row first. After it, only a result or ToolRefused says whether the effect happened."""
    recorder = ctx.recorder
    while True:
        entry.trace = None
        started = Entry(KIND, entry.path, entry.name, phase="started", attempt=entry.attempt, request=entry.request)
        await recorder.record(started)
        recorder.state.started[entry.path] = entry
        attempt = Attempt(ctx, tool, entry)
        try:
            return await execute(ctx, tool, ready, entry.path, attempt.running)
        except ToolRefused as error:
            return _error(message_of(error))
        except NotJson as error:
            return happened(tool.name, error)
        except NotRenewed:  # the fence refuses this row if another worker has the run
            return _error(f"{tool.name} was not run: this worker could not renew its lease in time")
        except TimeoutError as error:
            await _not_ours(ctx)
            _log(ctx, tool, entry, error)
            why = f"it did not finish within {timeout_of(tool):g} s"
        except ToolEndedOddly as error:
            _log(ctx, tool, entry, error)
            why = f"it raised {error}"
        except Exception as error:
            _log(ctx, tool, entry, error)
            why = f"it raised {error_text(error)}"
        finally:
            attempt.abandon()
        if attempt.values:
            return happened(tool.name, attempt.values[0])
        decided = await decide(ctx, entry, why, None)
        if decided is not None:
            return decided


def _log(ctx: RunState, tool: Tool, entry: Entry, error: BaseException, level: int = logging.ERROR) -> None:
    level = logging.INFO if isinstance(error, PermissionDenied) else level
    entry.trace = failures.trace_of(error)
    failures.tool_failed(ctx.recorder.lease.run, tool.name, error, attempt=entry.attempt, level=level)


def _elsewhere(ctx: RunState, error: NoThreadLeft) -> TransientError:
    """Sends the run back for another worker, without a failed attempt. Not for an at-most-once tool: it has its started
    row, and "was not run" is its result."""
    ctx.recorder.state.count_attempts(ctx.recorder.lease.run.attempts - 1)
    log.error("%s", error, extra={"action": "tool.no_thread_left"})
    return TransientError(str(error), type="NoThreadLeft", retry_after=float(conf.SWEEP_S))


async def _not_ours(ctx: RunState) -> None:
    """A timeout while the tool waited for a parked call of its own is not the tool's: continue waiting."""
    if ctx.waits.is_waited_for:
        await ctx.waits.park()


class Attempt:
    """The code of one attempt at an at-most-once effect. It may go on after its call was given up: the worker's row
    lists it until it ends. Used by the caller on the event loop, and by the code on its thread or task."""

    def __init__(self, ctx: RunState, tool: Tool, entry: Entry) -> None:
        self.values: list[Any] = []  # what code has returned that ended before its call was given up
        self._run, self._tool, self._worker = ctx.recorder.lease.run, tool, ctx.recorder.lease.owner
        self._entry = replace(entry)  # the caller's becomes the next attempt
        self._ends = ctx.recorder.state.present() + timedelta(seconds=timeout_of(tool))
        self._key = workers.key_of(self._run.id, self._run.generation, entry.path, entry.attempt)
        self._lock = threading.Lock()
        self._abandoned = False

    @contextmanager
    def running(self) -> Iterator[list[Any]]:
        """Around the code; takes the value that it returns. Raises ToolRefused if the call was given up before."""
        with self._lock:
            if self._abandoned:
                raise ToolRefused("not run: its call was given up")
            workers.code_begins(self._worker, self._key, self._ends, timeout_of(self._tool))
        values: list[Any] = []
        try:
            yield values
        except NotJson as error:  # an iterator cannot be read a second time
            values[:] = [error]
            raise
        finally:
            self._end([value for value in values if not (inspect.isawaitable(value) or is_pause(value))])

    def _end(self, values: list[Any]) -> None:
        with self._lock:
            is_late = self._abandoned
            self.values = [] if is_late else values
            if not (is_late and values):  # a late result is written before
                workers.code_ended(self._worker, self._key)
        if is_late:
            try:
                threading.Thread(target=self._deliver, args=[values], name="ravi-late", daemon=True).start()
            except RuntimeError:  # the process ends
                workers.code_ended(self._worker, self._key)

    def abandon(self) -> None:
        """Code that has not begun never does. Code that runs is listed until it ends."""
        with self._lock:
            self._abandoned = True

    def _deliver(self, values: list[Any]) -> None:
        content = None
        log.warning("%s ended after its call was given up", self._tool.name, extra={"action": "tool.ended_late"})
        try:
            if values:
                result = happened(self._tool.name, values[0])
                content = blocks_json(fit(Entry("", ""), result, limit_of(self._tool)).content)
            with_retry(uncertain.end_late, self._run, self._entry, self._worker, content)
        except Exception:
            log.exception("the late end of %s is not written", self._tool.name, extra={"action": "tool.late_lost"})
        finally:
            workers.code_ended(self._worker, self._key)
            connections.close_all()


async def _transactional(
    ctx: RunState, tool: Tool, ready: dict[str, Any], entry: Entry, keep: Keep
) -> ToolExecutionResult:
    """The tool's own writes and its journal row commit together, on a thread of the tools: exactly once.

    Inside middlewares that row is a started row with the result. They see the result after the commit, and their result
    has a row of its own. After a crash in between they run again, and the tool does not.
    """
    if inspect.iscoroutinefunction(tool.execute):
        return _error(f"{tool.name} is transactional and must be a sync tool")
    recorder = ctx.recorder
    begun = time.monotonic()
    row = replace(entry, phase="started") if ctx.middleware.function else entry
    entries, turns = recorder.take_pending(row)
    under_way = Commit(begun=False)
    loop = asyncio.get_running_loop()
    last = _CommitOrAbandon(lambda: loop.call_soon_threadsafe(under_way.begin))
    first = 0

    def commit() -> ToolExecutionResult:
        nonlocal first
        with transaction.atomic():
            with last.noting_errors():
                value = tool.execute(**ready)
                if is_pause(value):
                    raise PauseRefused(_NO_PAUSE % tool.name)
                result = result_of(value)
                last.check()
                copy = replace(row, blobs=[], stored={})  # after a give-up the caller continues with the row itself
                result = keep(copy, result)
            last.take()
            row.result, row.digests, row.blobs = copy.result, copy.digests, copy.blobs
            row.elapsed_s = time.monotonic() - begun
            first = append_repeatable(recorder.lease, entries, turns)
        return result

    try:
        with paths.entered(scope_below(entry.path, None)), recorder.committing(under_way):
            result: ToolExecutionResult = await on_a_thread(ctx, commit, timeout_of(tool))
    except LeaseLostError:
        raise
    except BaseException as error:
        _check_undone(ctx, error, last)
        row.result = row.digests = None  # nothing happened
        row.blobs = []
        recorder.pending[:0] = entries[:-1]
        recorder.turns[:0] = turns
        if not isinstance(error, Exception):
            raise
        if not isinstance(error, NoThreadLeft | ToolRefused):
            _log(ctx, tool, entry, error)
        return _rolled_back(ctx, tool, error, last)
    recorder.stream.published(entries, first)
    await recorder.wait_turn(first, len(entries))
    return result


_NO_PAUSE = (
    "%s is transactional, and a transaction cannot wait: it was rolled back. "
    "Return the pause from a tool with another effect, or ask before the call, by approval= or another tool"
)


def _check_undone(ctx: RunState, error: BaseException, last: _CommitOrAbandon) -> None:
    """Raises if the transaction may have been committed, or will be."""
    lease, rolled_back = ctx.recorder.lease, last.abandon()
    away = isinstance(error, OperationalError | InterfaceError) or (isinstance(error, Exception) and may_pass(error))
    if away or (not rolled_back and isinstance(error, TimeoutError)):
        raise LeaseLostError(lease.run_id, lease.epoch) from error  # only another lease can find out
    if not isinstance(error, Exception) and not rolled_back:
        raise error  # its commit must not be written a second time


def _rolled_back(ctx: RunState, tool: Tool, error: Exception, last: _CommitOrAbandon) -> ToolExecutionResult:
    if isinstance(error, NoThreadLeft):
        raise _elsewhere(ctx, error) from error
    if isinstance(error, TimeoutError) and last.raised is None:
        return _error(f"{tool.name} did not finish within {timeout_of(tool):g} s; rolled back")
    return _error(str(error) if isinstance(error, ToolEndedOddly | PauseRefused) else error_text(error))


class _Abandoned(Exception):
    """Rolls back a call that was given up."""


class _CommitOrAbandon:
    """Decides between a transactional tool's thread and its caller: either the append of the row begins, or the call is
    given up and is never committed."""

    def __init__(self, on_taken: Callable[[], Any]) -> None:
        self._on_taken = on_taken
        self._lock = threading.Lock()
        self._taken = False
        self._abandoned = False
        self.raised: BaseException | None = None  # by the tool itself

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise

    def check(self) -> None:
        with self._lock:
            if self._abandoned:
                raise _Abandoned

    def take(self) -> None:
        """The thread is about to append. Raises _Abandoned."""
        with self._lock:
            if self._abandoned:
                raise _Abandoned
            self._taken = True
            self._on_taken()

    def abandon(self) -> bool:
        """Whether nothing was committed or will be; False once the append has started."""
        with self._lock:
            self._abandoned = not self._taken
            return self._abandoned
