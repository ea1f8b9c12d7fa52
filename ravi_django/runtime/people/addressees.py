"""The addresses of a user, and the users of an address.

A site's own user model may lack groups, permissions and a user name that is a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, load_backend
from django.contrib.auth.models import PermissionsMixin
from django.core.exceptions import FieldError, ValidationError as DjangoValidationError
from django.db.models import QuerySet

from ravi_django.users import has

READ = 2_000  # users that are read for one address


def has_active_field() -> bool:
    """Whether the site's user model has the field `is_active`. Without it Django counts every user as active."""
    return has_field("is_active")


def has_field(name: str) -> bool:
    return any(field.name == name for field in get_user_model()._meta.get_fields())


def active_users() -> QuerySet[Any]:
    users: QuerySet[Any] = get_user_model()._default_manager.all()
    return users.filter(is_active=True) if has_active_field() else users


def of_users(users: Sequence[Any], to: str | None) -> dict[Any, list[str]]:
    """The addresses of each user, in a constant number of queries. `to`: only those needed to compare with it."""
    found = {user.pk: [f"user:{user.get_username()}", *(["staff"] if has(user, "is_staff") else [])] for user in users}
    if to is None or to.startswith("group:"):
        for pk, name in _groups(list(found)):
            found[pk].append(f"group:{name}")
    if to is None or to.startswith("permission:"):
        for pk, name in _permissions([user for user in users if not has(user, "is_superuser")]):
            found[pk].append(f"permission:{name}")
    return found


def _groups(pks: list[Any]) -> Iterable[tuple[Any, str]]:
    model = get_user_model()
    if not issubclass(model, PermissionsMixin):
        return []
    rows: Iterable[tuple[Any, str]] = model._default_manager.filter(pk__in=pks, groups__isnull=False).values_list(
        "pk", "groups__name"
    )
    return rows


def _permissions(users: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """The permissions of the users: with Django's own backend of all at once, else of each in turn."""
    model = get_user_model()
    if not _is_djangos_own(model):
        for user in users:
            for name in getattr(user, "get_all_permissions", frozenset)():
                yield user.pk, name
        return
    for place in ("user_permissions", "groups__permissions"):
        rows = model._default_manager.filter(pk__in=[user.pk for user in users], **{f"{place}__isnull": False})
        for pk, app, codename in rows.values_list("pk", f"{place}__content_type__app_label", f"{place}__codename"):
            yield pk, f"{app}.{codename}"


def cache_permissions(users: Collection[Any]) -> None:
    """Fill the permission caches of Django's own backend for all these users at once. Nothing for other backends."""
    if not _is_djangos_own(get_user_model()):
        return
    plain = [user for user in users if not has(user, "is_superuser")]
    for user in plain:
        user._perm_cache = set()
    found = {user.pk: user._perm_cache for user in plain}
    for pk, name in _permissions(plain):
        found[pk].add(name)


def _is_djangos_own(model: Any) -> bool:
    own = getattr(model, "get_all_permissions", None) is PermissionsMixin.get_all_permissions
    return own and list(settings.AUTHENTICATION_BACKENDS) == ["django.contrib.auth.backends.ModelBackend"]


def users_at(to: str, owner_id: Any) -> QuerySet[Any]:
    """The active users of an address, for a run of this owner."""
    model: Any = get_user_model()
    active = active_users()
    kind, _, name = to.partition(":")
    try:
        match kind:
            case "owner" if owner_id is not None:
                found = active.filter(pk=owner_id)
            case "user":
                found = active.filter(**{model.USERNAME_FIELD: name})
            case "group":
                found = active.filter(groups__name=name)
            case "permission":
                found = active.filter(pk__in=_holders(name))
            case _ if has_field("is_staff"):
                found = active.filter(is_staff=True)
            case _:  # `is_staff` is a property, as in Django's documentation
                found = active.filter(pk__in=[user.pk for user in active.iterator() if has(user, "is_staff")])
    except (
        ValueError,
        TypeError,
        DjangoValidationError,
        FieldError,
    ):  # an invalid user name, or the model has no such field
        found = active.none()
    meant: QuerySet[Any] = found.order_by("pk").distinct()
    return meant


def _holders(permission: str) -> set[Any]:
    active = True if has_active_field() else None
    found = set()
    for backend in _backends():
        if hasattr(backend, "with_perm"):
            users = backend.with_perm(permission, is_active=active, include_superusers=False)
            found.update(users.values_list("pk", flat=True)[: READ + 1])
    return found


def _backends() -> list[Any]:
    return [load_backend(path) for path in settings.AUTHENTICATION_BACKENDS]


def holders_are_known() -> bool:
    """Whether every backend has `with_perm`. Django's own needs the tables of PermissionsMixin."""
    has_rows = issubclass(get_user_model(), PermissionsMixin)
    return has_rows and all(hasattr(backend, "with_perm") for backend in _backends())
