"""The outbox of the event bus: written with the change that an event tells of, gone when the bus has it."""

from django.db import models
from django.db.models.functions import Now


class OutboxEvent(models.Model):
    # Given by the database: of two transactions that hold the same run's lock, the later one's are greater.
    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=200)
    body = models.JSONField(help_text="The kernel Event; its `ts` is this row's")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    # Of a row that the bus refuses, and not the rows about it: how often, why, and when it is given again.
    tries = models.PositiveSmallIntegerField(default=0, db_default=0)
    error = models.TextField(default="", db_default="", blank=True)
    again_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
