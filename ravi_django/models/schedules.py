"""Runs that begin by the clock."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.ids import uuid7
from ravi_django.models.run import Run
from ravi_django.models.session import Session

SESSION_GONE = "its conversation was deleted"


def switch_off(collector: Any, field: Any, rows: Any, using: str) -> None:
    """What becomes of the schedules of a session that is deleted: in a new one each their runs would be others'."""
    meta = Schedule._meta
    for its, value in ((field, None), (meta.get_field("enabled"), False), (meta.get_field("error"), SESSION_GONE)):
        collector.add_field_update(its, value, rows)


class Schedule(Owned):
    """Submits a run of an agent at every tick: by a cron expression in a time zone, or every so many seconds."""

    class CatchUp(models.TextChoices):
        SKIP = "skip"  # ticks that were missed are not made up for
        ONE = "one"  # one run for all of them
        ALL = "all"  # a run for each

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(  # goes with its owner: without one its runs would be the system's
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    name = models.CharField(max_length=200)
    agent = models.CharField(max_length=302, help_text=_("type/key"))
    input = models.TextField(help_text=_("What each run is given"))
    session = models.ForeignKey(
        Session, null=True, blank=True, on_delete=switch_off, related_name="+", help_text=_("Empty: a new one each")
    )
    cron = models.CharField(max_length=200, blank=True, default="", help_text=_("minute hour day month weekday"))
    every_s = models.PositiveIntegerField(null=True, blank=True, help_text=_("In place of cron: seconds between ticks"))
    timezone = models.CharField(max_length=64, blank=True, default="", help_text=_("Of cron; empty: the site's"))
    jitter_s = models.PositiveIntegerField(default=0, help_text=_("Up to so many seconds later, the same for one tick"))
    catch_up = models.CharField(max_length=4, choices=CatchUp.choices, default=CatchUp.ONE)
    priority = models.CharField(max_length=10, default="normal")
    budget = models.JSONField(null=True, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    starts_at = models.DateTimeField(null=True, blank=True, help_text=_("Intervals are counted from here"))
    next_at = models.DateTimeField(null=True, blank=True, help_text="The next tick")
    due_at = models.DateTimeField(null=True, blank=True, help_text="The next tick with its jitter")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When a scheduler saw it due and had to leave it")
    last_at = models.DateTimeField(null=True, blank=True, help_text="The last tick that was seen to")
    error = models.TextField(blank=True, default="", help_text="Why the last tick submitted nothing")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=(~Q(cron="") & Q(every_s__isnull=True)) | (Q(cron="") & Q(every_s__gt=0)),
                name="ravi_schedule_cron_or_every",
            ),
            models.CheckConstraint(condition=Q(catch_up__in=["skip", "one", "all"]), name="ravi_schedule_catch_up"),
            models.UniqueConstraint(  # a deploy that names it again finds it, however many do so at once
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
    """A tick that was seen to, and its run: one, whoever else has seen to it at the same time."""

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
