"""Rows and constraints; no behaviour beyond querysets. Only the packages that own the table write run state."""

from django.db.models.base import ModelBase

from ravi_django.models.agent import Agent as Agent, AgentVersion as AgentVersion
from ravi_django.models.audit import AuditRecord as AuditRecord
from ravi_django.models.base import first_id_of as first_id_of, uuid7 as uuid7
from ravi_django.models.budget import (
    BudgetAccount as BudgetAccount,
    DailyBudget as DailyBudget,
    Reservation as Reservation,
)
from ravi_django.models.files import RaviFile as RaviFile
from ravi_django.models.journal import (
    Blob as Blob,
    InboxMessage as InboxMessage,
    JournalEntry as JournalEntry,
    Phase as Phase,
)
from ravi_django.models.limits import ModelLimit as ModelLimit
from ravi_django.models.names import translate
from ravi_django.models.people import (
    Delegation as Delegation,
    HumanRequest as HumanRequest,
    StickyDecision as StickyDecision,
)
from ravi_django.models.rollup import Rollup as Rollup
from ravi_django.models.run import (
    ACTIVE as ACTIVE,
    TERMINAL as TERMINAL,
    UNPUBLISHED as UNPUBLISHED,
    AfterLease as AfterLease,
    Ask as Ask,
    AskKind as AskKind,
    Feedback as Feedback,
    Run as Run,
    Signal as Signal,
    Status as Status,
)
from ravi_django.models.schedules import Schedule as Schedule, ScheduleTick as ScheduleTick
from ravi_django.models.session import BoardTask as BoardTask, Session as Session, Turn as Turn
from ravi_django.models.site import (
    Erasure as Erasure,
    OutboxEvent as OutboxEvent,
    StreamArchive as StreamArchive,
    StreamFrame as StreamFrame,
    SweepState as SweepState,
    Ticket as Ticket,
    WorkerProcess as WorkerProcess,
)
from ravi_django.models.social import FeedItem as FeedItem, Follow as Follow, Publication as Publication
from ravi_django.models.sources import Source as Source, SourceItem as SourceItem

translate(model for model in list(globals().values()) if isinstance(model, ModelBase))
