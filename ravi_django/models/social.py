"""Follows of topics, publications to them, and items that wait for delivery."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.models.base import HexField, Owned, OwnedQuerySet
from ravi_django.models.run import Run
from ravi_django.models.session import Session


class Follow(Owned):
    """An agent gets the publications to a topic. A follow belongs to the agent and its owner, and outlives every run.
    With `session` it is for that conversation only."""

    owner = Owned.strict_owner()
    agent = models.CharField(max_length=302, help_text=_("type/key"))
    topic = models.CharField(max_length=302, help_text=_("type/source"))
    follower = models.CharField(max_length=64, editable=False, help_text="Hash of agent, owner, tenant and session")
    session = models.ForeignKey(
        Session,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text="If it is for one conversation only",
    )
    home = models.ForeignKey(
        Session,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The session of deliveries",
    )
    metadata = models.JSONField(
        default=dict, blank=True, help_text="For runs that deliveries start: variables, preferences"
    )
    every_s = models.PositiveIntegerField(
        default=0,
        help_text=_("Minimum seconds between deliveries, each of one message. 0: immediately"),
    )
    last_at = models.DateTimeField(null=True, blank=True, help_text=_("Time of the last delivery if `every_s` is set"))
    dropped = models.PositiveIntegerField(
        default=0,
        editable=False,
        help_text="Items dropped above the limit; the next delivery reports their number",
    )

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["follower", "topic"], name="ravi_follow_once")]
        indexes = [
            models.Index(fields=["topic", "tenant", "id"], name="ravi_follow_topic"),
            models.Index(fields=["owner", "id"], name="ravi_follow_owner_idx"),
        ]

    def __str__(self) -> str:
        return gettext("%(agent)s follows %(topic)s") % {"agent": self.agent, "topic": self.topic}


class Publication(Owned):
    """A message to a topic's followers, and the progress of its fan-out. Delivered to the follows that exist at the
    time of publishing, in the order of their ids; `upto` is the last one that has it."""

    owner = Owned.former_owner()
    topic = models.CharField(max_length=302)
    message_id = models.CharField(max_length=200, help_text=_("The publisher's. A repeated id is the same publication"))
    scope = HexField(unique=True, editable=False, help_text="Hash of topic, tenant, publisher and message id")
    digest = HexField(editable=False, help_text="Hash of the publication")
    body = models.JSONField(help_text="The kernel Message")
    run = models.ForeignKey(
        Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False, db_index=False
    )
    followers = models.IntegerField(default=0, help_text=_("Number of followers when it was published"))
    delivered = models.IntegerField(default=0, help_text=_("Followers that received it or have it in a digest"))
    upto = models.UUIDField(null=True, blank=True, help_text="The last follow that the fan-out has reached")
    last = models.UUIDField(
        null=True, blank=True, help_text="The last follow at the publication; empty: there was none"
    )
    done_at = models.DateTimeField(null=True, blank=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        permissions = [("emit_topic", "Can emit to every topic")]
        indexes = [
            models.Index(fields=["id"], condition=Q(done_at__isnull=True), name="ravi_publication_open"),
            models.Index(fields=["topic", "tenant", "id"], name="ravi_publication_topic"),
            models.Index(fields=["owner", "id"], name="ravi_publication_owner_idx"),
            models.Index(fields=["run"], condition=Q(run__isnull=False), name="ravi_publication_run_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class FeedItem(models.Model):
    """A publication that a follower gets later: in its digest, or when its inbox has room."""

    follow = models.ForeignKey(Follow, on_delete=models.CASCADE, related_name="items", db_index=False)
    publication = models.ForeignKey(Publication, on_delete=models.CASCADE, related_name="+")
    due_at = models.DateTimeField()
    tries = models.SmallIntegerField(default=0, help_text="Failed deliveries; given up after some")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["follow", "publication"], name="ravi_feeditem_once")]
        indexes = [models.Index(fields=["due_at"], name="ravi_feeditem_due")]

    def __str__(self) -> str:
        return f"{self.publication_id} for {self.follow_id}"
