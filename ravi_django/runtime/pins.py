"""Values that are computed once in a run: instructions made when it begins, a rendered template."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ravi_django.kernel import InvalidInputError
from ravi_django.runtime import llm_calls, paths
from ravi_django.runtime.entries import Entry, encode

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

MAX_NAME = 200  # characters, as the journal's column


async def pin(ctx: DurableContext, name: str, compute: Callable[[], Any]) -> Any:
    """What `compute` gives, as JSON; recorded once in the run's generation, with the next commit. A replay has the
    recorded value: it neither computes nor asks for what was done in computing."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidInputError(f"a pinned value's name has 1 to {MAX_NAME} characters, not {name!r}", field="name")
    pinned, path = ctx.pinned, f"@pinned.{name}"
    scope = ctx._scope().for_name(f"pinned.{name}", "")
    if name not in pinned and (row := ctx.effects.journal.system(path)) is not None:
        pinned[name] = row.result
        _pass_over(ctx, scope.prefix)
    if name not in pinned:
        with paths.entered(scope):
            value = compute()
            value = await value if inspect.isawaitable(value) else value
        if name not in pinned:  # else another task was faster
            pinned[name] = json.loads(encode(value))  # as a replay will have it
            ctx.effects.note_once(Entry("pinned", path, name, result=pinned[name]))
    return pinned[name]


def _pass_over(ctx: DurableContext, prefix: str) -> None:
    for row in ctx.effects.journal.pass_over(prefix):
        if row.kind == llm_calls.KIND:
            ctx.effects.budget.add(row.usage.total, None if row.cost is None else float(row.cost))
