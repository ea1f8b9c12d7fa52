"""The rate limits of the site's accounts at providers of models."""

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

_EMPTY = _('Empty: RAVI["MODEL_LIMITS"], else what refusals have taught')


class ModelLimit(models.Model):
    """What one account takes of one model, or of the models of one pattern, from all processes together.

    Its row is locked before those of runs.
    """

    key = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of model, server and account")
    name = models.CharField(_("model"), max_length=200, editable=False, help_text=_("Its name or pattern"))
    tenant = models.CharField(max_length=100, blank=True, default="", editable=False)
    requests_per_min = models.FloatField(_("requests a minute"), null=True, blank=True, help_text=_EMPTY)
    tokens_per_min = models.FloatField(_("tokens a minute"), null=True, blank=True, help_text=_EMPTY)
    at_once = models.PositiveIntegerField(_("requests at once"), null=True, blank=True, help_text=_EMPTY)
    paused_until = models.DateTimeField(
        _("paused until"), null=True, blank=True, help_text=_("No request is sent before")
    )
    paused_by = models.CharField(max_length=254, blank=True, default="", editable=False, help_text="Empty: provider")
    learned_per_min = models.FloatField(null=True, editable=False, help_text="Requests a minute")
    adapted_at = models.DateTimeField(null=True, editable=False, help_text="When the learned rate changed")
    rises = models.PositiveSmallIntegerField(null=True, editable=False, help_text="Since it was lowered")
    pace = models.FloatField(default=0, db_default=0, editable=False, help_text="Requests a second, of those that ask")
    counted_at = models.DateTimeField(null=True, editable=False)
    next_at = models.DateTimeField(null=True, editable=False, help_text="When the requests so far have been paid back")
    tokens_at = models.DateTimeField(null=True, editable=False, help_text="The same for their tokens")
    mean_tokens = models.FloatField(default=0, db_default=0, editable=False, help_text="Of a request")
    waiting = models.PositiveIntegerField(default=0, db_default=0, editable=False, help_text="Suspended runs, about")
    last_owner = models.CharField(max_length=100, blank=True, default="", editable=False, help_text="Was served last")
    refused = models.PositiveBigIntegerField(_("refused requests"), default=0, db_default=0, editable=False)
    refusals = models.PositiveIntegerField(default=0, db_default=0, editable=False, help_text="Since the last answer")
    refusing_since = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["name", "tenant", "id"]
        permissions = [("manage_model_limits", "Can limit and pause the calls of models")]

    def __str__(self) -> str:
        return f"{self.name} {self.tenant}".strip()
