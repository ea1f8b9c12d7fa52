"""Requests to people, delegations, and sticky decisions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.kernel.visible import visible
from ravi_django.models.base import Owned, OwnedQuerySet, user_key, uuid7
from ravi_django.models.names import word
from ravi_django.models.run import Run
from ravi_django.models.session import Session


class HumanRequest(Owned):
    """A question, an approval, an input or an uncertain effect that a person decides. Answered once."""

    class Kind(models.TextChoices):
        QUESTION = "question"
        APPROVAL = "approval"
        INPUT = "input"
        UNCERTAIN = "uncertain"
        CLIENT_TOOL = "client_tool"  # a call of a tool that the owner's client runs

    class Status(models.TextChoices):
        PENDING = "pending"
        ANSWERED = "answered"
        CANCELLED = "cancelled"  # its run ended, or continued without it
        EXPIRED = "expired"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="requests", db_index=False)
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500)
    attempt = models.IntegerField(default=1)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    text = models.TextField(blank=True, default="")
    choices = models.JSONField(null=True, blank=True)
    tool = models.CharField(max_length=200, blank=True, default="")
    arguments = models.JSONField(null=True, blank=True)
    details = models.JSONField(null=True, blank=True, help_text="context, free_text, and several questions by key")
    arguments_hash = models.CharField(max_length=64, blank=True, default="", db_default="", help_text="SHA-256")
    risk = models.CharField(max_length=10, blank=True, default="")
    signal = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="The answer also sends this signal to the run"
    )

    # --- who may answer
    to = models.CharField(max_length=220, blank=True, default="", db_default="", help_text="The present address")
    steps = models.JSONField(null=True, blank=True, help_text="All steps in their order: to, within (seconds)")
    level = models.SmallIntegerField(default=0, db_default=0, help_text="The index of the present step")
    escalates_at = models.DateTimeField(null=True, blank=True, help_text="When the request moves to the next step")
    asked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the present address was asked; empty: at the opening"
    )
    four_eyes = models.BooleanField(default=False, db_default=False, help_text="The owner may not answer")
    notified = models.SmallIntegerField(default=-1, db_default=-1, help_text="The last level whose e-mails were sent")
    mails = models.JSONField(
        default=dict, db_default={}, editable=False, help_text="Tries by user and opening: the number, the next time"
    )

    not_before = models.DateTimeField(null=True, blank=True, help_text="An earlier answer is refused")
    expires_at = models.DateTimeField(null=True, blank=True)
    answer = models.JSONField(null=True, blank=True, help_text="The action, with its arguments or text")
    answered_by = user_key()
    answered_at = models.DateTimeField(null=True, blank=True)
    woke = models.BooleanField(default=True, help_text="False until the run is woken for the answer")
    version = models.IntegerField(
        default=1, help_text="Rises with every change: an answer has the version that the person saw"
    )

    objects = OwnedQuerySet.as_manager()

    class Meta:
        verbose_name = "request"
        verbose_name_plural = "approvals & questions"
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
            models.Index(fields=["to", "-id"], condition=Q(status="pending"), name="ravi_request_to"),
            models.Index(fields=["owner", "id"], name="ravi_request_owner"),
            models.Index(
                fields=["escalates_at"],
                condition=Q(status="pending", escalates_at__isnull=False),
                name="ravi_request_escalates",
            ),
            models.Index(fields=["run", "signal"], condition=~Q(signal=""), name="ravi_request_signal"),
            models.Index(
                fields=["id"],
                condition=Q(status="pending", notified__lt=models.F("level")),
                name="ravi_request_unwritten",
            ),
        ]

    @property
    def about(self) -> dict[str, Any]:
        """More about a question: `context`, `free_text`, and `questions` by key."""
        return self.details or {}

    def __str__(self) -> str:
        return visible(f"{word(self.kind)} {self.tool or self.text[:40]}")


class StickyDecision(models.Model):
    """A decision on a tool for all further calls in the session, up to the risk of the decided call.

    Never changed except when it is revoked.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="sticky_decisions", db_index=False)
    agent = models.CharField(max_length=302)
    tool = models.CharField(max_length=200)
    risk = models.CharField(max_length=10)
    action = models.CharField(max_length=10, choices=[("approve", "approve"), ("deny", "reject")])
    reason = models.TextField(blank=True, default="")
    request = models.ForeignKey(HumanRequest, null=True, on_delete=models.SET_NULL, related_name="sticky")
    decided_by = user_key()
    decided_by_name = models.CharField(
        max_length=200, blank=True, default="", help_text=_("Kept when the user is deleted")
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = user_key()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["session", "agent", "tool"], condition=Q(revoked_at__isnull=True), name="ravi_sticky_once"
            ),
            models.CheckConstraint(condition=Q(action__in=["approve", "deny"]), name="ravi_sticky_action"),
        ]

    def __str__(self) -> str:
        return f"{word(self.action)} {self.tool}"


class Delegation(models.Model):
    """While it lasts, `delegate` may answer what `user` may, for example during a holiday."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    delegate = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    since = models.DateTimeField(db_default=Now())
    until = models.DateTimeField(null=True, blank=True, help_text=_("Empty: until deleted"))
    reason = models.CharField(max_length=200, blank=True, default="")
    created_by = user_key(editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=~Q(user=models.F("delegate")), name="ravi_delegation_to_another"),
            models.CheckConstraint(
                condition=Q(until__isnull=True) | Q(until__gt=models.F("since")), name="ravi_delegation_span"
            ),
        ]

    def __str__(self) -> str:
        return gettext("%(delegate)s for %(user)s") % {"delegate": self.delegate_id, "user": self.user_id}
