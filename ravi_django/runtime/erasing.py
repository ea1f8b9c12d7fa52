"""Personal data: what a deleted user or conversation leaves is erased, and what a user has is exported."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Any
from uuid import UUID

from django.core.serializers.python import Serializer

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import Blob, Erasure, JournalEntry
from ravi_django.models.schedules import SESSION_GONE
from ravi_django.runtime import cancel, hidden
from ravi_django.runtime.buffer import get_buffer
from ravi_django.runtime.entries import blob_value
from ravi_django.runtime.exported import Hiding
from ravi_django.runtime.store import erasures, names
from ravi_django.runtime.store.personal import TABLES, Scope, all_of, trees_of

SESSIONS = 50  # in one batch
SWEPT = 400  # sessions and runs, together, of one sweep: others wait for its end
BATCHES = 8  # of names, in one sweep
POLICIES = ("erase", "anonymize", "keep")


def user_deleted(user: Any) -> None:
    """In the transaction that deletes the user, behind the cancellation of their runs."""
    if conf.ON_USER_DELETE == "keep":
        erasures.let_go(str(user.pk))
    else:
        erasures.begin(user, keeps=conf.ON_USER_DELETE == "anonymize")


def erase_user(user: Any) -> bool:
    """Erase what is a user's, who stays. Returns whether all is done; the sweep does the rest, once the live runs have
    ended."""
    with transaction.atomic():
        erasures.begin(user)
    work()
    return not Erasure.objects.filter(user=str(user.pk)).exists()  # an earlier one may wait for live runs


def delete_session(session_id: UUID) -> None:
    """Delete a conversation and what is below it, but for the audit records: it is hidden at once, and the sweep does
    the rest. Raises ConflictError while one of its runs has not ended."""
    erasures.begin_session(session_id)


def work(most: float = inf, batches: float = inf) -> None:
    """Work the erasures off: all that can be done, or so many sessions and runs, and batches of names."""
    for erasure in Erasure.objects.filter(position="").order_by("id"):
        if most > 0:
            most -= _work_off(erasure, most)
    names.forget_in_ended()
    while batches > 0 and names.forget_names():
        batches -= 1


def sweep() -> None:
    work(SWEPT, BATCHES)
    erasures.erase_bodies()


def _work_off(erasure: Erasure, most: float) -> int:
    """Erase so many sessions and runs, then the rest; returns how many there were."""
    used, last = 0, None
    while ids := erasures.sessions_of(erasure, last, int(min(SESSIONS, most - used))):
        last = ids[-1]
        used += len(ids)
        used += _erase(ids, most - used, audits=not erasure.keeps)
    if not erasures.sessions_of(erasure, None, 1):
        erasures.finish(erasure)
    return used


def _erase(sessions: list[UUID], most: float, *, audits: bool) -> int:
    """So many runs of the ended trees, their roots last, and the sessions without any more; returns how many runs."""
    roots = trees_of(sessions)
    for run_id in erasures.live_in(roots):
        with suppress(IllegalTransitionError):  # it has ended with the one above it
            cancel.cancel(run_id, SESSION_GONE)
    ended = erasures.ended_of(roots)
    runs = erasures.erase_trees(ended, most, audits=audits)
    get_buffer().forget([str(root) for root in ended])
    erasures.erase_sessions(sessions)
    return runs


# ---------------------------------------------------------------------------------------------------------- export


def export(user: Any) -> Iterator[dict[str, Any]]:
    """Each row that the erasure would delete or reduce: `model`, `pk` and `fields`; the bodies of big values too. What
    is hidden from owners is null, but for staff."""
    scope = all_of(user)
    scope = Scope(scope.user, scope.sessions, list(scope.runs.values_list("id", flat=True)))
    shown = Hiding(() if hidden.sees(user) else scope.runs).shown
    serializer = Serializer()
    for table in TABLES:
        yield from map(shown, serializer.serialize(table.rows(scope).order_by("pk").iterator(chunk_size=500)))
    whole, _ = erasures.bodies_of(JournalEntry.objects.filter(run__in=scope.runs))
    for blob in Blob.objects.filter(id__in=whole).iterator():
        is_text = blob.encoding.startswith("text")
        value = zlib.decompress(blob.body).decode() if is_text else blob_value(blob)
        yield shown({"model": "ravi.blob", "pk": blob.id, "fields": {"value": value}})
