"""Values that are computed once in a run, such as a rendered template."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from ravi_django.engine.journal.entries import Entry, Recorded, encode
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import InvalidInputError, SuspendInterrupt
from ravi_django.kernel.checks import check_text

MAX_NAME = 200  # characters, as the journal's column


async def pin(ctx: RunState, name: str, compute: Callable[[], Any]) -> Any:
    """The value of `compute` as JSON, recorded once in the run's generation, with the next commit. A replay returns the
    recorded value without computing it. Concurrent tasks share one computation of a name, and its error."""
    check_text("name", name, MAX_NAME)
    while name not in ctx.pinned:
        under_way = ctx.pinning.get(name)
        if under_way is None:
            await _first(ctx, name, compute)
        elif under_way.task is asyncio.current_task():
            raise InvalidInputError(f"computing the pinned value {name!r} asks for itself", field="name")
        else:
            await asyncio.wait([under_way.done])
            if not under_way.done.cancelled():  # else its task was cancelled, and the next one computes
                under_way.done.result()
    return ctx.pinned[name]


class _UnderWay:
    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def _first(ctx: RunState, name: str, compute: Callable[[], Any]) -> None:
    under_way = ctx.pinning[name] = _UnderWay()
    try:
        await _compute(ctx, name, compute)
    except (Exception, SuspendInterrupt) as error:
        if not isinstance(error, StopIteration):  # a future cannot hold it
            under_way.done.set_exception(error)
            under_way.done.exception()  # raised here too, so asyncio need not log it
        raise
    else:
        under_way.done.set_result(None)
    finally:
        del ctx.pinning[name]
        under_way.done.cancel()


async def _compute(ctx: RunState, name: str, compute: Callable[[], Any]) -> None:
    path = f"@pinned.{name}"
    scope = ctx.here().for_name(f"pinned.{name}", "")
    row = ctx.recorder.journal.find(path)
    if row is not None and not _raised_here(ctx, row, scope.prefix):
        ctx.pinned[name] = row.result
        ctx.recorder.journal.pass_over(_place_of(row) or scope.prefix)
        ctx.waits.poke()
        return
    with paths.entered(scope):
        value = compute()
        value = await value if inspect.isawaitable(value) else value
    ctx.pinned[name] = json.loads(encode(value))  # as a replay will have it
    ctx.recorder.record_with_next_once(
        Entry("pinned", path, name, request={"scope": scope.prefix}, result=ctx.pinned[name])
    )


def _raised_here(ctx: RunState, row: Recorded, prefix: str) -> bool:
    """Whether a computation here failed before the value was computed in another place: then it fails here again."""
    scope = _place_of(row)
    return scope is not None and scope != prefix and ctx.recorder.journal.has_below(prefix)


def _place_of(row: Recorded) -> str | None:
    scope: str | None = (row.request or {}).get("scope")
    return scope
