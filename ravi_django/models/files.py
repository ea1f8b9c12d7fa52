"""Files that users upload: the row here, the content in Django's storage."""

from __future__ import annotations

import secrets
from typing import Any, Self

from django.conf import settings
from django.core.files.storage import Storage, storages
from django.db import models
from django.db.models import Exists, OuterRef, Q

from ravi_django.models.base import Owned, OwnedQuerySet
from ravi_django.models.session import Session


def storage() -> Storage:
    """The site's storage "ravi", else its default one."""
    return storages["ravi" if "ravi" in settings.STORAGES else "default"]


def path_of(row: Any, name: str) -> str:
    """Not the user's name of the file: a site may serve its default storage to everybody."""
    return f"ravi/{secrets.token_hex(16)}"


class FileQuerySet(OwnedQuerySet):
    def for_user(self, user: Any) -> Self:
        """The user's own files, and those of the conversations that the user may read."""
        if not getattr(user, "is_authenticated", False) or getattr(user, "is_superuser", False):
            return super().for_user(user).present()
        sessions = Session.objects.for_user(user).filter(files=OuterRef("pk"))
        return self.filter(Q(owner=user) | Exists(sessions)).present()

    def present(self) -> Self:
        """Without the files that wait for their deletion."""
        return self.exclude(owner=None, unused_until__isnull=False)


class RaviFile(Owned):
    """One uploaded file. It goes with the last conversation that refers to it."""

    owner = Owned.former_owner()
    name = models.CharField(max_length=255)
    type = models.CharField(max_length=100, help_text="The media type, by the content")
    size = models.BigIntegerField(help_text="Bytes")
    sha256 = models.CharField(max_length=64)
    content = models.FileField(storage=storage, upload_to=path_of, max_length=200)
    sessions = models.ManyToManyField(
        Session, related_name="files", help_text="Conversations with the file in a run's input"
    )
    pages = models.PositiveIntegerField(null=True, help_text="Of a PDF, if known")
    refused_by = models.JSONField(default=list, help_text="Names of the models that refused it: they get its name")
    unused_until = models.DateTimeField(null=True, help_text="Deleted then; empty once a run refers to it")

    objects = FileQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name = "file"
        indexes = [
            models.Index(fields=["owner", "id"], name="ravi_file_owner"),
            models.Index(fields=["unused_until"], condition=Q(unused_until__isnull=False), name="ravi_file_unused"),
        ]

    def __str__(self) -> str:
        return self.name
