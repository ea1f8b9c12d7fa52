"""The task board of a conversation: the tasks that its agents keep."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.ids import uuid7
from ravi_django.models.session import Session


class BoardTask(models.Model):
    """A task of an agent in a session. Its owner is the session's."""

    class Status(models.TextChoices):
        TODO = "todo"
        DOING = "doing"
        DONE = "done"
        BLOCKED = "blocked"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="board", db_index=False)
    agent = models.CharField(max_length=302, help_text=_("type/key"))
    label = models.CharField(max_length=200, blank=True, default="", help_text=_("The agent's display name"))
    parent_agent = models.CharField(
        max_length=302,
        blank=True,
        default="",
        help_text=_("The agent that delegated. Its board has this one below it"),
    )
    run = models.ForeignKey(
        "ravi.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    number = models.IntegerField(help_text="From 1 in the session and agent; the model uses it to name the task")
    title = models.CharField(max_length=500)
    detail = models.TextField(blank=True, default="")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.TODO)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["session", "agent", "number"]
        constraints = [
            models.UniqueConstraint(fields=["session", "agent", "number"], name="ravi_board_number"),
            models.CheckConstraint(
                condition=Q(status__in=["todo", "doing", "done", "blocked"]), name="ravi_board_status"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number}. {self.title}"
