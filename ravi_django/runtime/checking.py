"""An at-most-once tool's own check: it finds out whether an uncertain effect has happened, before a person is asked."""

from __future__ import annotations

import inspect
import logging
from datetime import datetime
from typing import Any

from ravi_django.kernel import CancellationError, Happened, LeaseLostError, NotHappened, Tool
from ravi_django.kernel.content import blocks_json
from ravi_django.runtime import hidden, paths, uncertain
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.state import RunState
from ravi_django.runtime.tool_results import result_of, words
from ravi_django.runtime.tool_running import awaited, on_a_thread, scope_below, timeout_of
from ravi_django.runtime.tool_threads import NoThreadLeft

log = logging.getLogger("ravi.tools")


async def checked(ctx: RunState, entry: Entry, not_before: datetime | None) -> dict[str, Any] | None:
    """The check's answer on this attempt, as a person's decision would say it; None when it does not know.

    The answer is journaled, and the check is asked once. It is asked no sooner than `not_before`: until then the worker
    that began the effect may still perform it.
    """
    effects, path = ctx.effects, f"@checked.{entry.path}.{entry.attempt}"
    recorded = effects.journal.system(path)
    if recorded is not None:
        answer = recorded.result
    else:
        tool = ctx.toolbox.get(entry.name)
        if tool is None or tool.check is None or uncertain.asked(effects, entry):
            return None
        if not_before is not None:
            await effects.wait(Wait("timer", "check", lambda: effects.present() >= not_before or None, not_before))
        answer = {"by": f"check of {tool.name}", **await _answer(ctx, tool, entry), **hidden.of_call(entry.request)}
        effects.note_once(Entry("effect.checked", path, entry.name, result=answer))
    return None if answer["outcome"] == "unknown" else dict(answer)


async def _answer(ctx: RunState, tool: Tool, entry: Entry) -> dict[str, Any]:
    check, timeout = tool.check, timeout_of(tool)
    assert check is not None
    with paths.entered(scope_below(entry.path, None)):
        arguments, key = uncertain.arguments_of(entry), ctx.idempotency_key
    try:
        if inspect.iscoroutinefunction(check):
            found = await awaited(tool, check(arguments, key), timeout)
        else:
            found = await on_a_thread(ctx, lambda: check(arguments, key), timeout)
    except (CancellationError, LeaseLostError, NoThreadLeft):
        raise
    except Exception as error:
        log.warning("the check of %s failed: %s", tool.name, words(error), extra={"action": "tool.check_failed"})
        return {"outcome": "unknown", "error": words(error)}
    if isinstance(found, Happened):
        return {"outcome": "happened", "result": blocks_json(result_of(found.result).content)}
    if found is NotHappened or isinstance(found, NotHappened):
        return {"outcome": "run_again"}
    return {"outcome": "unknown"}
