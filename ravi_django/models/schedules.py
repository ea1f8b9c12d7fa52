"""Schedules and their ticks."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.run import Run
from ravi_django.models.session import Session

SESSION_GONE = "its conversation was deleted"


def switch_off(collector: Any, field: Any, rows: Any, using: str) -> None:
    """`on_delete` of a schedule's session: disable the schedule. Without a session its runs would get new ones."""
    meta = Schedule._meta
    for column, value in ((field, None), (meta.get_field("enabled"), False), (meta.get_field("error"), SESSION_GONE)):
        collector.add_field_update(column, value, rows)


class Schedule(Owned):
    """Submits a run of an agent at every tick: by a cron expression in a time zone, or every so many seconds."""

    class CatchUp(models.TextChoices):
        SKIP = "skip"  # no run for missed ticks
        ONE = "one"  # one run for all missed ticks
        ALL = "all"  # one run for each

    owner = Owned.strict_owner()
    name = models.CharField(max_length=200)
    agent = models.CharField(max_length=302, help_text=_("type/key"))
    input = models.TextField(help_text=_("The input of each run"))
    session = models.ForeignKey(
        Session,
        null=True,
        blank=True,
        on_delete=switch_off,
        related_name="+",
        help_text=_("Empty: a new one for each run"),
    )
    cron = models.CharField(max_length=200, blank=True, default="", help_text=_("minute hour day month weekday"))
    every_s = models.PositiveIntegerField(null=True, blank=True, help_text=_("Instead of cron: seconds between ticks"))
    timezone = models.CharField(max_length=64, blank=True, default="", help_text=_("For cron. Empty: the site's"))
    jitter_s = models.PositiveIntegerField(
        default=0, help_text=_("Random delay of up to this many seconds, fixed for each tick")
    )
    catch_up = models.CharField(max_length=4, choices=CatchUp.choices, default=CatchUp.ONE)
    priority = models.CharField(max_length=10, default="normal")
    budget = models.JSONField(null=True, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    starts_at = models.DateTimeField(null=True, blank=True, help_text=_("Intervals count from this time"))
    next_at = models.DateTimeField(null=True, blank=True, help_text="The next tick")
    due_at = models.DateTimeField(null=True, blank=True, help_text="The next tick with its jitter")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When a scheduler saw it due and could not run it")
    last_at = models.DateTimeField(null=True, blank=True, help_text="The last handled tick")
    error = models.TextField(blank=True, default="", help_text="Why the last tick submitted nothing")

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=(~Q(cron="") & Q(every_s__isnull=True)) | (Q(cron="") & Q(every_s__gt=0)),
                name="ravi_schedule_cron_or_every",
            ),
            models.CheckConstraint(condition=Q(catch_up__in=["skip", "one", "all"]), name="ravi_schedule_catch_up"),
            models.UniqueConstraint(  # deploys at the same time create it once
                fields=["owner", "tenant", "name"],
                name="ravi_schedule_name",
                violation_error_message="Its owner has a schedule of this name in this tenant.",
            ),
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(owner__isnull=True),
                name="ravi_schedule_system_name",
                violation_error_message="The system has a schedule of this name in this tenant.",
            ),
        ]
        indexes = [models.Index(fields=["due_at"], condition=Q(enabled=True), name="ravi_schedule_due")]

    def __str__(self) -> str:
        return self.name


class ScheduleTick(models.Model):
    """A tick that was handled, and its run. Unique: of several schedulers one submits the run."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    at = models.DateTimeField()
    run = models.ForeignKey(Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    error = models.TextField(blank=True, default="", help_text="Why there is no run")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-at"]
        constraints = [models.UniqueConstraint(fields=["schedule", "at"], name="ravi_tick_once")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"
