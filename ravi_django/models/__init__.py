"""Rows and constraints; no behaviour beyond querysets. Only the packages of `runtime/` write run state."""

from django.db.models.base import ModelBase

from ravi_django.models.agent import Agent, AgentVersion
from ravi_django.models.audit import AuditRecord
from ravi_django.models.board import BoardTask
from ravi_django.models.budget import BudgetAccount, DailyBudget, Reservation
from ravi_django.models.ids import first_id_of, uuid7
from ravi_django.models.journal import Blob, InboxMessage, JournalEntry, Phase
from ravi_django.models.names import translate
from ravi_django.models.people import Delegation, HumanRequest, RequestLink, StickyDecision
from ravi_django.models.run import ACTIVE, TERMINAL, Run, Status
from ravi_django.models.schedules import Schedule, ScheduleTick
from ravi_django.models.session import Session, Turn
from ravi_django.models.site import Erasure, OutboxEvent, StreamFrame, SweepState, Ticket, WorkerProcess
from ravi_django.models.social import FeedItem, Follow, Publication
from ravi_django.models.sources import Source, SourceItem
from ravi_django.models.waiting import Ask, AskKind, Signal

translate(model for model in list(globals().values()) if isinstance(model, ModelBase))

__all__ = [
    "ACTIVE",
    "TERMINAL",
    "Agent",
    "AgentVersion",
    "Ask",
    "AskKind",
    "AuditRecord",
    "Blob",
    "BoardTask",
    "BudgetAccount",
    "DailyBudget",
    "Delegation",
    "Erasure",
    "FeedItem",
    "Follow",
    "HumanRequest",
    "InboxMessage",
    "JournalEntry",
    "OutboxEvent",
    "Phase",
    "Publication",
    "RequestLink",
    "Reservation",
    "Run",
    "Schedule",
    "ScheduleTick",
    "Session",
    "Signal",
    "Source",
    "SourceItem",
    "Status",
    "StickyDecision",
    "StreamFrame",
    "SweepState",
    "Ticket",
    "Turn",
    "WorkerProcess",
    "first_id_of",
    "uuid7",
]
