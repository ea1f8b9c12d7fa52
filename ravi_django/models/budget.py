"""Budgets of trees of runs, users and tenants: limits, spent amounts, and reservations of open model calls."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.models.base import OwnedQuerySet
from ravi_django.models.run import Run


class BudgetAccount(models.Model):
    """The counters of one budget: of a tree, or of a day of a user or tenant.

    Rows are locked after those of runs, in the order of their keys.
    """

    key = models.CharField(primary_key=True, max_length=200, help_text=_("tree:ID, user:ID:DAY or tenant:NAME:DAY"))
    max_tokens = models.BigIntegerField(null=True, blank=True, help_text=_("No limit when empty"))
    max_cost = models.DecimalField(max_digits=16, decimal_places=8, null=True, blank=True, help_text=_("US dollars"))
    max_turns = models.BigIntegerField(null=True, blank=True, help_text=_("Model calls"))
    spent_tokens = models.BigIntegerField(default=0, db_default=0)
    spent_cost = models.DecimalField(max_digits=16, decimal_places=8, default=0, db_default=0)
    spent_turns = models.BigIntegerField(default=0, db_default=0)
    reserved_tokens = models.BigIntegerField(default=0, db_default=0)
    reserved_cost = models.DecimalField(max_digits=16, decimal_places=8, default=0, db_default=0)
    reserved_turns = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.key


class Reservation(models.Model):
    """The most that an open model call may use. The call's row settles it, and the end of its lease frees the rest. A
    takeover finds by it the requests that were lost with a killed worker."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="reservations", db_index=False)
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500)
    accounts = models.JSONField(default=list, help_text="Keys of the accounts that hold it")
    tokens = models.BigIntegerField(default=0)
    cost = models.DecimalField(max_digits=16, decimal_places=8, default=0)
    model = models.CharField(max_length=200, default="")
    request = models.CharField(max_length=40, default="", help_text="Epoch of the lease, dot, number in the call")
    input_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "generation", "path"], name="ravi_reservation_one_a_place")
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.path}"


class DailyBudget(models.Model):
    """The budget of a user, or of a whole tenant, for a day (UTC). It replaces `RAVI["DAILY_BUDGETS"]`."""

    owner = models.OneToOneField(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    tenant = models.CharField(max_length=100, blank=True, default="", help_text=_("Empty for the budget of a user"))
    max_tokens = models.BigIntegerField(null=True, blank=True)
    max_cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True, blank=True)
    max_turns = models.BigIntegerField(null=True, blank=True, help_text=_("Model calls"))

    objects = OwnedQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant"], condition=Q(owner=None), name="ravi_daily_one_a_tenant"),
        ]

    def __str__(self) -> str:
        if self.owner_id:
            return gettext("user %(id)s") % {"id": self.owner_id}
        return gettext("tenant %(name)s") % {"name": repr(self.tenant)}
