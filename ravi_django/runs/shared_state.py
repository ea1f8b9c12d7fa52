"""State that an agent shares with the page of its user, one JSON object for each conversation."""

from __future__ import annotations

from functools import partial
from typing import Any

from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.json_values import check_json
from ravi_django.models import Session

KIND = "state.set"
MAX_BYTES = 64 * 1024


async def set_state(ctx: RunState, value: Any) -> None:
    """See `RunContext.set_state`."""
    if not isinstance(value, dict):
        raise InvalidInputError(f"the state must be an object, not {value!r:.100}", field="value")
    state, path = check_json("value", value, MAX_BYTES), ctx.path()
    if await ctx.recorder.recall(path, KIND, "", state) is not None:
        return
    async with ctx.recorder.effect():
        await ctx.recorder.record(Entry(KIND, path, result={"state": state}), partial(_store, state=state))


@appending
def _store(lease: Lease, *, state: dict[str, Any]) -> None:
    """In the commit of its journal row: the state of the run's conversation."""
    Session.objects.filter(id=lease.run.session_id).update(shared_state=state)
