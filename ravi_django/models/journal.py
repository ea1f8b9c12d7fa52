from django.db import models
from django.db.models.functions import Now

from ravi_django.kernel import Usage
from ravi_django.models.base import uuid7
from ravi_django.models.run import Run


class Phase(models.TextChoices):
    STARTED = "started"
    PAUSED = "paused"
    RESULT = "result"


class JournalEntry(models.Model):
    """One row of a run's journal: append-only, `seq` without gaps. The lease holder writes it by `journal/fence.py`."""

    id = models.UUIDField(primary_key=True, default=uuid7, help_text="Set by the writer: detects a repeated append")
    # No constraint: the statement that inserts has just updated the run.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="journal", db_index=False, db_constraint=False)
    seq = models.BigIntegerField()
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500, help_text="The place in the agent's code, the same on every replay")
    attempt = models.IntegerField(default=1)
    phase = models.CharField(max_length=10, choices=Phase.choices, default=Phase.RESULT)
    kind = models.CharField(max_length=40, help_text="llm.call, tool.call, run.started, …")
    name = models.CharField(max_length=200, blank=True, default="", help_text="Logical model name or tool name")
    request = models.JSONField(null=True)
    digests = models.JSONField(null=True, help_text="Digests of instructions and tool schemas")
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    trace = models.JSONField(
        null=True, help_text="File, line and function of an exception's last frames; for staff, not exported"
    )
    input_tokens = models.IntegerField(null=True)
    cached_tokens = models.IntegerField(null=True)
    output_tokens = models.IntegerField(null=True)
    reasoning_tokens = models.IntegerField(null=True)
    cost = models.DecimalField(max_digits=16, decimal_places=8, null=True, help_text="US dollars; null is unknown")
    read_upto = models.BigIntegerField(
        null=True, help_text="The last inbox message seen by then; of a wait, the one that ended it"
    )
    schema = models.SmallIntegerField(default=1, help_text="Version of the payloads' form")
    epoch = models.BigIntegerField(default=0)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()

    class Meta:
        ordering = ["run", "seq"]
        verbose_name_plural = "journal entries"
        constraints = [
            models.UniqueConstraint(
                fields=["run", "generation", "path", "attempt", "phase"], name="ravi_journal_once_a_path"
            ),
            models.UniqueConstraint(fields=["run", "seq"], name="ravi_journal_seq"),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="ravi_journal_phase"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} {self.name}"

    @property
    def usage(self) -> Usage:
        return Usage.of(self)

    @property
    def usage_estimated(self) -> bool:
        """Whether a part of the usage was counted here: the provider has not reported it."""
        return self.kind.startswith("llm.") and isinstance(self.result, dict) and self.result.get("estimated") is True


class InboxMessage(models.Model):
    """A message that was delivered to a run."""

    # No constraint: a delivery and a deletion both lock the run's row first.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="inbox", db_index=False, db_constraint=False)
    message_id = models.CharField(max_length=64)
    name = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="A wait for a signal of this name takes it"
    )
    body = models.JSONField(help_text="The kernel Message")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    consumed_at = models.DateTimeField(null=True, blank=True, help_text="When it ended a wait")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["run", "message_id"], name="ravi_inbox_once")]
        indexes = [models.Index(fields=["run", "id"], name="ravi_inbox_order")]

    def __str__(self) -> str:
        return self.message_id


class Blob(models.Model):
    """A body by its hash: a result too big for a row, a prompt or schema, an archived stream."""

    id = models.CharField(primary_key=True, max_length=64, help_text="SHA-256 of the body")
    body = models.BinaryField()
    encoding = models.CharField(max_length=20, default="json", help_text="json or json+zlib")
    size = models.BigIntegerField(help_text="Bytes, before compression")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    erase_at = models.DateTimeField(
        null=True, editable=False, help_text="Deleted from this time on, unless another row refers to it"
    )

    class Meta:
        indexes = [
            models.Index(fields=["erase_at"], condition=models.Q(erase_at__isnull=False), name="ravi_blob_to_erase")
        ]

    def __str__(self) -> str:
        return self.id[:12]
