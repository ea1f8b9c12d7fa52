"""Bodies by digest: instructions, tool schemas and agent specs are stored once, and named by rows ever after."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from ravi_django.models import Blob
from ravi_django.runtime import store
from ravi_django.runtime.database import DatabaseThreads

_kept: OrderedDict[str, None] = OrderedDict()  # digests that this process has stored
_MOST = 10_000


async def keep(database: DatabaseThreads, bodies: dict[str, Callable[[], Any]]) -> None:
    """Store what is new; `bodies` maps a digest to a function that gives the JSON value."""
    new = [digest for digest in bodies if digest not in _kept]
    if not new:
        return
    texts = {digest: to_json(bodies[digest](), fallback=str) for digest in new}
    await database.call(
        store.save_blobs,
        [Blob(id=digest, body=text, encoding="json", size=len(text)) for digest, text in texts.items()],
    )
    for digest in new:
        _kept[digest] = None
    while len(_kept) > _MOST:
        _kept.popitem(last=False)


def forget() -> None:
    """The database is another, or empty again (tests)."""
    _kept.clear()
