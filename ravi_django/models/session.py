from __future__ import annotations

from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import Owned, OwnedQuerySet, uuid7
from ravi_django.models.fields import RoleField

NAMELESS = {"name": "", "owner_key": ""}  # both together: the name of two deleted users is no name of one nobody


class SessionQuerySet(OwnedQuerySet):
    def for_user(self, user: Any) -> Self:
        return super().for_user(user).filter(erasure=None)

    def of_family(self, family: Any) -> Self:
        """The conversations that were forked from each other. `family`: the id of the first, or a reference to it."""
        return self.filter(Q(id=family) | Q(family=family), parent_session=None)


class Session(Owned):
    """A conversation: it has the history, and many runs."""

    title = models.CharField(max_length=200, blank=True)
    name = models.CharField(max_length=200, blank=True, default="", help_text="Set by the owner's program, or empty")
    owner_key = models.CharField(
        max_length=200, blank=True, default="", help_text="If it has a name: the owner's primary key, or empty"
    )
    agent = models.CharField(max_length=302, blank=True, help_text=_("The agent of the last turn"))
    parent_session = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        db_index=False,
        help_text="Set for a child run's own session",
    )
    erasure = models.ForeignKey(  # no constraint: the erasure is deleted after its sessions
        "ravi.Erasure", null=True, blank=True, on_delete=models.DO_NOTHING, related_name="+", editable=False,
        db_index=False, db_constraint=False, help_text="Set when the sweep has to delete the session",
    )  # fmt: skip
    family = models.UUIDField(
        null=True, blank=True, help_text="The first of the conversations that were forked from each other; null for it"
    )
    memory_of = models.UUIDField(
        null=True, blank=True, editable=False, help_text="For a child that remembers: its root run's conversation"
    )
    ended_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When that child ended: the next ones read its turns"
    )
    shared_state = models.JSONField(null=True, blank=True, editable=False, help_text="See `ctx.set_state`")
    next_position = models.BigIntegerField(default=0, help_text="Position of the next turn")
    updated_at = models.DateTimeField(auto_now=True)

    objects = SessionQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            # Not on the owner: a null is unequal to any other, so conversations of nobody would have equal names.
            models.UniqueConstraint(
                fields=["tenant", "owner_key", "name"], condition=~Q(name=""), name="ravi_session_name"
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "id"], condition=Q(owner__isnull=False), name="ravi_session_owner_idx"),
            models.Index(
                fields=["parent_session"], condition=Q(parent_session__isnull=False), name="ravi_session_children"
            ),
            models.Index(fields=["family"], condition=Q(family__isnull=False), name="ravi_session_family"),
            models.Index(
                fields=["memory_of", "-ended_at"], condition=Q(ended_at__isnull=False), name="ravi_session_memory"
            ),
            models.Index(fields=["erasure", "id"], condition=Q(erasure__isnull=False), name="ravi_session_to_erase"),
        ]

    def __str__(self) -> str:
        return self.title or str(self.id)


def blocks_of(kind: str, request: Any, result: Any) -> list[dict[str, Any]]:
    """The content blocks of the message that the history has of a model's or tool's call."""
    if kind == "llm.call":
        return list(result["content"])
    is_error = result.get("is_error", False)
    return [{"type": "tool_result", "call_id": request["call_id"], "content": result["content"], "is_error": is_error}]


BLOCKS = ("content", "entry__kind", "entry__request", "entry__result")  # what `row_blocks` needs of a turn


def row_blocks(row: Any) -> Any:
    """The content blocks of a row of `values_list`."""
    held = row.entry__kind, row.entry__request, row.entry__result
    return row.content if row.entry__kind is None else blocks_of(*held)


def by_agent(*agents: str) -> Q:
    """The turns of these agents."""
    return Q(agent__in=agents) | Q(agent=None, run__agent__in=agents)


class TurnQuerySet(models.QuerySet["Turn"]):
    def whole(self) -> Self:
        """With `entry`, and the agent as `by`."""
        return self.select_related("entry").annotate(by=Coalesce("agent", "run__agent"))


class Turn(models.Model):
    """One message of a conversation's history. Immutable; written in the transaction of its journal row.

    In a turn of a live journal the agent and the blocks are null: the run has the agent, the entry the blocks. A
    handoff and the deletion of the entry write them into the turn. The columns are ordered by their width, so that none
    is padded.
    """

    pk = models.CompositePrimaryKey("session", "position")
    # No constraints: the statement that inserts has just updated session and run.
    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="turns", db_index=False, db_constraint=False
    )
    run = models.ForeignKey(  # a deletion of the run clears it, by the index of the session
        "ravi.Run", null=True, on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    position = models.IntegerField(help_text="Rising in the session; assigned under the session's lock")
    index = models.IntegerField(null=True, help_text="Rising in the run, so that a replayed store is a no-op")
    entry_seq = models.IntegerField(null=True, help_text="The model or tool call of the run that holds the blocks")
    keeps = models.IntegerField(
        null=True, blank=True, help_text="In a summary: the number of turns directly before it that it keeps"
    )
    seen = models.IntegerField(
        null=True, blank=True, help_text="In a summary: the position up to which its run has read other agents' turns"
    )
    role = RoleField()
    shared = models.BooleanField(
        default=False, help_text="All agents of the session read it: words of its person, or an agent's answer to them"
    )
    agent = models.CharField(max_length=302, null=True, help_text="Null: the run's agent")  # noqa: DJ001
    name = models.CharField(max_length=100, blank=True, default="")
    content = models.JSONField(null=True, help_text="Content blocks; null where a row of the journal holds them")
    entry: models.ForeignObject[Any, Any] = models.ForeignObject(
        "ravi.JournalEntry",
        null=True,
        on_delete=models.DO_NOTHING,
        from_fields=["run", "entry_seq"],
        to_fields=["run", "seq"],
        related_name="+",
        serialize=False,
    )

    by: str  # the agent, if the turn was read `whole`
    objects = TurnQuerySet.as_manager()

    class Meta:
        ordering = ["session_id", "position"]
        indexes = [
            # Only summaries: finds the last one of a conversation.
            models.Index(
                fields=["session", "-position"], condition=models.Q(keeps__isnull=False), name="ravi_turn_summary"
            )
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.position}"

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The content blocks. One query, unless `entry` is selected with the turn."""
        if self.entry is not None:
            return blocks_of(self.entry.kind, self.entry.request, self.entry.result)
        return list(self.content or ())


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
