"""Addresses and users: by which addresses a user is meant, and whom an address means.

A site's own user model need not have groups, permissions or a name that is a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, load_backend
from django.contrib.auth.models import PermissionsMixin
from django.core.exceptions import FieldError
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import QuerySet

from ravi_django.users import has

READ = 2_000  # users that are looked at for one address; one more says that there are more


def has_active_field() -> bool:
    """Whether the site's user model has the field `is_active`. Without it Django counts every user as active."""
    return has_field("is_active")


def has_field(name: str) -> bool:
    return any(field.name == name for field in get_user_model()._meta.get_fields())


def active_users() -> QuerySet[Any]:
    users: QuerySet[Any] = get_user_model()._default_manager.all()
    return users.filter(is_active=True) if has_active_field() else users


def of_users(users: Sequence[Any], to: str | None) -> dict[Any, list[str]]:
    """By which addresses each of the users is meant: a constant number of queries, none for what `to` is not."""
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
    """As Django's own backend gives them, of all at once; from other backends of each user in turn."""
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
    """Read the permissions of all these users at once, to where Django's own backend keeps those of each: `has_perm`
    then asks nothing. Does nothing for other backends."""
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
    """The active users whom an address of a run of this owner means; of superusers those alone who are meant."""
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
            case _:  # a property, as in the user model of Django's documentation
                found = active.filter(pk__in=[user.pk for user in active.iterator() if has(user, "is_staff")])
    except (ValueError, TypeError, DjangoValidationError, FieldError):  # no such user name or field in this model
        found = active.none()
    meant: QuerySet[Any] = found.order_by("pk").distinct()
    return meant


def _holders(permission: str) -> set[Any]:
    given = (
        backend.with_perm(permission, is_active=True if has_active_field() else None, include_superusers=False)
        for backend in _backends()
        if hasattr(backend, "with_perm")
    )
    return {pk for users in given for pk in users.values_list("pk", flat=True)[: READ + 1]}


def _backends() -> list[Any]:
    return [load_backend(path) for path in settings.AUTHENTICATION_BACKENDS]


def holders_are_known() -> bool:
    """Whether every backend can say who has a permission. Django's own needs the rows of PermissionsMixin."""
    has_rows = issubclass(get_user_model(), PermissionsMixin)
    return has_rows and all(hasattr(backend, "with_perm") for backend in _backends())
