"""Looking into runs with Django's stock admin: everything is read-only but for what an operator may do to a run or
an agent, and what people decide in the inbox.

Staff see what Django's model permissions let them see, of all owners; where RAVI["TENANT_OF"] is set, of their own
tenants. A user with `ravi.view_run` is an operator of the site. `ravi.change_run` lets one cancel, `ravi.change_agent`
switch an agent off and on and edit one that was made here, `ravi.add_agent` make one. Users see the requests in the
inbox that they may answer, see `inbox`.
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
