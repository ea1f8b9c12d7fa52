"""Who follows which topic, what was published to it, and what a follower is still to be given."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.ids import uuid7
from ravi_django.models.run import Run
from ravi_django.models.session import Session


class Follow(Owned):
    """An agent wants what is published to a topic. It belongs to the agent and its owner, not to a run: it outlives
    every run, and with `session` it is of that conversation alone."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(  # goes with its owner: without one it would be the system's
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    agent = models.CharField(max_length=302, help_text=_("type/key"))
    topic = models.CharField(max_length=302, help_text=_("type/source"))
    follower = models.CharField(max_length=64, editable=False, help_text="Hash of agent, owner, tenant and session")
    session = models.ForeignKey(
        Session, null=True, blank=True, on_delete=models.CASCADE, related_name="+", help_text="When it is of one alone"
    )
    home = models.ForeignKey(
        Session, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="Where deliveries go"
    )
    metadata = models.JSONField(
        default=dict, blank=True, help_text="Of the runs that deliveries start: variables, preferences"
    )
    every_s = models.PositiveIntegerField(
        default=0, help_text=_("Deliver at most once in so many seconds, all in one message; 0: each at once")
    )
    last_at = models.DateTimeField(null=True, blank=True, help_text=_("Of the last delivery, when `every_s` is set"))
    dropped = models.PositiveIntegerField(
        default=0, editable=False, help_text="Items that were too many to wait; told with the next delivery"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["follower", "topic"], name="ravi_follow_once")]
        indexes = [
            models.Index(fields=["topic", "tenant", "id"], name="ravi_follow_topic"),
            models.Index(fields=["owner", "-id"], name="ravi_follow_owner_idx"),
        ]

    def __str__(self) -> str:
        return gettext("%(agent)s follows %(topic)s") % {"agent": self.agent, "topic": self.topic}


class Publication(Owned):
    """A message to a topic's followers, and how far its fan-out has come. Delivered to those who followed by then, in
    the order of their ids; `upto` is the last of them that has it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = Owned.former_owner()
    topic = models.CharField(max_length=302)
    message_id = models.CharField(max_length=200, help_text=_("The publisher's: a repeat is the same publication"))
    scope = models.CharField(
        max_length=64, unique=True, editable=False, help_text="Hash of topic, tenant, publisher and message id"
    )
    digest = models.CharField(max_length=64, editable=False, help_text="Of what was published")
    body = models.JSONField(help_text="The kernel Message")
    run = models.ForeignKey(
        Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False, db_index=False
    )
    followers = models.IntegerField(default=0, help_text=_("When it was published"))
    delivered = models.IntegerField(default=0, help_text=_("Followers that have it, or have it in their digest"))
    upto = models.UUIDField(null=True, blank=True, help_text="The last follow that the fan-out has come to")
    last = models.UUIDField(null=True, blank=True, help_text="The last follow that there was; empty: nobody followed")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    done_at = models.DateTimeField(null=True, blank=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        permissions = [("emit_topic", "Can emit to every topic")]
        indexes = [
            models.Index(fields=["id"], condition=Q(done_at__isnull=True), name="ravi_publication_open"),
            models.Index(fields=["topic", "tenant", "-id"], name="ravi_publication_topic"),
            models.Index(fields=["owner", "-id"], name="ravi_publication_owner_idx"),
            models.Index(fields=["run"], condition=Q(run__isnull=False), name="ravi_publication_run_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class FeedItem(models.Model):
    """A publication that a follower is to be given later: in its digest, or once it has read what it has."""

    follow = models.ForeignKey(Follow, on_delete=models.CASCADE, related_name="items", db_index=False)
    publication = models.ForeignKey(Publication, on_delete=models.CASCADE, related_name="+")
    due_at = models.DateTimeField()
    tries = models.SmallIntegerField(default=0, help_text="Deliveries that made an error; given up after some")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["follow", "publication"], name="ravi_feeditem_once")]
        indexes = [models.Index(fields=["due_at"], name="ravi_feeditem_due")]

    def __str__(self) -> str:
        return f"{self.publication_id} for {self.follow_id}"
