"""Personal data: erase the rows of a deleted user or conversation, and export a user's rows.

An export leaves out arguments and results of tools with `visible="staff"`.

A run without an owner would continue as the system's. So each run of a deleted user gets a cancel reason, also an ended
one: it cannot continue. Django deletes the rows below a run first and the run last. Writers for a run lock its row. The
deleter locks it before the first of those rows is deleted: nothing is written after that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.serializers.python import Serializer
from django.db.models import F, Q
from django.db.models.signals import pre_delete

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.journal.entries import blob_value, internalize, names_of_bodies
from ravi_django.kernel import IllegalTransitionError, Message
from ravi_django.live.streams import hidden
from ravi_django.live.streams.buffer import get_buffer
from ravi_django.live.streams.hidden import HIDDEN_TEXT, MARK
from ravi_django.models import TERMINAL, Blob, Erasure, HumanRequest, JournalEntry, RaviFile, Run, Session, Turn
from ravi_django.models.journal import InboxMessage
from ravi_django.models.schedules import SESSION_GONE
from ravi_django.models.session import NAMELESS
from ravi_django.runs import wake, workers
from ravi_django.runs.files import files
from ravi_django.runs.lifecycle import endings, erasure_rows, personal, prune_rows
from ravi_django.runs.lifecycle.endings import OWNER_DELETED, cancel, to_cancel
from ravi_django.runs.lifecycle.personal import TABLES, PersonalScope, all_of, trees_of


def connect() -> None:
    """Once per process, for the user model and its proxies: the signal names the class that is deleted."""
    users = get_user_model()
    for model in apps.get_models():
        if model._meta.concrete_model is users:
            pre_delete.connect(_deleting, sender=model, dispatch_uid="ravi.owner_deleted")
    pre_delete.connect(_deleting_run, sender=Run, dispatch_uid="ravi.run_deleted")


def _deleting(sender: Any, instance: Any, **more: Any) -> None:
    """In the deleter's transaction: a rollback undoes this too."""
    _cancel(instance)
    erasure_rows.lock(instance)
    erasure_rows.lock(instance, [RaviFile])  # a message that names one needs the user's row for the commit
    # A transaction that makes a run for the user needs this row: it has committed by now, or fails. Runs are locked
    # before users everywhere.
    list(get_user_model()._base_manager.filter(pk=instance.pk).select_for_update().values_list("pk"))
    _cancel(instance)
    user_deleted(instance)


def _cancel(user: Any) -> None:
    """Cancel the live runs and mark the ended ones, which could be retried or forked. Repeated until the user owns
    none: a run may have been retried before it was locked."""
    while owns_runs(user):
        live = _live(user)
        disown(user, live)
        for run_id in live:
            with suppress(IllegalTransitionError, Run.DoesNotExist):  # it has ended or was deleted meanwhile
                cancel(run_id, OWNER_DELETED)


def _live(user: Any) -> list[UUID]:
    """The runs to cancel, roots first: the runs below a root end with it."""
    rows = Run.objects.filter(owner=user, cancel_requested_at=None).exclude(status__in=TERMINAL)
    return list(rows.order_by(F("root_id").asc(nulls_first=True), "id").values_list("id", flat=True))


def _deleting_run(sender: Any, instance: Run, **more: Any) -> None:
    wake.lock_to_delete(instance.id)
    if Session.objects.filter(id=instance.session_id, erasure=None).exists():  # else its turns are deleted soon
        prune_rows.keep_blocks(JournalEntry.objects.filter(run=instance))
        Turn.objects.filter(session_id=instance.session_id, run_id=instance.id).update(run=None)


def owns_runs(user: Any) -> bool:
    return Run.objects.filter(owner=user).exists()


def disown(owner: Any, run_ids: Iterable[UUID]) -> None:
    """In the transaction that deletes the owner: clear the owner of the runs that have ended or are being cancelled, in
    one write with the mark, before Django sets it to NULL. All runs of the owner are locked with all runs that the
    cancellation of `run_ids` writes, in one order, against deadlocks. An earlier retry has ended by then; a later one
    finds the mark."""
    concerned = set().union(*map(to_cancel, run_ids))
    rows = Run.objects.select_for_update(no_key=True).filter(Q(owner=owner) | Q(id__in=concerned)).order_by("id")
    list(rows.values_list("id"))
    over = Q(status__in=TERMINAL) | Q(cancel_requested_at__isnull=False)
    Run.objects.filter(over, owner=owner).update(owner=None, cancel_reason=OWNER_DELETED)


def check_owned(run: Run) -> None:
    """Raise IllegalTransitionError for a run whose owner was deleted, or whose session is being erased."""
    if run.owner_id is None and run.cancel_reason == OWNER_DELETED:
        raise IllegalTransitionError(
            f"the owner of run {run.id} was deleted, so it cannot continue; submit its input as another user"
        )
    if Session.objects.filter(id=run.session_id, erasure__isnull=False).exists():
        raise IllegalTransitionError(f"the session of run {run.id} was deleted")


SESSIONS = 50  # in one batch
FAILED = 100  # sessions that cannot be deleted, before the rest of an erasure is left to the next sweep
SWEPT = 400  # sessions and runs, together, of one sweep
BATCHES = 8  # of names, in one sweep
POLICIES = ("erase", "anonymize", "keep")


def user_deleted(user: Any) -> None:
    """In the transaction that deletes the user, after the cancellation of their runs."""
    if conf.ON_USER_DELETE != "erase":  # the sessions stay, and nobody could go on with them by name
        Session.objects.filter(owner=user).update(**NAMELESS)
    if conf.ON_USER_DELETE == "keep":
        erasure_rows.let_go(str(user.pk))
    else:
        erasure_rows.begin(user, keeps=conf.ON_USER_DELETE == "anonymize")


def erase_user(user: Any) -> bool:
    """Erase the rows of a user, who stays. Returns whether all is done; the sweep does the rest after the end of live
    runs."""
    with transaction.atomic():
        erasure_rows.begin(user)
    work()
    while files.delete_unused():
        pass
    return not Erasure.objects.filter(user=str(user.pk)).exists()  # an earlier one may wait for live runs


def delete_session(session_id: UUID) -> None:
    """Delete a conversation and all below it, except audit records: it is hidden at once, and the sweep does the rest.
    Raises ConflictError while one of its runs has not ended."""
    erasure_rows.begin_session(session_id)


def work(most: float = inf, batches: float = inf) -> None:
    """Continue the erasures: until nothing is left to do, or for so many sessions and runs, and batches of names."""
    for erasure in Erasure.objects.filter(position="").order_by("id"):
        if most > 0:
            most -= workers.each(partial(_work_off, most=most), erasure) or 0
    personal.forget_in_ended()
    while batches > 0 and personal.forget_names():
        batches -= 1


def sweep() -> None:
    work(SWEPT, BATCHES)
    erasure_rows.erase_bodies()


def _work_off(erasure: Erasure, most: float) -> int:
    """Erase at most so many sessions and runs, then the rest; returns how many there were. A session that cannot be
    deleted stops no other, and does not count."""
    used, failed, last = 0, 0, erasure.after
    while failed < FAILED and (ids := erasure_rows.sessions_of(erasure, last, min(SESSIONS, most - used))):
        last = ids[-1]
        done = workers.apart(partial(_erase, most=most - used - len(ids), audits=not erasure.keeps), ids)
        failed += len(ids) - sum(sessions for sessions, _ in done)
        used += sum(map(sum, done))
    if not erasure_rows.sessions_of(erasure, None, 1):
        erasure_rows.finish(erasure)
    else:  # sessions that cannot be deleted must not hide those behind them from every sweep
        Erasure.objects.filter(id=erasure.id).update(after=last if failed >= FAILED else None)
    return used


def _erase(sessions: list[UUID], most: float, *, audits: bool) -> tuple[int, int]:
    """At most so many runs of the ended trees, their roots last, and the sessions without runs; returns the numbers of
    sessions and runs."""
    roots = trees_of(sessions)
    for run_id in erasure_rows.live_in(roots):
        with suppress(IllegalTransitionError, Run.DoesNotExist):  # it has ended meanwhile, or another sweep erased it
            endings.cancel(run_id, SESSION_GONE)
    ended = erasure_rows.ended_of(roots)
    runs = erasure_rows.erase_trees(ended, most, audits=audits)
    get_buffer().forget([str(root) for root in ended])
    erasure_rows.erase_sessions(sessions)
    return len(sessions), runs


def export(user: Any) -> Iterator[dict[str, Any]]:
    """Each row that the erasure would delete or reduce, except tickets: `model`, `pk` and `fields`; the bodies of big
    values too.
    Values that are hidden from owners are null, except for staff."""
    scope = all_of(user)
    scope = PersonalScope(scope.user, scope.sessions, list(scope.runs.values_list("id", flat=True)))
    hide = Hiding(() if hidden.sees(user) else scope.runs).hide
    serializer = Serializer()
    for table in (table for table in TABLES if table.exported):
        rows: Any = table.rows(scope).order_by("pk")
        if table.model is Turn:
            rows = rows.whole()
        elif table.model is InboxMessage:
            rows = rows.select_related("run")
        selected = rows.iterator(chunk_size=500)
        yield from map(hide, serializer.serialize(map(_whole, selected)))
    whole, _ = erasure_rows.bodies_of(JournalEntry.objects.filter(run__in=scope.runs))
    for blob in Blob.objects.filter(id__in=whole).iterator():
        is_text = blob.encoding.startswith("text")
        value = zlib.decompress(blob.body).decode() if is_text else blob_value(blob)
        yield hide({"model": "ravi.blob", "pk": blob.id, "fields": {"value": value}})


Fields = dict[str, Any]  # of a row in the form of dumpdata

_AUDITED = ("request", "version", "kind", "tool", "risk", "to", "arguments_hash", "arguments_sha256")


def _whole(row: Any) -> Any:
    """The row, without what only staff reads; a turn with the content that the journal holds."""
    if isinstance(row, JournalEntry):
        row.trace = None
    if isinstance(row, Turn):
        row.content, row.agent, row.entry_seq = row.blocks, row.by, None
    if isinstance(row, InboxMessage):
        with suppress(ValueError):  # then as it is stored
            row.body = Message.model_validate(row.whole(row.run, row.message_id, row.body)).model_dump(mode="json")
    return row


class Hiding:
    """Hides values of these runs. First it finds the rows whose mark is in a body or in another row."""

    def __init__(self, runs: Collection[Any]) -> None:
        self._entries: set[tuple[str, int]] = set()  # run and seq
        self._bodies: set[str] = set()
        self._calls: set[tuple[str, str]] = set()  # run and tool
        marked = HumanRequest.objects.filter(run__in=runs, details__hidden=True).exclude(to="owner")
        self._requests = {str(id) for id in marked.values_list("id", flat=True)}
        for row in JournalEntry.objects.filter(run__in=runs, kind__in=hidden.KINDS).iterator(chunk_size=100):
            self._look(row)
        self._hides: dict[str, Callable[[Any, Fields], Fields]] = {
            "ravi.journalentry": self._entry,
            "ravi.turn": lambda pk, turn: _marked(turn, content=hidden.blocks(turn["content"])),
            "ravi.humanrequest": self._request,
            "ravi.streamframe": lambda pk, row: {**row, "body": hidden.frame(row["body"])},
            "ravi.auditrecord": self._audit,
            "ravi.outboxevent": self._event,
            "ravi.blob": lambda pk, blob: {"value": None, MARK: True} if pk in self._bodies else blob,
        }

    def hide(self, row: dict[str, Any]) -> dict[str, Any]:
        hide = self._hides.get(row["model"])
        return row if hide is None else {**row, "fields": hide(row["pk"], row["fields"])}

    def _look(self, row: JournalEntry) -> None:
        bodies = names_of_bodies(row)
        internalize([row])
        if hidden.is_marked(row.kind, row.request, row.result, row.name):
            self._entries.add((str(row.run_id), row.seq))
            self._bodies |= bodies
            if row.kind == "tool.call":
                self._calls.add((str(row.run_id), row.name))

    def _entry(self, pk: Any, entry: Fields) -> Fields:
        if (str(entry["run"]), entry["seq"]) not in self._entries:
            return entry
        visible = hidden.entry(entry, whole=False)
        return (
            visible if MARK in visible else {**entry, "request": None, "result": None, MARK: True}
        )  # request and result are in bodies

    def _request(self, pk: Any, request: Fields) -> Fields:
        if str(pk) not in self._requests:
            return request
        return {**hidden.request_without_hidden(request), "details": {MARK: True}, MARK: True}

    def _audit(self, pk: Any, record: Fields) -> Fields:
        detail = record["detail"]
        if detail.get("request") not in self._requests and (str(record["run_id"]), record["name"]) not in self._calls:
            return record
        return {**record, "detail": {name: detail[name] for name in _AUDITED if name in detail}, MARK: True}

    def _event(self, pk: Any, event: Fields) -> Fields:
        data = event["body"].get("data") or {}
        if data.get("request") not in self._requests:
            return event
        data = {name: HIDDEN_TEXT if name in ("text", "reason") else value for name, value in data.items()}
        return {**event, "body": {**event["body"], "data": data}, MARK: True}


def _marked(turn: Fields, content: list[dict[str, Any]]) -> Fields:
    return turn if content == turn["content"] else {**turn, "content": content, MARK: True}
