"""Counts of what runs have done, by hour and by day: the dashboard reads these instead of all runs."""

from django.db import models
from django.db.models import Q

# Upper ends of the buckets of times, in seconds; the last bucket has no end.
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Rollup(models.Model):
    """The ends of runs, or the calls of one model, that have all the columns up to `bucket` in common.

    An end has no `model`, and its outcome is the run's status. A call has the outcome "ok", "error", or "unused" for an
    answer that was paid and not used. Everything is counted twice: in a row of its hour without the user, and in a row
    of its day with the user.
    """

    class Span(models.TextChoices):
        HOUR = "hour"
        DAY = "day"

    span = models.CharField(max_length=4, choices=Span.choices)
    start = models.DateTimeField(help_text="Of the hour or day, in the site's zone")
    tenant = models.CharField(max_length=100)
    agent = models.CharField(max_length=302)
    model = models.CharField(max_length=200, help_text="Logical model name")
    user = models.CharField(max_length=200, help_text="Primary key; empty: the system's, or a deleted user's")
    outcome = models.CharField(max_length=10)
    bucket = models.SmallIntegerField(help_text="Of the run's time at work, or the duration of the call: see BOUNDS")

    count = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost = models.DecimalField(max_digits=20, decimal_places=8, default=0, help_text="US dollars, known part")
    unpriced = models.BigIntegerField(default=0, help_text="Calls whose price was unknown")
    waited_s = models.FloatField(default=0, db_default=0, help_text="Waits of calls for the limits of their models")

    KEY = ("span", "start", "tenant", "agent", "model", "user", "outcome", "bucket")
    SUMS = (
        "count",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
        "cost",
        "unpriced",
        "waited_s",
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(span__in=["hour", "day"]), name="ravi_rollup_span"),
            models.UniqueConstraint(
                fields=["span", "start", "tenant", "agent", "model", "user", "outcome", "bucket"],
                name="ravi_rollup_once",
            ),
        ]
        indexes = [models.Index(fields=["user"], condition=~Q(user=""), name="ravi_rollup_user")]

    def __str__(self) -> str:
        return f"{self.span} {self.start:%Y-%m-%d %H:%M} {self.agent} {self.model or self.outcome}"
