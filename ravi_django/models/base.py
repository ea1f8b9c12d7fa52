"""The ids and columns that rows share."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """UUIDv7: sorted by time, so that rows created together are near each other in an index (RFC 9562).

    48 bits of milliseconds, 12 bits of their fraction, 62 random bits. Rising within a process.
    """
    global _last
    with _lock:
        now = time.time_ns()
        millis, fraction = divmod(now, 1_000_000)
        stamp = (millis << 12) | (fraction * 4096 // 1_000_000)
        stamp = max(stamp, _last + 1)
        _last = stamp
    value = ((stamp >> 12) << 80) | (0x7 << 76) | ((stamp & 0xFFF) << 64) | (0b10 << 62)
    return UUID(int=value | (int.from_bytes(os.urandom(8), "big") >> 2))


def first_id_of(moment: datetime) -> UUID:
    """The smallest id of that millisecond: the index of the ids finds rows by time."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


class HexField(models.Field):  # type: ignore[type-arg]
    """A digest: hexadecimal text in Python, half as many bytes in the database. Finds nothing for any other text."""

    def get_internal_type(self) -> str:
        return "BinaryField"

    def get_prep_value(self, value: Any) -> bytes | None:
        try:
            return None if value is None else bytes.fromhex(value)
        except (TypeError, ValueError):
            return b""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Raises ValueError for other text: rows of two such texts would be equal."""
        if value and self.get_prep_value(value) == b"":
            raise ValueError(f"{self.name} is {value!r}, not a hexadecimal text")
        return super().get_db_prep_save(value, connection)

    def from_db_value(self, value: Any, *_: Any) -> str | None:
        return None if value is None else bytes(value).hex()


class OwnedQuerySet(models.QuerySet[Any]):
    """Surfaces start every queryset with `.for_user(user)`."""

    def for_user(self, user: Any) -> Self:
        """The rows that `user` owns; for a superuser the rows of all tenants, for an anonymous user none."""
        if not getattr(user, "is_authenticated", False):
            return self.none()
        if getattr(user, "is_superuser", False):
            return self.all()
        return self.filter(owner=user)


def user_key(on_delete: Any = models.SET_NULL, **options: Any) -> models.ForeignKey[Any, Any]:
    """A nullable key to a user, without a reverse relation."""
    return models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=on_delete, related_name="+", **options
    )


class Owned(models.Model):
    """A row of a user and a tenant; a row without an owner belongs to the system. Its model has an index that begins
    with the owner."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = user_key(db_index=False)
    tenant = models.CharField(max_length=100, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True

    @staticmethod
    def former_owner() -> models.ForeignKey[Any, Any]:
        """An owner that a row keeps when the user is deleted, so that the erasure finds the row."""
        return user_key(models.DO_NOTHING, db_index=False, db_constraint=False)

    @staticmethod
    def strict_owner() -> models.ForeignKey[Any, Any]:
        """An owner whose deletion deletes the row: without an owner it would become the system's."""
        return user_key(models.CASCADE, db_index=False)

    def is_for(self, user: Any) -> bool:
        """The rule of `for_user` for one row."""
        return bool(getattr(user, "is_superuser", False) or self.owner_id == user.pk)
