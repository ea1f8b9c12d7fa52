from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now

from ravi_django.kernel import Usage
from ravi_django.models.base import HexField
from ravi_django.models.fields import DigestsField, KindField, PhaseField, ResultField, TextJSONField
from ravi_django.models.run import Run


class Phase(models.TextChoices):
    STARTED = "started"
    PAUSED = "paused"
    RESULT = "result"


class JournalEntry(models.Model):
    """One row of a run's journal: append-only, `seq` without gaps. The lease holder writes it by `journal/fence.py`."""

    pk = models.CompositePrimaryKey("run", "seq")
    # No constraint: the statement that inserts has just updated the run.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="journal", db_index=False, db_constraint=False)
    # By size, as PostgreSQL aligns them: 8 bytes, 4, 2, and any.
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    read_upto = models.BigIntegerField(
        null=True, help_text="The last inbox message seen by then; of a wait, the one that ended it"
    )
    seq = models.IntegerField()
    generation = models.IntegerField(default=0)
    epoch = models.IntegerField(default=0)
    input_tokens = models.IntegerField(null=True)
    cached_tokens = models.IntegerField(null=True)
    output_tokens = models.IntegerField(null=True)
    reasoning_tokens = models.IntegerField(null=True)
    attempt = models.SmallIntegerField(default=1)
    phase = PhaseField(choices=Phase.choices, default=Phase.RESULT)
    kind = KindField(help_text="llm.call, tool.call, run.started, …")
    path = models.CharField(max_length=500, help_text="The place in the agent's code, the same on every replay")
    name = models.CharField(max_length=200, blank=True, default="", help_text="Logical model name or tool name")
    digests = DigestsField(null=True, help_text="Digests of arguments, instructions, tool schemas and a whole result")
    cost = models.DecimalField(max_digits=16, decimal_places=8, null=True, help_text="US dollars; null is unknown")
    request = TextJSONField(null=True)
    result = ResultField(null=True)
    error = models.JSONField(null=True)
    trace = models.JSONField(
        null=True, help_text="File, line and function of an exception's last frames; for staff, not exported"
    )

    class Meta:
        ordering = ["run", "seq"]
        verbose_name_plural = "journal entries"

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

    @classmethod
    def of(cls, run: Run, message: dict[str, Any]) -> InboxMessage:
        """A new row. The body has no id and no correlation where these are the row's and the run's session."""
        known = {"id": message["id"], "correlation_id": str(run.session_id)}
        body = {name: value for name, value in message.items() if known.get(name) != value}
        return cls(run=run, message_id=message["id"], body=body)

    @staticmethod
    def whole(run: Run, message_id: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The message of a row with this id and body."""
        return {"id": message_id, "correlation_id": str(run.session_id), **(body or {})}


class Blob(models.Model):
    """A body by its hash: a result too big for a row, a prompt or schema."""

    id = HexField(primary_key=True, help_text="SHA-256 of the body")
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
        return str(self.id)[:12]
