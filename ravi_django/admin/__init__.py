"""The app in Django's admin. Runs and their journals are read-only; requests are decided in the inbox.

Django's model permissions decide which models staff see: rows of all owners, or of the user's tenants when
RAVI["TENANT_OF"] is set. A user with `ravi.view_run` is an operator of the site. `ravi.change_run` allows cancelling
runs, `ravi.change_agent` enabling, disabling and editing agents, `ravi.add_agent` creating them. Users see the requests
that they may answer, see `inbox`.
"""

from ravi_django.admin.agents.pages import AgentAdmin
from ravi_django.admin.audit import AuditRecordAdmin
from ravi_django.admin.board import BoardTaskAdmin
from ravi_django.admin.budgets import BudgetAccountAdmin, DailyBudgetAdmin
from ravi_django.admin.delegations import DelegationAdmin, StickyDecisionAdmin
from ravi_django.admin.graph import FollowAdmin, PublicationAdmin
from ravi_django.admin.inbox import HumanRequestAdmin
from ravi_django.admin.journal import JournalEntryAdmin
from ravi_django.admin.own_sites import register_on
from ravi_django.admin.runs import RunAdmin
from ravi_django.admin.schedules import ScheduleAdmin
from ravi_django.admin.sessions import SessionAdmin
from ravi_django.admin.sources import SourceAdmin, SourceItemAdmin
from ravi_django.admin.workers import WorkerProcessAdmin

__all__ = [
    "AgentAdmin",
    "AuditRecordAdmin",
    "BoardTaskAdmin",
    "BudgetAccountAdmin",
    "DailyBudgetAdmin",
    "DelegationAdmin",
    "FollowAdmin",
    "HumanRequestAdmin",
    "JournalEntryAdmin",
    "PublicationAdmin",
    "RunAdmin",
    "ScheduleAdmin",
    "SessionAdmin",
    "SourceAdmin",
    "SourceItemAdmin",
    "StickyDecisionAdmin",
    "WorkerProcessAdmin",
    "register_on",
]
