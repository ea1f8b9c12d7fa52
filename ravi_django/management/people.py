"""The user that a command acts for."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError


def user_named(name: str | None, returncode: int = 1) -> Any:
    """The user with this name; None for None. Raises CommandError with this exit status."""
    if name is None:
        return None
    users = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(name)
    except users.DoesNotExist:
        raise CommandError(f"there is no user {name!r}", returncode=returncode) from None
