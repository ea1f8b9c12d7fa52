"""The rows of a person, and the person's name in rows of others. Erasure and export use this one list; a test
finds a model without an entry.

Names are text, in columns and in JSON, and no index finds them. One pass reads the tables in the order of their keys,
for all deletions at the same time, and replaces the names by pseudonyms. `Erasure.position` is how far it is.

A journal has the names of people who answered the run's requests. It is rewritten with those requests. A live run's
journal is rewritten after the run's end, because its code reads it again: `Erasure.runs` are those runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ravi_django.db import lock_rows, transaction
from ravi_django.models.agent import Agent, AgentVersion
from ravi_django.models.audit import AuditRecord
from ravi_django.models.budget import BudgetAccount, DailyBudget, Reservation
from ravi_django.models.files import RaviFile
from ravi_django.models.journal import Blob, InboxMessage, JournalEntry
from ravi_django.models.limits import ModelLimit
from ravi_django.models.people import Delegation, HumanRequest, StickyDecision
from ravi_django.models.rollup import Rollup
from ravi_django.models.run import TERMINAL, AfterLease, Ask, Feedback, Run, Signal
from ravi_django.models.schedules import Schedule, ScheduleTick
from ravi_django.models.session import BoardTask, Session, Turn
from ravi_django.models.site import Erasure, OutboxEvent, StreamArchive, StreamFrame, SweepState, Ticket, WorkerProcess
from ravi_django.models.social import FeedItem, Follow, Publication
from ravi_django.models.sources import Source, SourceItem
from ravi_django.runs import workers
from ravi_django.runs.teams.slots import reached

NONE = Q(pk__in=[])


@dataclass(frozen=True, slots=True)
class PersonalScope:
    """Rows of a user, of sessions, or of runs; an empty part finds nothing."""

    user: str = ""  # primary key
    sessions: Any = ()  # ids, or a query of them
    runs: Any = ()  # ids, or a query of them
    until: datetime | None = None  # rows that the user made later are kept


Where = Callable[[PersonalScope], Q]


def _any(lookups: Iterable[str], value: Any) -> Q:
    return reduce(or_, (Q(**{lookup: value}) for lookup in lookups), NONE)


def _user(*lookups: str) -> Where:
    return lambda scope: _any(lookups, scope.user) if scope.user else NONE


def _session(*lookups: str) -> Where:
    return lambda scope: _any([f"{lookup}__in" for lookup in lookups], scope.sessions)


def _run(*lookups: str) -> Where:
    return lambda scope: _any([f"{lookup}__in" for lookup in lookups], scope.runs)


def _either(*parts: Where) -> Where:
    return lambda scope: reduce(or_, (part(scope) for part in parts))


def _accounts(scope: PersonalScope) -> Q:
    """By text keys; those of trees have the ids of the runs."""
    trees = [f"tree:{run}" for run in scope.runs]
    return Q(key__in=trees) | (Q(key__startswith=f"user:{scope.user}:") if scope.user else NONE)


def _delivered(scope: PersonalScope) -> Q:
    """A publication that is still to be delivered belongs to its followers too."""
    waiting = Exists(FeedItem.objects.filter(publication=OuterRef("pk")))
    return _user("owner")(scope) & Q(~waiting, done_at__isnull=False)


@dataclass(frozen=True, slots=True)
class Table:
    model: type[Model]
    where: Where
    stays: bool = False  # reduced to the audit's needs, not deleted
    exported: bool = True  # tickets are not (credentials for a minute), and archives, whose text is in the journal
    made: str = ""  # the column of the creation time; empty: a run that is being cancelled may still write rows
    late: Q = NONE  # rows that the user's erased runs made later

    def rows(self, scope: PersonalScope) -> QuerySet[Any]:
        rows = self.model._default_manager.filter(self.where(scope))
        if not (self.made and scope.until):
            return rows
        return rows.filter(Q(**{f"{self.made}__lte": scope.until}) | self.late)


_REDUCED = Q(detail__erased=True)

# In this order: a row goes before the rows that it refers to.
TABLES = (
    Table(Feedback, _either(_run("run"), _user("user")), made="created_at"),
    Table(StickyDecision, _session("session")),
    Table(HumanRequest, _run("run")),
    Table(Ask, _run("asker", "target")),
    Table(Signal, _run("run")),
    Table(InboxMessage, _run("run")),
    Table(JournalEntry, _run("run")),
    Table(Reservation, _run("run")),
    Table(StreamFrame, _run("tree")),
    Table(StreamArchive, _run("tree"), exported=False),
    Table(BudgetAccount, _accounts),
    Table(OutboxEvent, _user("body__data__owner")),
    Table(BoardTask, _session("session")),
    Table(Turn, _session("session")),
    Table(FeedItem, _either(_user("follow__owner"), _session("follow__session")), made="follow__created_at"),
    Table(Follow, _either(_user("owner"), _session("session")), made="created_at"),
    Table(ScheduleTick, _user("schedule__owner"), made="schedule__created_at"),
    Table(Schedule, _user("owner"), made="created_at"),
    Table(SourceItem, _user("source__owner"), made="source__created_at"),
    Table(Source, _user("owner"), made="created_at"),
    Table(DailyBudget, _user("owner")),
    Table(Ticket, _user("user"), exported=False),
    Table(Delegation, _user("user", "delegate"), made="created_at"),
    Table(Publication, _delivered, made="created_at", late=Q(run=None) & ~Q(body__sender=None)),
    Table(RaviFile, _user("owner"), made="created_at"),
    Table(AuditRecord, _either(_user("owner"), _run("run_id")), stays=True, made="created_at", late=_REDUCED),
    Table(Run, _run("pk")),
    Table(Session, _session("pk")),
)
# Models without an entry, and the reason.
OTHERS: dict[type[Model], str] = {
    Blob: "found by the journal's rows that name it",
    AfterLease: "deleted with its run",
    Agent: "the site's; its owner is set to nobody",
    AgentVersion: "the site's; its author is set to nobody",
    WorkerProcess: "the installation's",
    ModelLimit: "the installation's; `paused_by` names a person of the staff",
    SweepState: "the installation's",
    Rollup: "counts only; an erasure moves them to nobody",
    Erasure: "deleted when its work is done",
}


def all_of(user: Any) -> PersonalScope:
    """All rows of a user."""
    sessions = Session.objects.filter(owner=user, erasure=None)
    ids = sessions.order_by().values("id")
    runs = Run.objects.filter(Q(session__in=ids) | Q(root__session__in=ids)).order_by()
    return PersonalScope(str(user.pk), ids, runs.values("id"))


def trees_of(sessions: Collection[Any]) -> list[Any]:
    """Roots of all trees with a run in these sessions."""
    pairs = Run.objects.filter(session__in=sessions).order_by().values_list("root_id", "id")
    return sorted({root or run for root, run in pairs})


def runs_of(roots: Collection[Any]) -> list[Any]:
    """The runs of these trees, the deepest first."""
    rows = Run.objects.filter(Q(id__in=roots) | Q(root__in=roots)).order_by(F("depth").desc(), "id")
    return list(rows.values_list("id", flat=True))


ROWS = 5_000  # read in one transaction
MOST = 100  # names that one pass looks for
DECIDED = ("by", "instead_of", "revoked_by")  # keys of JSON that name a person
BEGUN = "names"  # the position before the first row
LIVE = "runs"  # the position behind the last row, while there are live runs


@dataclass(frozen=True, slots=True)
class Named:
    """Columns of text or JSON that may have names, and the time of a row: a later one names another user."""

    model: type[Model]
    columns: tuple[str, ...]
    written: str = "created_at"


def _tables() -> list[Named]:
    tables = [
        Named(HumanRequest, ("to", "steps", "answer")),
        Named(AuditRecord, ("detail",)),
        Named(StickyDecision, ("decided_by_name",)),
        Named(Signal, ("payload",)),
        Named(OutboxEvent, ("body",)),
        Named(Publication, ("body",)),
    ]
    if apps.is_installed("django.contrib.admin"):
        from django.contrib.admin.models import LogEntry

        tables.append(Named(LogEntry, ("change_message",), "action_time"))
    return tables


@dataclass
class Name:
    name: str
    pseudonym: str
    until: datetime

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(\bin place of |\buser:){re.escape(self.name)}(?![\w@+-]|\.\w)")

    def without(self, value: Any, key: str = "") -> Any:
        """The value with the pseudonym in the name's places. The bare name counts under the keys DECIDED alone."""
        if isinstance(value, dict):
            return {inner: self.without(item, inner) for inner, item in value.items()}
        if isinstance(value, list):
            return [self.without(item, key) for item in value]
        if not isinstance(value, str) or self.name not in value:
            return value
        if value == self.name:
            return self.pseudonym if key in DECIDED else value
        return self._pattern.sub(rf"\g<1>{self.pseudonym}", value)


def forget_names() -> bool:
    """One batch of the pass that is furthest; whether there was one. A pass that fails is left to the next sweep: the
    others go on. An erasure whose pass has ended is deleted, unless it waits for live runs."""
    begun = Erasure.objects.exclude(position__in=("", LIVE))
    for position in begun.order_by("-position").values_list("position", flat=True).distinct():
        if workers.apart(_forget, list(begun.filter(position=position).order_by("id")[:MOST])):
            return True
    return False


def _forget(group: list[Erasure]) -> bool:
    at = group[0].position
    names = [Name(one.name, one.pseudonym, one.created_at) for one in group if one.name]
    rows = Erasure.objects.filter(id__in=[erasure.id for erasure in group], position=at)
    with transaction.atomic():
        lock_rows(rows)
        if not rows.exists():  # another sweep has moved them on
            return True
        position, live = _pass_on(at, names) if names else ("", set())
        runs = sorted(live.union(*(one.runs or () for one in group)))
        if position or runs:
            rows.update(position=position or LIVE, runs=runs)
        else:
            rows.delete()
    return True


def forget_in_ended() -> None:
    """Rewrite the journals of runs that have ended since the pass. An erasure without live runs is complete."""
    for erasure in Erasure.objects.filter(position=LIVE).order_by("id"):
        workers.each(_forget_in_ended, erasure)


def _forget_in_ended(erasure: Erasure) -> None:
    with transaction.atomic():
        live = _in_journals(erasure.runs or (), [Name(erasure.name, erasure.pseudonym, erasure.created_at)])
        if live:
            Erasure.objects.filter(id=erasure.id).exclude(runs=sorted(live)).update(runs=sorted(live))
        else:
            erasure.delete()


def _pass_on(position: str, names: Sequence[Name]) -> tuple[str, set[str]]:
    """Rewrite the next rows. Returns where the next batch begins (empty at the end), and the live runs whose journals
    are left. A position is the index of the table and the last key, after a letter that sorts after BEGUN."""
    tables = _tables()
    _, index, last = ("", "0", "") if position == BEGUN else position.split(":", 2)
    table = tables[int(index)]
    key = table.model._meta.pk
    assert key is not None
    rows = table.model._default_manager.order_by("pk")
    if last:
        rows = rows.filter(pk__gt=key.to_python(last))
    ids = list(rows.values_list("pk", flat=True)[:ROWS])
    live = _replace(table, ids, names) if ids else set()
    if len(ids) == ROWS:
        return f"names:{index}:{ids[-1]}", live
    return f"names:{int(index) + 1}:" if int(index) + 1 < len(tables) else "", live


def _replace(table: Named, ids: Sequence[Any], names: Sequence[Name]) -> set[str]:
    rows = table.model._default_manager.filter(pk__range=(ids[0], ids[-1]))
    runs = set()
    for row in _with(rows, table.columns, names):
        if _rename(row, table, names):
            row.save(update_fields=list(table.columns))
            runs.add(getattr(row, "run_id", None))
    return _in_journals(runs - {None}, names)


def _with(rows: Any, columns: Sequence[str], names: Sequence[Name]) -> list[Any]:
    """The rows with one of the names somewhere in these columns, as text."""
    matches = Q()
    for name in names:
        for column in columns:
            for text in {name.name, *(json.dumps(name.name, ensure_ascii=ascii)[1:-1] for ascii in (True, False))}:
                matches |= Q(**{f"text_{column}__contains": text})
    texts = {f"text_{column}": Cast(column, TextField()) for column in columns}
    locked = rows.select_for_update(of=("self",), no_key=True).order_by("pk")
    return list(locked.annotate(**texts).filter(matches))


def _rename(row: Any, table: Named, names: Sequence[Name]) -> bool:
    changed = False
    for name in names:
        if getattr(row, table.written) > name.until:
            continue
        for column in table.columns:
            before = getattr(row, column)
            after = name.without(before, "by" if column == "decided_by_name" else "")
            if after != before:
                setattr(row, column, after)
                changed = True
    return changed


def _in_journals(runs: Iterable[Any], names: Sequence[Name]) -> set[str]:
    """Rewrite the decisions in the journals of these runs and their forks. Returns the live ones, which are left."""
    run_ids = reached(
        {UUID(str(run)) for run in runs},
        lambda edge: Run.objects.filter(forked_from__in=edge).values_list("id", flat=True),
    )
    locked = Run.objects.select_for_update(no_key=True).filter(id__in=run_ids).order_by("id")
    ended = {id: status in TERMINAL for id, status in locked.values_list("id", "status")}
    over = [id for id, is_over in ended.items() if is_over]
    entries = JournalEntry.objects.filter(run__in=over).exclude(kind__in=("llm.call", "tool.call"))  # no names there
    for entry in _with(entries, ("result",), names):
        for name in names:
            entry.result = name.without(entry.result)
        entry.save(update_fields=["result"])
    return {str(id) for id, is_over in ended.items() if not is_over}
