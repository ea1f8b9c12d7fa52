"""Report failures: a log line with the traceback, and the Django signal `run_failed`."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import Any
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from ravi_django.kernel import HandlerError
from ravi_django.kernel.json_values import storable
from ravi_django.models import Run
from ravi_django.signals import run_failed

runs_log = logging.getLogger("ravi.runs")
tools_log = logging.getLogger("ravi.tools")

ASYNC_FIX = ": make the tool a plain def, which runs on a thread where the ORM works"
FRAMES = 30  # of a trace
A_MINUTE = 10  # lines of one tool and exception

_lock = threading.Lock()
_lines: dict[tuple[str, str], tuple[float, int]] = {}  # begin of the minute, and lines of it


def trace_of(error: BaseException | None) -> list[dict[str, Any]] | None:
    """The last frames of an exception, after those of its cause: file, line and function, for staff. A trace has no
    source, no message and no values."""
    frames: list[dict[str, Any]] = []
    passed: list[BaseException] = []
    while error is not None and error not in passed:
        passed.append(error)
        steps = [(step.f_code, line) for step, line in traceback.walk_tb(error.__traceback__)][-FRAMES:]
        frames[:0] = [
            {"file": storable(code.co_filename)[-200:], "line": line, "function": storable(code.co_name)[:200]}
            for code, line in steps
        ]
        error = _behind(error)
    return frames[-FRAMES:] or None


def _behind(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return error.exceptions[0]
    return error.cause if isinstance(error, HandlerError) else error.__cause__


def run_ended(
    run: Run, epoch: int, status: str, error: dict[str, Any] | None, raised: BaseException | None = None
) -> None:
    """A run failed or is blocked: call it once its row is committed. `epoch`: of the lease that ended so."""
    raised = raised.cause if isinstance(raised, HandlerError) else raised
    extra = {"action": f"run.{status}", "run": str(run.id), "agent": run.agent, "attempt": epoch}
    text = f"{(error or {}).get('type')}: {(error or {}).get('message')}"
    _write(runs_log, logging.ERROR, f"run {run.id} of {run.agent} is {status}: {text}", raised, extra)
    if run_failed.has_listeners(Run):
        threading.Thread(target=_send, args=(run.id, status), name="ravi-run-failed", daemon=True).start()


def _write(log: logging.Logger, level: int, text: str, error: BaseException | None, extra: dict[str, Any]) -> None:
    """No log file can hold half a surrogate pair: then the traceback is text in the message."""
    trace = "" if error is None else "".join(traceback.format_exception(error))
    try:
        trace.encode()
        log.log(level, text, exc_info=error, extra=extra)
    except UnicodeEncodeError:
        log.log(level, f"{text}\n{trace}".encode(errors="replace").decode(), extra=extra)


def _send(run_id: UUID, status: str) -> None:
    try:
        if (run := Run.objects.filter(id=run_id).first()) is not None:
            run_failed.send_robust(Run, run=run, status=status)
    finally:
        connections.close_all()  # this thread's


def tool_failed(run: Run, tool: str, error: BaseException, *, attempt: int = 1, level: int = logging.ERROR) -> None:
    """A tool raised; at most A_MINUTE lines a minute for the same tool and type of exception."""
    key, now = (tool, type(error).__name__), time.monotonic()
    with _lock:
        begun, count = _lines.get(key, (now, 0))
        is_over = now - begun >= 60
        _lines[key] = (now, 1) if is_over else (begun, count + 1)
    extra = {"action": "tool.failed", "run": str(run.id), "agent": run.agent, "tool": tool, "attempt": attempt}
    if is_over or count < A_MINUTE:
        fix = ASYNC_FIX if isinstance(error, SynchronousOnlyOperation) else ""
        fix += " (the last line of this kind for a minute)" if count + 1 == A_MINUTE and not is_over else ""
        _write(tools_log, level, f"tool {tool} of run {run.id} raised {key[1]}{fix}", error, extra)
