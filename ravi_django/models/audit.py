"""The audit log: what users did through which agent. Append-only; it outlives the journals."""

from collections.abc import Sequence

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.db.models.lookups import In
from django.utils.translation import gettext_lazy as _

from ravi_django.models.base import HexField, Owned, OwnedQuerySet
from ravi_django.models.names import word

_BY = Coalesce(KT("detail__revoked_by"), KT("detail__by"))


def decided_by(names: Sequence[str]) -> Q:
    """The records of these people's decisions on requests, by an index."""
    return Q(In(_BY, names), event="request")


class AuditRecord(Owned):
    """One action of a run. `key` is unique for the action: a crash does not write it twice."""

    owner = Owned.former_owner()
    key = HexField(unique=True, editable=False, help_text="SHA-256 of run, place and event")
    event = models.CharField(max_length=40, help_text=_("run, model or tool"))
    name = models.CharField(max_length=200, blank=True, default="", help_text=_("Model or tool"))
    agent = models.CharField(max_length=302)
    run_id = models.UUIDField(help_text="No foreign key: the record stays when the run is deleted")
    session_id = models.UUIDField()
    detail = models.JSONField(default=dict, blank=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit log"
        indexes = [
            models.Index(fields=["owner", "id"], name="ravi_audit_owner"),
            models.Index(fields=["run_id", "id"], name="ravi_audit_run"),
            models.Index(_BY, name="ravi_audit_by", condition=Q(event="request")),
        ]

    def __str__(self) -> str:
        return f"{word(self.event)} {word(self.name) if self.event == 'request' else self.name}"

    @property
    def by(self) -> str:
        """The name of the user who decided, or ""."""
        return str(self.detail.get("revoked_by", self.detail.get("by")) or "")
