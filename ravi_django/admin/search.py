"""Searching big tables through their indexes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """The ids that begin so."""
    digits = term.replace("-", "").lower()
    if not 6 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def users_named(term: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{f"{users.USERNAME_FIELD}__icontains": term})
