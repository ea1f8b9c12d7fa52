"""Sources of items: feeds, webhooks, adapters. The agent of a source gets each item once."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.kernel.visible import visible
from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.session import Session


class Source(Owned):
    """A source of items for an agent. An item is a signal `signal` to its live run, or starts a new run."""

    class Kind(models.TextChoices):
        FEED = "feed"  # RSS, Atom or JSON Feed, by HTTP
        WEBHOOK = "webhook"  # signed POSTs
        ADAPTER = "adapter"  # the site's own code

    owner = Owned.strict_owner()
    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.FEED)
    location = models.CharField(
        max_length=2000,
        blank=True,
        default="",
        help_text=_("A feed's URL or an adapter's name"),
    )
    options = models.JSONField(default=dict, blank=True, help_text=_("Options of the kind or of the adapter"))
    secret = models.CharField(
        max_length=1000, blank=True, default="", help_text="Of a webhook's signatures, encrypted; at most two"
    )
    agent = models.CharField(max_length=302, help_text=_("The agent that gets the items, type/key"))
    signal = models.CharField(max_length=200, default="new_source_item")
    home = models.ForeignKey(
        Session, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="The session of its runs"
    )
    enabled = models.BooleanField(default=True)

    # --- for sources that are polled
    every_s = models.PositiveIntegerField(default=900, help_text=_("Seconds between two polls"))
    next_at = models.DateTimeField(null=True, blank=True, help_text="Not polled before; empty: at once")
    polling_until = models.DateTimeField(null=True, blank=True, help_text="A poll is in progress until then")
    etag = models.CharField(max_length=500, blank=True, default="")
    modified = models.CharField(max_length=100, blank=True, default="", help_text="Last-Modified, as received")
    failures = models.IntegerField(default=0, help_text=_("Consecutive failures. Each one delays the next poll"))
    error = models.TextField(blank=True, default="", help_text="Of the last poll")
    checked_at = models.DateTimeField(null=True, blank=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [models.CheckConstraint(condition=~Q(agent=""), name="ravi_source_agent")]
        indexes = [
            models.Index(
                fields=["next_at"],
                condition=Q(enabled=True, kind__in=["feed", "adapter"]),
                name="ravi_source_due",
            ),
            models.Index(fields=["owner", "id"], name="ravi_source_owner_idx"),
        ]

    def __str__(self) -> str:
        return visible(self.name)


class SourceItem(models.Model):
    """An item of a source: `identity` is the item, `digest` its present text. Written with the signal about it."""

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="items", db_index=False)
    identity = models.CharField(max_length=64, help_text=_("SHA-256 of the item's own id, the same across edits"))
    digest = models.CharField(max_length=64, help_text=_("SHA-256 of its text"))
    revision = models.IntegerField(default=1, help_text=_("Increases with every edit"))
    title = models.CharField(max_length=500, blank=True, default="")
    url = models.CharField(max_length=2000, blank=True, default="")
    seen_at = models.DateTimeField(db_default=Now(), editable=False)
    changed_at = models.DateTimeField(null=True, blank=True)
    signed_at = models.DateTimeField(
        null=True, editable=False, help_text="When its text was signed; texts that are older are ignored"
    )

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["source", "identity"], name="ravi_sourceitem_once")]

    def __str__(self) -> str:
        return visible(self.title) or self.identity[:12]
