"""Signals to runs, and runs that wait for other runs."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from ravi_django.models.ids import uuid7
from ravi_django.models.run import Run


class Signal(models.Model):
    """A named message to a run. Kept until a wait consumes it, once.

    The key to the run has no constraint: a sender and a deletion both lock the run's row first.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="signals", db_index=False, db_constraint=False)
    name = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    key = models.CharField(
        max_length=64, blank=True, default="", help_text="From the sender: a repeat is the same signal"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    consumed_at = models.DateTimeField(null=True, blank=True)
    woke = models.BooleanField(default=True, help_text="False until the run is woken: the sweep looks for these")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["run", "key"], condition=~Q(key=""), name="ravi_signal_once")]
        indexes = [
            models.Index(fields=["run", "id"], condition=Q(consumed_at__isnull=True), name="ravi_signal_unread"),
            models.Index(fields=["run"], condition=Q(woke=False), name="ravi_signal_silent"),
            models.Index(fields=["run"], condition=Q(consumed_at__isnull=False), name="ravi_signal_read"),
        ]

    def __str__(self) -> str:
        return self.name


class AskKind(models.TextChoices):
    REPLIED = "replied"
    TIMED_OUT = "timed_out"
    TARGET_FAILED = "target_failed"
    TARGET_CANCELLED = "target_cancelled"


class Ask(models.Model):
    """One run waits for another's reply, or its end. The outcome is set once: by the reply, the end or the timeout."""

    id = models.UUIDField(primary_key=True, default=uuid7)
    asker = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="asks", db_index=False)
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500, help_text="The place of the ask in the asker's code")
    target = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="asked", db_index=False)
    message_id = models.CharField(max_length=64, blank=True, default="", help_text="Empty: waits only for the end")
    deadline = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(  # noqa: DJ001 - null while open
        max_length=20, choices=AskKind.choices, null=True, blank=True
    )
    result = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["asker", "generation", "path"], name="ravi_ask_once_a_path"),
            models.CheckConstraint(
                condition=Q(outcome__isnull=True) | Q(outcome__in=AskKind.values), name="ravi_ask_outcome"
            ),
        ]
        indexes = [models.Index(fields=["target"], condition=Q(outcome__isnull=True), name="ravi_ask_open")]

    def __str__(self) -> str:
        return f"{self.asker_id} asks {self.target_id}"
