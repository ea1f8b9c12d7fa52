"""Named places at which a process ends or falls asleep, wrapped around the real code from outside of it.

A test arms a run: the file `armed/<root run>` in the laboratory's folder has lines "point[:times[:STOP]]". Whichever
process reaches the first line's point for a run of that tree for the `times`-th time takes the line away and dies by
SIGKILL, or sleeps by SIGSTOP; so each line strikes once, and the lines one after the other. "before" is before the
function is entered. "after" is after it has returned and the transaction that it was in has committed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.acceptance.crash.lab_app import ledger
from tests.support import world

# point: the verb of the function around which it lies. Its first argument says whose it is: a lease or what has one,
# the id of a run or of a request, or several ids.
FUNCTIONS = {
    "suspend": "suspend",
    "signal": "send_signal",
    "consume": "consume_signal",
    "touch": "touch",
    "spawn": "spawn",
    "ask": "open_ask",
    "reply": "reply",
    "request": "open_request",
    "answer": "answer_request",
    "record": "records_record",  # of a request: before is inside the transaction that opens or answers it
    "wake": "wake_silent",
    "release": "settle_write",
    "dispatch": "dispatch_send",
}
# By hint or by look, whichever comes first.
CLAIM = "claim_on_postgresql"
APPEND = "fence_append"
# The same append as one statement, which the event loop sends over a connection of its own.
STATEMENT = "append_statement"
# In the laboratory's own model and tools, which call `hit` themselves.
OWN = ("model", "effect")
# What an append is called by what it records; "commit" is the end of a transactional tool's transaction.
APPENDS = ("model_row", "started", "result", "commit")
POINTS = ("claim", *FUNCTIONS, *OWN, *APPENDS)


def install() -> None:
    """Wrap the functions wherever they are bound."""
    if "CRASH_FOLDER" not in os.environ:
        return
    for point, verb in FUNCTIONS.items():
        function = getattr(world, verb)
        _replace(function, _around(point, function))
    claim = getattr(world, CLAIM)
    _replace(claim, _around_claim(claim))
    append = getattr(world, APPEND)
    _replace(append, _around_append(append))
    statement = getattr(world, STATEMENT)
    _replace(statement, _around_statement(statement))


def hit(point: str, tree_id: Any) -> None:
    """Die or sleep here, if this is the place and the time that somebody armed."""
    folder, name = Path(os.environ["CRASH_FOLDER"]), str(tree_id)
    armed = folder / "armed" / name
    try:
        line, _, later = armed.read_text().partition("\n")
        wanted, times, how = [*line.split(":"), "", ""][:3]
        if wanted != point or _count(folder / "counts" / f"{name}.{point}") < int(times or 1):
            return
        armed.rename(fired := folder / "fired" / f"{name}.{line}")
    except FileNotFoundError:  # not armed, or another process was first
        return
    if later:
        next_ = folder / "fired" / f"{name}.next"
        next_.write_text(later)
        next_.rename(armed)
    fired.write_text(str(os.getpid()))
    if how:  # to this very thread: sent to the process, another may take it, and this one goes on for a while
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _count(path: Path) -> int:
    """How often this was asked, in all processes together."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, b".")
        return os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)


def _around(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from django.db import transaction

        trees = _trees(point, args[0])
        for tree_id in trees:
            hit(f"{point}.before", tree_id)
        answer = function(*args, **kwargs)
        for tree_id in trees:
            transaction.on_commit(partial(hit, f"{point}.after", tree_id))
        return answer

    return wrapper


def _around_claim(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(part: str, owner: str, known: Any, suspects: bool, run_id: Any = None, **kwargs: Any) -> Any:
        for tree_id in _trees("claim", run_id) if run_id is not None else _armed_and_pending():
            hit("claim.before", tree_id)
        leases = function(part, owner, known, suspects, run_id, **kwargs)
        for lease in leases:  # a claim that came too late has none
            hit("claim.after", lease.run.tree_id)
        return leases

    return wrapper


def _armed_and_pending() -> list[Any]:
    """A look may claim any of these."""
    from ravi_django.models import Run

    armed = [path.name for path in (Path(os.environ["CRASH_FOLDER"]) / "armed").iterdir()]
    return list(Run.objects.filter(id__in=armed, status="pending").values_list("id", flat=True)) if armed else []


def _around_append(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(lease: Any, entries: Any, turns: Any) -> Any:
        from django.db import connection, transaction

        tree_id = lease.run.tree_id
        points = _names(entries)
        for point in points:
            hit(f"{point}.before", tree_id)
        answer = function(lease, entries, turns)
        if "result" in points and connection.in_atomic_block:  # a transactional tool's
            hit("commit.before", tree_id)
            transaction.on_commit(partial(hit, "commit.after", tree_id))
        transaction.on_commit(partial(_acknowledge, lease, entries))
        for point in points:
            transaction.on_commit(partial(hit, f"{point}.after", tree_id))
        return answer

    return wrapper


def _around_statement(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(lease: Any, entries: Any, turns: Any) -> Any:
        tree_id, points = lease.run.tree_id, _names(entries)
        statement = function(lease, entries, turns)
        if statement is None:  # the threads append it
            return None
        for point in points:
            hit(f"{point}.before", tree_id)

        def answered(value: Any) -> Any:
            answer = statement.answer(value)
            _acknowledge(lease, entries)
            for point in points:
                hit(f"{point}.after", tree_id)
            return answer

        return replace(statement, answer=answered)

    return wrapper


def _acknowledge(lease: Any, entries: Any) -> None:
    rows = [f"{entry.seq} {entry.path}" for entry in entries]
    ledger.note("rows", ledger.ACKNOWLEDGED, run=str(lease.run_id), rows=rows)


def _names(entries: Any) -> list[str]:
    names = []
    for entry in entries:
        if entry.kind == "llm.call":
            names.append("model_row")
        elif entry.kind == "tool.call":
            names.append("started" if entry.phase == "started" else "result")
    return names


def _trees(point: str, given: Any) -> list[Any]:
    """The roots of the runs that are meant, as far as any run is armed."""
    from ravi_django.models import HumanRequest, Run

    lease = getattr(given, "lease", given)
    if hasattr(lease, "run"):
        return [lease.run.tree_id]
    if not any((Path(os.environ["CRASH_FOLDER"]) / "armed").iterdir()):
        return []
    ids = [given] if isinstance(given, str | UUID) else list(given)
    if point == "answer":
        ids = list(HumanRequest.objects.filter(id__in=ids).values_list("run_id", flat=True))
    found = Run.objects.filter(id__in=ids).values_list("id", "root_id")
    return [root_id or run_id for run_id, root_id in found]


def _replace(function: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
    """In every module that has it by some name; modules imported later get it from one of these."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ravi_django"):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    setattr(module, attribute, wrapper)
