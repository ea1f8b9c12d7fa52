"""The rows that are a person's. Erasure and export use this one list; a test finds a model without an entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet

from ravi_django.models.agent import Agent, AgentVersion
from ravi_django.models.audit import AuditRecord
from ravi_django.models.budget import BudgetAccount, DailyBudget, Reservation
from ravi_django.models.files import RaviFile
from ravi_django.models.journal import Blob, InboxMessage, JournalEntry
from ravi_django.models.people import Delegation, HumanRequest, RequestLink, StickyDecision
from ravi_django.models.rollup import Rollup
from ravi_django.models.run import Ask, Feedback, Run, Signal
from ravi_django.models.schedules import Schedule, ScheduleTick
from ravi_django.models.session import BoardTask, Session, Turn
from ravi_django.models.site import Erasure, OutboxEvent, StreamFrame, SweepState, Ticket, WorkerProcess
from ravi_django.models.social import FeedItem, Follow, Publication
from ravi_django.models.sources import Source, SourceItem

NONE = Q(pk__in=[])


@dataclass(frozen=True, slots=True)
class Scope:
    """Rows of a user, of sessions, or of runs; an empty part finds nothing."""

    user: str = ""  # primary key
    sessions: Any = ()  # ids, or a query of them
    runs: Any = ()  # ids, or a query of them
    until: datetime | None = None  # rows that the user made later are kept


Where = Callable[[Scope], Q]


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


def _accounts(scope: Scope) -> Q:
    """By text keys; those of trees have the ids of the runs."""
    trees = [f"tree:{run}" for run in scope.runs]
    return Q(key__in=trees) | (Q(key__startswith=f"user:{scope.user}:") if scope.user else NONE)


def _delivered(scope: Scope) -> Q:
    """A publication that is still to be delivered belongs to its followers too."""
    waiting = Exists(FeedItem.objects.filter(publication=OuterRef("pk")))
    return _user("owner")(scope) & Q(~waiting, done_at__isnull=False)


@dataclass(frozen=True, slots=True)
class Table:
    model: type[Model]
    where: Where
    stays: bool = False  # reduced to the audit's needs, not deleted
    exported: bool = True  # tickets are not: they have credentials, and live for a minute
    made: str = ""  # the column of the creation time; empty: a run that is being cancelled may still write rows
    late: Q = NONE  # rows that the user's erased runs made later

    def rows(self, scope: Scope) -> QuerySet[Any]:
        rows = self.model._default_manager.filter(self.where(scope))
        if not (self.made and scope.until):
            return rows
        return rows.filter(Q(**{f"{self.made}__lte": scope.until}) | self.late)


_REDUCED = Q(detail__erased=True)

# In this order: a row goes before the rows that it refers to.
TABLES = (
    Table(RequestLink, _either(_run("request__run"), _user("user")), made="created_at"),
    Table(Feedback, _either(_run("run"), _user("user")), made="created_at"),
    Table(StickyDecision, _session("session")),
    Table(HumanRequest, _run("run")),
    Table(Ask, _run("asker", "target")),
    Table(Signal, _run("run")),
    Table(InboxMessage, _run("run")),
    Table(JournalEntry, _run("run")),
    Table(Reservation, _run("run")),
    Table(StreamFrame, _run("tree")),
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
    Agent: "the site's; its owner is set to nobody",
    AgentVersion: "the site's; its author is set to nobody",
    WorkerProcess: "the installation's",
    SweepState: "the installation's",
    Rollup: "counts only; an erasure moves them to nobody",
    Erasure: "deleted when its work is done",
}


def all_of(user: Any) -> Scope:
    """All rows of a user."""
    sessions = Session.objects.filter(owner=user, erasure=None)
    ids = sessions.order_by().values("id")
    runs = Run.objects.filter(Q(session__in=ids) | Q(root__session__in=ids)).order_by()
    return Scope(str(user.pk), ids, runs.values("id"))


def trees_of(sessions: Collection[Any]) -> list[Any]:
    """Roots of all trees with a run in these sessions."""
    pairs = Run.objects.filter(session__in=sessions).order_by().values_list("root_id", "id")
    return sorted({root or run for root, run in pairs})


def runs_of(roots: Collection[Any]) -> list[Any]:
    """The runs of these trees, the deepest first."""
    rows = Run.objects.filter(Q(id__in=roots) | Q(root__in=roots)).order_by(F("depth").desc(), "id")
    return list(rows.values_list("id", flat=True))
