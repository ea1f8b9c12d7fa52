"""Repeated calls of clients that send no Idempotency-Key.

Many libraries send a call again after an error of any kind, or after a timeout of their own. When an exchange ends
without its whole answer, the cache RAVI["CACHE_ALIAS"] gets an entry: a digest of the user, the agent, the session and
the messages, with the run. An equal call follows that run. Equal calls at once have no entry yet: each gets a run. If
the cache fails, a repeat is a new run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any, Self
from uuid import UUID

from ravi_django import access, limits
from ravi_django.engine.db import clock
from ravi_django.kernel import AgentId
from ravi_django.kernel.json_values import canonical_json
from ravi_django.live.streams import hidden
from ravi_django.models import TERMINAL, Run, Status
from ravi_django.people import site_rules
from ravi_django.services.exchanges import Exchange
from ravi_django.services.pieces import Ended, Piece

log = logging.getLogger("ravi.repeats")

VALID_S = 600
FAILED_S = 20  # for a run that has failed: a person may ask again


class Repeats:
    """The entry of one call."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._entry: tuple[str, int, bool] | None = None  # the run, the frames before the exchange, whether it failed

    @classmethod
    def of(cls, user: Any, agent: AgentId, session: Any, messages: Iterable[Any]) -> Self:
        digest = hashlib.sha256(canonical_json([user.pk, site_rules.tenant_for(user), str(agent), session]))
        for message in messages:  # one at a time: a conversation may have megabytes
            digest.update(canonical_json(message))
        return cls(f"ravi:repeat:{digest.hexdigest()}")

    def exchange(self, user: Any, agent: AgentId) -> Exchange | None:
        """The exchange that this call repeats. Raises the errors of `access.find`."""
        try:
            self._entry = limits.site_cache().get(self._key)
        except Exception as error:  # each backend has its own exceptions
            _warn(error)
        if self._entry is None:
            return None
        run_id, after, _ = self._entry
        run = Run.objects.for_user(user).filter(id=UUID(run_id), owner=user).first()
        if run is None or _is_past(run):
            self._entry = None
            return None
        access.find(user, agent, run.session_id)
        return Exchange(user, run, after, hidden.sees(user), is_repeat=True)

    def end(self, exchange: Exchange, last: Piece | None) -> None:
        """Note how the exchange has ended. `last`: its last piece, or None if the client did not get it."""
        is_failed = isinstance(last, Ended) and last.status in ("failed", "blocked")
        is_known = self._entry is not None and self._entry[2] == is_failed
        try:
            if last is None or is_failed:
                if not (is_failed and is_known):  # a failure is repeated for FAILED_S from its first answer
                    entry = (str(exchange.run.tree_id), exchange.after, is_failed)
                    limits.site_cache().set(self._key, entry, FAILED_S if is_failed else VALID_S)
            elif self._entry is not None:
                limits.site_cache().delete(self._key)
        except Exception as error:
            _warn(error)


def _is_past(run: Run) -> bool:
    """Whether the user goes on: the conversation has a later run, or this one has failed a while ago."""
    if run.status in TERMINAL and run.status != Status.COMPLETED:
        ended = run.finished_at or run.created_at
        return bool((clock.present() - ended).total_seconds() > FAILED_S)
    return Run.objects.filter(session=run.session_id, parent=None, id__gt=run.id).exists()


def _warn(error: Exception) -> None:
    log.warning("repeated calls are not recognised: the cache failed: %s", error, extra={"action": "repeats.failed"})
