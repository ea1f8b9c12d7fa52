"""The app in Django's admin. Runs and their journals are read-only; requests are decided in the inbox.

Django's model permissions decide which models staff see: rows of all owners, or of the user's tenants when
RAVI["TENANT_OF"] is set. A user with `ravi.view_run` is an operator of the site. `ravi.change_run` allows cancelling
runs, `ravi.change_agent` enabling, disabling and editing agents, `ravi.add_agent` creating them. Users see the requests
that they may answer, see `inbox`.
"""

from ravi_django import wing
from ravi_django.admin.agents.pages import AgentAdmin as AgentAdmin
from ravi_django.admin.audit import AuditRecordAdmin as AuditRecordAdmin, WorkerProcessAdmin as WorkerProcessAdmin
from ravi_django.admin.base import register_on as register_on
from ravi_django.admin.budgets import BudgetAccountAdmin as BudgetAccountAdmin, DailyBudgetAdmin as DailyBudgetAdmin
from ravi_django.admin.delegations import DelegationAdmin as DelegationAdmin, StickyDecisionAdmin as StickyDecisionAdmin
from ravi_django.admin.inbox import HumanRequestAdmin as HumanRequestAdmin
from ravi_django.admin.limits import ModelLimitAdmin as ModelLimitAdmin
from ravi_django.admin.runs import RunAdmin as RunAdmin
from ravi_django.admin.sessions import (
    BoardTaskAdmin as BoardTaskAdmin,
    FeedbackAdmin as FeedbackAdmin,
    SessionAdmin as SessionAdmin,
)

globals().update(wing.each("admin"))
