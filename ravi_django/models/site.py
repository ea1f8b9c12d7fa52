"""Rows of the installation: workers, the sweep's state, tickets, buffered frames, the event outbox, open erasures."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import HexField, uuid7


class WorkerProcess(models.Model):
    """A process that claims and executes runs. Every heartbeat sets `seen_at`."""

    name = models.CharField(primary_key=True, max_length=100)
    release = models.CharField(max_length=100, blank=True, default="")
    runs = models.IntegerField(default=0, help_text=_("Leases held"))
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    code = models.JSONField(
        default=dict, help_text="At-most-once calls whose code runs: the end of the timeout, and the timeout in seconds"
    )
    agents = models.JSONField(default=list, help_text="Addresses of the agents in its code")
    keys = models.JSONField(default=list, help_text="Names of the variables with a model's key in its environment")

    class Meta:
        verbose_name_plural = "worker processes"

    def __str__(self) -> str:
        return self.name


class SweepState(models.Model):
    """One row: the end of the last sweep."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    ran_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.ran_at:%H:%M:%S}"


class Ticket(models.Model):
    """Lets a program without cookies open one websocket, or the event stream of one run. Only the hash is stored. A
    socket deletes the row. A stream sets `run`, and `expires_at` anew while it is open."""

    id = HexField(primary_key=True, help_text="SHA-256 of the ticket")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    credential = models.JSONField(
        null=True, help_text="Encrypted: the credential that requested it; what it opens ends with it"
    )
    run = models.UUIDField(null=True, help_text="The run whose event stream it opens; null: not used yet")
    expires_at = models.DateTimeField(db_index=True)
    ends_at = models.DateTimeField(help_text="No stream renews it for longer")

    def __str__(self) -> str:
        return str(self.id)[:8]


class StreamFrame(models.Model):
    """The event buffer of a site without Redis, as a table with the same numbers and frames."""

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


class StreamArchive(models.Model):
    """The frames of a tree that has ended, with merged tokens. Not on the root's row: its later updates would copy it.

    The key has no constraint: the writer locks the root's row first.
    """

    tree = models.OneToOneField(
        "ravi.Run", primary_key=True, on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    body = models.BinaryField(help_text="JSON, compressed")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return str(self.tree_id)


class OutboxEvent(models.Model):
    """An event for the bus: written with the change that it reports, deleted when it is published."""

    # From the database: of two transactions that lock the same run, the later one gets greater ids.
    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=200)
    body = models.JSONField(help_text="The kernel Event; its `ts` is this row's")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    # For a row that the bus refuses: the number of tries, the reason, and the time of the next try.
    tries = models.PositiveSmallIntegerField(default=0, db_default=0)
    error = models.TextField(default="", db_default="", blank=True)
    again_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class Erasure(models.Model):
    """Written in the transaction that deletes a user or a session; the sweep executes it, and deletes it last."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.CharField(max_length=200, blank=True, default="", help_text="Primary key of the user; empty: none")
    name = models.CharField(max_length=254, blank=True, default="", help_text="The name to delete from others' rows")
    keeps = models.BooleanField(default=False, help_text="Anonymize: the rows stay, without the user")
    position = models.CharField(max_length=100, blank=True, default="", help_text="Progress of the deletion of names")
    runs = models.JSONField(null=True, help_text="Live runs that have the name in their journals until they end")
    after = models.UUIDField(null=True, help_text="The last session that a sweep tried: the next one begins behind it")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def pseudonym(self) -> str:
        """The replacement of the name, with random digits."""
        return f"deleted-{self.id.hex[-12:]}"
