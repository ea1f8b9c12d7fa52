"""What owned rows share."""

from __future__ import annotations

from typing import Any, Self

from django.conf import settings
from django.db import models


class OwnedQuerySet(models.QuerySet[Any]):
    """Every queryset that a surface uses starts with `.for_user(user)`."""

    def for_user(self, user: Any) -> Self:
        """The rows that `user` owns; a superuser sees those of all tenants; nobody anonymous sees any."""
        if not getattr(user, "is_authenticated", False):
            return self.none()
        if getattr(user, "is_superuser", False):
            return self.all()
        return self.filter(owner=user)


class Owned(models.Model):
    """A row that belongs to a user and a tenant; a row without an owner is the system's own. Its model has an index
    that begins with the owner."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    tenant = models.CharField(max_length=100, blank=True, default="")

    class Meta:
        abstract = True

    @staticmethod
    def former_owner() -> models.ForeignKey[Any, Any]:
        """An owner that a row keeps when the user is deleted, so that the erasure finds the row."""
        return models.ForeignKey(
            settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.DO_NOTHING, related_name="+",
            db_index=False, db_constraint=False,
        )  # fmt: skip

    def is_for(self, user: Any) -> bool:
        """The rule of `for_user`, for a row that was read without it."""
        return bool(getattr(user, "is_superuser", False) or self.owner_id == user.pk)
