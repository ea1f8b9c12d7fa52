"""What is still to be erased of a deleted user or conversation."""

from django.db import models
from django.db.models.functions import Now

from ravi_django.models.ids import uuid7


class Erasure(models.Model):
    """Written in the transaction that deletes a user or a session; the sweep works it off, and deletes it last."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.CharField(max_length=200, blank=True, default="", help_text="Primary key of the user; empty: none")
    name = models.CharField(max_length=254, blank=True, default="", help_text="The name that goes from others' rows")
    keeps = models.BooleanField(default=False, help_text="Anonymize: the rows stay, without the user")
    position = models.CharField(max_length=100, blank=True, default="", help_text="How far the names have gone")
    runs = models.JSONField(null=True, help_text="Live runs in whose journals the name is until they end")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def pseudonym(self) -> str:
        """What stands in the place of the name. Its digits are random."""
        return f"deleted-{self.id.hex[-12:]}"
