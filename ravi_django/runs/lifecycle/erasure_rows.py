"""Erase a person's rows, in bounded batches. An Erasure row records the work that is left, so a crash leaves nothing
behind.

The sessions are marked in the deleter's transaction. From then on they have no owner and take no new run, and their
ended runs are neither retried nor forked. The rows are deleted table by table, the sessions last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from math import inf
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import F, Model, QuerySet
from django.db.models.fields.json import KT

from ravi_django.db import lock_rows, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import BLOB_KEY
from ravi_django.kernel import ConflictError
from ravi_django.live.rollups import counting
from ravi_django.models.audit import AuditRecord
from ravi_django.models.files import RaviFile
from ravi_django.models.journal import Blob, JournalEntry
from ravi_django.models.people import HumanRequest, StickyDecision
from ravi_django.models.run import TERMINAL, Run
from ravi_django.models.schedules import Schedule
from ravi_django.models.session import NAMELESS, Session
from ravi_django.models.site import Erasure
from ravi_django.models.social import FeedItem, Follow, Publication
from ravi_django.models.sources import Source
from ravi_django.runs.files import files
from ravi_django.runs.lifecycle import prune_rows
from ravi_django.runs.lifecycle.personal import BEGUN, TABLES, PersonalScope, Table, runs_of
from ravi_django.runs.teams.slots import reached

BODIES_S = 3600.0  # between two searches of all journals for bodies
STORED_S = 60.0  # a body is stored before the row that names it
NAMING: tuple[tuple[type[Model], str, str], ...] = (  # the column, and that of the time when it was written
    *((AuditRecord, "owner", "created_at"), (Publication, "owner", "created_at"), (RaviFile, "owner", "created_at")),
    *((StickyDecision, "decided_by", "created_at"), (StickyDecision, "revoked_by", "revoked_at")),
    (HumanRequest, "answered_by", "answered_at"),
)


def lock(user: Any, models: Sequence[type[Model]] = (Schedule, Source, Follow, Session)) -> None:
    """In the caller's transaction: lock the user's rows that others are made from, then the sessions, in the order of
    their ids. Their writers have committed by then, or wait for this transaction. The user's row is locked afterwards:
    a writer that holds one of these needs it for its commit."""
    for model in models:
        lock_rows(model._default_manager.filter(owner=user))


def begin(user: Any, *, keeps: bool = False) -> Erasure:
    """In the caller's transaction. With `keeps` the rows stay, without the user's name. Otherwise the user's sessions
    are marked, and nothing makes new ones from the user's rows: schedules and sources are disabled, follows deleted."""
    lock(user)
    # A fork holds this lock while it copies a session: it has committed by now, or finds the session marked.
    lock_rows(get_user_model()._base_manager.filter(pk=user.pk))
    name = str(user.get_username()) if hasattr(user, "get_username") else ""
    erasure: Erasure = clock.stamp(Erasure(user=str(user.pk), name=name, keeps=keeps))
    erasure.save(force_insert=True)
    if not keeps:
        for model in (Schedule, Source):
            model.objects.filter(owner=user).update(enabled=False)
        delete_follows(Follow.objects.filter(owner=user))
        Session.objects.filter(owner=user).update(erasure=erasure, owner=None, **NAMELESS)
        lock(user, [RaviFile])
        files.forget(RaviFile.objects.filter(owner=user))
    return erasure


def delete_follows(follows: QuerySet[Follow]) -> int:
    """Delete follows with their waiting items, after a fan-out that has locked one of them. Returns their number."""
    with transaction.atomic():
        ids = list(follows.order_by("id").select_for_update().values_list("id", flat=True))
        FeedItem.objects.filter(follow_id__in=ids).delete()
        Follow.objects.filter(id__in=ids).delete()
        return len(ids)


def let_go(user: str, until: datetime | None = None) -> None:
    """Clear the columns that name the user, in rows that were made before `until`. The database does some of it when
    the user is deleted."""
    for model, field, at in NAMING:
        rows = model._default_manager.filter(**{field: user})
        (rows if until is None else rows.filter(**{f"{at}__lte": until})).update(**{field: None})
    counting.forget_user(user)


def begin_session(session_id: UUID) -> Erasure:
    """Mark a conversation and the sessions of its child runs. Their audit records stay. Raises ConflictError for the
    session of a child run, and while one of the runs has not ended."""
    with transaction.atomic():
        above = Session.objects.values_list("parent_session", flat=True).get(id=session_id)
        if above is not None:
            raise ConflictError(f"session {session_id} is of a child run: delete session {above}, which it belongs to")
        ids = _family([session_id])
        # A transaction that makes a run in one of them waits for this lock, and then finds the session marked.
        list(Session.objects.select_for_update().filter(id__in=ids).order_by("id").values_list("id"))
        ids = _family([session_id])
        live = Run.objects.filter(session__in=ids).exclude(status__in=TERMINAL).values_list("id", "status").first()
        if live is not None:
            raise ConflictError(f"run {live[0]} of this session is {live[1]}: cancel it, or wait for its end")
        erasure: Erasure = clock.stamp(Erasure(keeps=True))
        erasure.save(force_insert=True)
        Session.objects.filter(id__in=ids).update(erasure=erasure, owner=None, **NAMELESS)
        return erasure


def _family(ids: Sequence[UUID]) -> set[UUID]:
    return reached(ids, lambda edge: Session.objects.filter(parent_session__in=edge).values_list("id", flat=True))


def sessions_of(erasure: Erasure, after: UUID | None, limit: float) -> list[UUID]:
    rows = Session.objects.filter(erasure=erasure).order_by("id").values_list("id", flat=True)
    return list((rows if after is None else rows.filter(id__gt=after))[: max(0, int(limit))])


def live_in(roots: Collection[UUID]) -> list[UUID]:
    """The live runs of these trees, to cancel first, the roots before the others."""
    rows = Run.objects.filter(id__in=runs_of(roots), cancel_requested_at=None).exclude(status__in=TERMINAL)
    return list(rows.order_by(F("root_id").asc(nulls_first=True), "id").values_list("id", flat=True))


def ended_of(roots: Collection[UUID]) -> list[UUID]:
    ended = Run.objects.filter(id__in=roots, status__in=TERMINAL).order_by("id").values_list("id", flat=True)
    return prune_rows.without_live(list(ended))


def erase_trees(roots: Collection[UUID], most: float = inf, *, audits: bool = True) -> int:
    """Delete ended trees that nobody can bring back: their sessions are marked, or their journals pruned. At most
    `most` runs, the deepest first; returns how many. Without `audits` their audit records stay."""
    runs = runs_of(roots)
    runs = runs[: int(min(most, len(runs)))]
    for start in range(0, len(runs), prune_rows.TREES):
        some = PersonalScope(runs=runs[start : start + prune_rows.TREES])
        counting.count(Run.objects.filter(id__in=some.runs))
        for table in TABLES:
            if audits or not table.stays:
                _all(table, some)
    return len(runs)


def erase_sessions(ids: Collection[UUID]) -> None:
    """Delete the marked sessions without a run."""
    busy = Run.objects.filter(session__in=ids).order_by().values_list("session_id", flat=True)
    some = PersonalScope(sessions=sorted(set(ids) - set(busy)))
    for table in TABLES:
        _all(table, some)


def finish(erasure: Erasure) -> None:
    """After the last session: erase the rows that are found by the user alone, clear the user in rows of others, and
    begin with the names."""
    if not erasure.user:
        erasure.delete()
        return
    stays = get_user_model()._base_manager.filter(pk=erasure.user).exists()  # and may have made rows meanwhile
    until = erasure.created_at if stays else None
    if not erasure.keeps:
        for table in TABLES:
            _all(table, PersonalScope(user=erasure.user, until=until), erasure.pseudonym)
    let_go(erasure.user, until)
    Erasure.objects.filter(id=erasure.id).update(position=BEGUN)


def _all(table: Table, scope: PersonalScope, pseudonym: str = "") -> None:
    rows = table.rows(scope)
    if table.stays:
        rows = rows if pseudonym else rows.exclude(detail__has_key=ERASED)
    while _some(table, rows, pseudonym):
        pass


def _some(table: Table, rows: QuerySet[Any], pseudonym: str) -> int:
    """One transaction, of at most ROWS rows; returns how many."""
    with transaction.atomic():
        these = prune_rows.first_of(rows.order_by())
        if not (count := these.count()):
            return 0
        lock_rows(these)
        if table.stays:
            _reduce(these, pseudonym)
        elif table.model is RaviFile:
            files.forget(these)
        elif table.model._meta.related_objects or table.model._meta.many_to_many:
            these.delete()
        else:
            if table.model is JournalEntry:
                mark_bodies(these)
            prune_rows.delete_rows(these)
        return count


ERASED = "erased"
_RETAINED = {  # the decision, hashes and addresses; no text that a person wrote
    *("request", "version", "kind", "tool", "risk", "to", "from", "level", "by", "instead_of", "revoked_by"),
    *("decision", "action", "outcome", "sticky", "arguments_hash", "arguments_sha256", "replaced_by", "step", "path"),
    *("messages", "model", "cost", "input_tokens", "output_tokens", "duration_s"),
}


def _reduce(rows: QuerySet[Any], pseudonym: str) -> None:
    records = list(rows.only("detail", "owner"))
    for row in records:
        detail = {name: value for name, value in row.detail.items() if name in {*_RETAINED, "owner"}}
        if isinstance(answer := row.detail.get("answer"), dict):
            detail["answer"] = {name: value for name, value in answer.items() if name in _RETAINED}
        row.detail = detail | {ERASED: True} | ({"owner": pseudonym} if pseudonym else {})
        row.owner_id = None if pseudonym else row.owner_id
    AuditRecord.objects.bulk_update(records, ["detail", "owner"], batch_size=500)


def mark_bodies(entries: QuerySet[Any]) -> None:
    """Mark the bodies that these rows name for deletion; bodies that others name too will stay."""
    whole, shared = bodies_of(entries)
    _to_erase(whole)
    # Processes remember stored bodies for hours: one that is needed is stored again by then.
    _to_erase(shared, prune_rows.BLOB_AGE_S)


def bodies_of(entries: QuerySet[Any]) -> tuple[set[str], set[str]]:
    """Ids of the bodies that rows of the journal name: of values, and of content that runs may share."""
    rows = entries.order_by().annotate(
        asked=KT(f"request__{BLOB_KEY}"), came=KT(f"result__{BLOB_KEY}"), spec=KT("result__spec")
    )
    whole: set[str] = set()
    shared: set[str] = set()
    for kind, asked, came, spec, digests in rows.values_list("kind", "asked", "came", "spec", "digests").iterator():
        named = {name: value for name, value in (digests or {}).items() if isinstance(value, str)}
        whole |= {value for value in (asked, came, named.pop("whole", None)) if value}
        shared |= {*named.values(), *([spec] if spec and kind == "run.started" else [])}
    return whole, shared - whole


def _to_erase(ids: Any, later_s: float = 0.0) -> None:
    _erase_at(ids, clock.after(later_s))


def _erase_at(ids: Any, at: Any) -> None:
    blobs = Blob.objects.filter(id__in=list(ids))
    with transaction.atomic():
        lock_rows(blobs)
        blobs.update(erase_at=at)


def erase_bodies() -> int:
    """Delete the due bodies that no row names; the others stay. One pass over the journals, and none until the oldest
    has been due for BODIES_S."""
    due = Blob.objects.filter(erase_at__lte=clock.after(-STORED_S))
    if not due.filter(erase_at__lte=clock.after(-BODIES_S)).exists():
        return 0
    ids = set(due.values_list("id", flat=True))
    left = prune_rows.without_referenced(set(ids))
    _erase_at(ids - left, None)
    return prune_rows.delete_rows(due.filter(id__in=left))  # a body that was stored again is not due any more


def erase_runs(roots: list[UUID], older_than_s: float) -> list[UUID]:
    """Delete ended trees whole, without their audit records; returns their roots. The journals go first, under the
    roots' locks: a run without a journal cannot be brought back."""
    while prune_rows.prune_trees(roots, prune_rows.journal_rows, older_than_s, mark_bodies):
        pass
    ended = prune_rows.still_ended(roots, older_than_s)
    erase_trees(ended, audits=False)
    return ended
