"""Rows and constraints; no behaviour beyond querysets. Run state is written by `runtime/store/` alone."""

from ravi_django.models.agent import Agent, AgentVersion
from ravi_django.models.audit import AuditRecord
from ravi_django.models.board import BoardTask
from ravi_django.models.budget import BudgetAccount, DailyBudget, Reservation
from ravi_django.models.ids import first_id_of, uuid7
from ravi_django.models.journal import Blob, InboxMessage, JournalEntry, Phase
from ravi_django.models.people import Delegation, HumanRequest, RequestLink, StickyDecision
from ravi_django.models.run import ACTIVE, TERMINAL, Run, Status
from ravi_django.models.session import Session, Turn
from ravi_django.models.site import StreamFrame, SweepState, Ticket, WorkerProcess
from ravi_django.models.waiting import Ask, AskKind, Signal

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
    "HumanRequest",
    "InboxMessage",
    "JournalEntry",
    "Phase",
    "RequestLink",
    "Reservation",
    "Run",
    "Session",
    "Signal",
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
