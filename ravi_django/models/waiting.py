"""What runs wait for: signals, other runs, and people."""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.ids import uuid7
from ravi_django.models.run import Run


class Signal(models.Model):
    """Something that a run is told by name. Kept until a wait consumes it; consumed once."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="signals", db_index=False)
    name = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    key = models.CharField(max_length=64, blank=True, default="", help_text="The sender's: a repeat is the same signal")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    consumed_at = models.DateTimeField(null=True, blank=True)
    woke = models.BooleanField(default=True, help_text="False until the run was touched: the sweep looks for these")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["run", "key"], condition=~Q(key=""), name="ravi_signal_once")]
        indexes = [
            models.Index(fields=["run", "id"], condition=Q(consumed_at__isnull=True), name="ravi_signal_unread"),
            models.Index(fields=["run"], condition=Q(woke=False), name="ravi_signal_silent"),
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
    path = models.CharField(max_length=500, help_text="Where the asker's code asks")
    target = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="asked", db_index=False)
    message_id = models.CharField(max_length=64, blank=True, default="", help_text="Empty: waits for the end alone")
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


class HumanRequest(Owned):
    """A question, an approval, an input or an uncertain effect that a person decides. Answered once."""

    class Kind(models.TextChoices):
        QUESTION = "question"
        APPROVAL = "approval"
        INPUT = "input"
        UNCERTAIN = "uncertain"

    class Status(models.TextChoices):
        PENDING = "pending"
        ANSWERED = "answered"
        CANCELLED = "cancelled"  # its run ended, or went on without it
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="requests", db_index=False)
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500)
    attempt = models.IntegerField(default=1)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    text = models.TextField(blank=True, default="")
    choices = models.JSONField(null=True, blank=True)
    tool = models.CharField(max_length=200, blank=True, default="")
    arguments = models.JSONField(null=True, blank=True)
    details = models.JSONField(null=True, blank=True, help_text="context, free_text; questions by key, of several")
    risk = models.CharField(max_length=10, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    not_before = models.DateTimeField(null=True, blank=True, help_text="An answer before is refused")
    expires_at = models.DateTimeField(null=True, blank=True)
    answer = models.JSONField(null=True, blank=True, help_text="action, and what came with it")
    answered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    answered_at = models.DateTimeField(null=True, blank=True)
    woke = models.BooleanField(default=True, help_text="False until the run was touched for the answer")
    version = models.IntegerField(default=1, help_text="Rises with every change: an answer names the one it saw")

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "generation", "path", "attempt", "kind"],
                condition=Q(status="pending"),
                name="ravi_request_one_pending",
            ),
        ]
        indexes = [
            models.Index(fields=["run", "status"], name="ravi_request_run"),
            models.Index(fields=["-id"], condition=Q(status="pending"), name="ravi_request_pending"),
            models.Index(fields=["run"], condition=Q(woke=False), name="ravi_request_silent"),
        ]

    @property
    def about(self) -> dict[str, Any]:
        """What a question says beside its text and choices: `context`, `free_text`, and `questions` by key."""
        if self.details is None and self.kind == self.Kind.QUESTION:
            return self.arguments or {}  # of a release that had no details
        return self.details or {}

    def __str__(self) -> str:
        return f"{self.kind} {self.tool or self.text[:40]}"
