"""Access to the site's user model, which may lack Django's usual fields and methods."""

from __future__ import annotations

from typing import Any


def has(user: Any, what: str) -> bool:
    """A flag of the user; False if the user model lacks it."""
    return bool(getattr(user, what, False))


def name_of(user: Any, kind: str = "short") -> str:
    """The `short` or `full` name; the user name if the user model lacks it or it is empty."""
    name = getattr(user, f"get_{kind}_name", str)()
    return str(name or user.get_username())


def permits(user: Any, permission: str, thing: Any = None) -> bool:
    """`user.has_perm`; False if the user model lacks it."""
    has_perm = getattr(user, "has_perm", None)
    return has_perm is not None and bool(has_perm(permission) if thing is None else has_perm(permission, thing))
