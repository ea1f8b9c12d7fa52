"""Bodies by digest: instructions, tool schemas and agent specs are stored once, and named by rows ever after."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json, to_json

from ravi_django.models import Blob, JournalEntry, Run
from ravi_django.runtime import registry
from ravi_django.runtime.database import CodeThreads, DatabaseThreads
from ravi_django.runtime.entries import blob_value
from ravi_django.runtime.store import journal

_kept: OrderedDict[str, float] = OrderedDict()  # digests that this process has stored, and when
_schemas: OrderedDict[str, dict[str, Any] | None] = OrderedDict()  # of results, by the digest of a spec
_MOST = 10_000
_MOST_SCHEMAS = 1000
_TRUSTED_S = 6 * 3600.0  # then they are stored again: the prune takes those that were not for a day


async def keep(database: DatabaseThreads | CodeThreads, bodies: dict[str, Callable[[], Any]]) -> None:
    """Store what is new; `bodies` maps a digest to a function that gives the JSON value."""
    now = time.monotonic()
    new = [digest for digest in bodies if now - _kept.get(digest, -_TRUSTED_S) >= _TRUSTED_S]
    if not new:
        return
    texts = {digest: to_json(bodies[digest](), fallback=str) for digest in new}
    await database.call(
        journal.save_blobs,
        [Blob(id=digest, body=text, encoding="json", size=len(text)) for digest, text in texts.items()],
    )
    for digest in new:
        _kept[digest] = now
    while len(_kept) > _MOST:
        _kept.popitem(last=False)


def result_schema_of(run: Run) -> dict[str, Any] | None:
    """The JSON schema of a run's output, by the spec that its first lease has pinned; None when it is no typed one, or
    when nothing is pinned yet, or any more."""
    if run.started_at is None or not _may_be_typed(run):
        return None
    started = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, path="@started")
    pinned: Any = started.values_list("result", flat=True).first()
    digest = (pinned or {}).get("spec")
    if digest is None:
        return None
    if digest in _schemas:
        return _schemas.get(digest)
    blob = Blob.objects.filter(id=digest).first()
    if blob is None:
        return None
    schema: dict[str, Any] | None = blob_value(blob).get("result_schema")
    _schemas[digest] = schema
    while len(_schemas) > _MOST_SCHEMAS:
        _schemas.popitem(last=False)
    return schema


def _may_be_typed(run: Run) -> bool:
    """Whether it is worth a query: a typed run's output is JSON, as text or as the value that was replied."""
    if run.output is None:  # not ended, or not well
        agent = registry._agents.get(run.agent) if run.agent_version is None else None
        return agent is None or getattr(agent, "result", None) is not None
    if not isinstance(run.output, str):
        return True
    try:
        from_json(run.output)
    except ValueError:
        return False
    return True


def forget() -> None:
    """The database is another, or empty again (tests)."""
    _kept.clear()
    _schemas.clear()
