"""What the app asks of a site's user model, which may lack Django's usual fields and methods."""

from __future__ import annotations

from typing import Any


def has(user: Any, what: str) -> bool:
    """A flag, where the site's user model has it."""
    return bool(getattr(user, what, False))


def name_of(user: Any, kind: str = "short") -> str:
    """The `short` or `full` name, or the user name where the site's user model has none or it is empty."""
    name = getattr(user, f"get_{kind}_name", str)()
    return str(name or user.get_username())


def permits(user: Any, permission: str, thing: Any = None) -> bool:
    """`user.has_perm`, where the site's user model has it."""
    has_perm = getattr(user, "has_perm", None)
    return has_perm is not None and bool(has_perm(permission) if thing is None else has_perm(permission, thing))
