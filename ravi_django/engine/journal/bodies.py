"""Instructions, tool schemas and agent specs are stored once as blobs; rows name them by digest."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from ravi_django.engine.journal import append
from ravi_django.models import Blob

_stored_at: OrderedDict[str, float] = OrderedDict()  # digests that this process has stored, and when
_MOST = 10_000
_TRUSTED_S = 6 * 3600.0  # then they are stored again: the prune deletes unused blobs after a day


async def keep(database: Any, bodies: dict[str, Callable[[], Any]]) -> None:
    """Store new bodies; `bodies` maps a digest to a function that returns the JSON value, `database` is
    threads of the database, or those of a run's code."""
    now = time.monotonic()
    new = [digest for digest in bodies if now - _stored_at.get(digest, -_TRUSTED_S) >= _TRUSTED_S]
    if not new:
        return
    texts = {digest: to_json(bodies[digest](), fallback=str) for digest in new}
    await database.call(
        append.save_blobs,
        [Blob(id=digest, body=text, encoding="json", size=len(text)) for digest, text in texts.items()],
    )
    for digest in new:
        _stored_at[digest] = now
    while len(_stored_at) > _MOST:
        _stored_at.popitem(last=False)


def forget() -> None:
    """For tests, after the database was emptied."""
    _stored_at.clear()
