"""Rows of the installation itself: who works, when the sweep ran, tickets, the database's event buffer."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class WorkerProcess(models.Model):
    """A process that drives runs; seen at each of its heartbeats."""

    name = models.CharField(primary_key=True, max_length=100)
    release = models.CharField(max_length=100, blank=True, default="")
    runs = models.IntegerField(default=0, help_text=_("Leases held"))
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "worker processes"

    def __str__(self) -> str:
        return self.name


class SweepState(models.Model):
    """One row: when the sweep last came to its end."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    ran_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.ran_at:%H:%M:%S}"


class Ticket(models.Model):
    """Lets a program without cookies open one websocket. Only the hash is kept; taking it deletes the row."""

    id = models.CharField(primary_key=True, max_length=64, help_text="SHA-256 of the ticket")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    credential = models.JSONField(null=True, help_text="What it was asked for with: a socket belongs to that")
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.id[:8]


class StreamFrame(models.Model):
    """The event buffer of a site without Redis: the same numbers, the same frames, kept in a table."""

    tree = models.ForeignKey("ravi.Run", on_delete=models.CASCADE, related_name="frames", db_index=False)
    seq = models.BigIntegerField()
    key = models.CharField(max_length=120, blank=True, default="", help_text="Durable frames: run:seq:index")
    body = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tree", "seq"], name="ravi_frame_seq"),
            models.UniqueConstraint(fields=["tree", "key"], condition=~Q(key=""), name="ravi_frame_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tree_id} {self.seq}"
