"""Addresses: of a user, the users of an address, and the site's settings about people: RAVI["ADDRESSEES"],
["TENANT_OF"], ["MAY_ANSWER"] and ["LANGUAGE_OF"].

A site's own user model may lack groups, permissions and a user name that is a text. A hook that fails allows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, load_backend
from django.contrib.auth.models import PermissionsMixin
from django.core.exceptions import FieldError, ValidationError as DjangoValidationError
from django.db.models import QuerySet
from django.utils.module_loading import import_string
from django.utils.translation import get_supported_language_variant

from ravi_django import users
from ravi_django.conf import conf
from ravi_django.kernel import Addressees, ForbiddenError, InvalidInputError
from ravi_django.models import HumanRequest
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
    addresses = {
        user.pk: [f"user:{user.get_username()}", *(["staff"] if has(user, "is_staff") else [])] for user in users
    }
    if to is None or to.startswith("group:"):
        for pk, name in _groups(list(addresses)):
            addresses[pk].append(f"group:{name}")
    if to is None or to.startswith("permission:"):
        for pk, name in _permissions([user for user in users if not has(user, "is_superuser")]):
            addresses[pk].append(f"permission:{name}")
    return addresses


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
    for relation in ("user_permissions", "groups__permissions"):
        rows = model._default_manager.filter(pk__in=[user.pk for user in users], **{f"{relation}__isnull": False})
        for pk, app, codename in rows.values_list(
            "pk", f"{relation}__content_type__app_label", f"{relation}__codename"
        ):
            yield pk, f"{app}.{codename}"


def cache_permissions(users: Collection[Any]) -> None:
    """Fill the permission caches of Django's own backend for all these users at once. Nothing for other backends."""
    if not _is_djangos_own(get_user_model()):
        return
    plain = [user for user in users if not has(user, "is_superuser")]
    for user in plain:
        user._perm_cache = set()
    caches = {user.pk: user._perm_cache for user in plain}
    for pk, name in _permissions(plain):
        caches[pk].add(name)


def _is_djangos_own(model: Any) -> bool:
    has_djangos_method = getattr(model, "get_all_permissions", None) is PermissionsMixin.get_all_permissions
    return has_djangos_method and list(settings.AUTHENTICATION_BACKENDS) == [
        "django.contrib.auth.backends.ModelBackend"
    ]


def users_at(to: str, owner_id: Any) -> QuerySet[Any]:
    """The active users of an address, for a run of this owner."""
    model: Any = get_user_model()
    active = active_users()
    kind, _, name = to.partition(":")
    try:
        match kind:
            case "owner" if owner_id is not None:
                matching = active.filter(pk=owner_id)
            case "user":
                matching = active.filter(**{model.USERNAME_FIELD: name})
            case "group":
                matching = active.filter(groups__name=name)
            case "permission":
                matching = active.filter(pk__in=_holders(name))
            case _ if has_field("is_staff"):
                matching = active.filter(is_staff=True)
            case _:  # `is_staff` is a property, as in Django's documentation
                matching = active.filter(pk__in=[user.pk for user in active.iterator() if has(user, "is_staff")])
    except (
        ValueError,
        TypeError,
        DjangoValidationError,
        FieldError,
    ):  # an invalid user name, or the model has no such field
        matching = active.none()
    meant: QuerySet[Any] = matching.order_by("pk").distinct()
    return meant


def _holders(permission: str) -> set[Any]:
    active = True if has_active_field() else None
    user_ids = set()
    for backend in _backends():
        if hasattr(backend, "with_perm"):
            users = backend.with_perm(permission, is_active=active, include_superusers=False)
            user_ids.update(users.values_list("pk", flat=True)[: READ + 1])
    return user_ids


def _backends() -> list[Any]:
    return [load_backend(path) for path in settings.AUTHENTICATION_BACKENDS]


def holders_are_known() -> bool:
    """Whether every backend has `with_perm`. Django's own needs the tables of PermissionsMixin."""
    has_rows = issubclass(get_user_model(), PermissionsMixin)
    return has_rows and all(hasattr(backend, "with_perm") for backend in _backends())


log = logging.getLogger("ravi.people")

LONGEST = 100  # characters of a tenant's name
UNKNOWN = "your tenant is not known at present; try again later"

OF_KIND: dict[str, Any] = {  # unless RAVI["ADDRESSEES"] says otherwise
    "question": "owner",
    "input": "owner",
    "approval": None,  # nobody: denied
    "uncertain": "staff",
    "budget": "staff",
}


def addressees(kind: str, tool: str = "", risk: str = "") -> Addressees | None:
    """The addresses in RAVI["ADDRESSEES"] for requests of this kind, or of the kind "budget". None: nobody."""
    value = {**OF_KIND, **conf.ADDRESSEES}.get(kind)
    if isinstance(value, Mapping) and not set(value) & {"to", "steps"}:
        value = next((value[key] for key in (tool, risk, "*") if key in value), None)
    return None if value is None else Addressees.of(value, "ADDRESSEES")


def setting_errors(setting: Any) -> Iterator[str]:
    """Errors in RAVI["ADDRESSEES"], with their place."""
    if not isinstance(setting, Mapping):
        yield f" is {setting!r}, not a dict of addresses by kind"
        return
    for kind, rule in setting.items():
        if kind not in OF_KIND:
            yield f" has an unknown kind {kind!r}: there are {', '.join(OF_KIND)}"
            continue
        by_tool = isinstance(rule, Mapping) and not set(rule) & {"to", "steps"}
        for key, value in rule.items() if by_tool else [("", rule)]:
            try:
                if value is not None:
                    Addressees.of(value)
            except InvalidInputError as error:
                yield f"[{kind!r}]{f'[{key!r}]' if key else ''}: {error}"


def tenants_of(user: Any) -> Collection[str] | None:
    """The tenants whose requests `user` may see; None: all. Without RAVI["TENANT_OF"] the tenant "". No tenant if the
    hook raises or returns another type."""
    if users.has(user, "is_superuser"):
        return None
    try:
        return _tenants(user, unsaid={""})
    except ForbiddenError:
        return set()


def own_tenants(user: Any) -> Collection[str] | None:
    """The tenants of `user` by RAVI["TENANT_OF"], also for a superuser. None: all, or there is no hook. Raises
    ForbiddenError when the hook fails."""
    return _tenants(user, unsaid=None)


def tenant_for(user: Any) -> str:
    """The tenant of new rows of `user`: the one of RAVI["TENANT_OF"] if it returns exactly one, else "". Raises
    ForbiddenError as `own_tenants`, and for an invalid name."""
    return only_one(own_tenants(user))


def only_one(theirs: Collection[str] | None) -> str:
    """The tenant of `own_tenants` if it is exactly one, else ""."""
    only = next(iter(theirs)) if theirs is not None and len(theirs) == 1 else ""
    if len(only) > LONGEST or "\0" in only:
        log.error(
            "RAVI['TENANT_OF'] returned %.200r, which is no valid name", only, extra={"action": "people.hook_failed"}
        )
        raise ForbiddenError(UNKNOWN)
    return only


def _tenants(user: Any, unsaid: Collection[str] | None) -> Collection[str] | None:
    try:
        hook = _hook("TENANT_OF")
        tenants = unsaid if hook is None else hook(user)
        if tenants is None:
            return None
        theirs = {tenants} if isinstance(tenants, str) else set(tenants)
        if not all(isinstance(tenant, str) for tenant in theirs):
            raise TypeError(f"it returned {tenants!r}")
    except Exception as error:
        log.exception("RAVI['TENANT_OF'] failed: the user has no tenant", extra={"action": "people.hook_failed"})
        raise ForbiddenError(UNKNOWN) from error
    return theirs


def allows(user: Any, request: HumanRequest) -> bool:
    """RAVI["MAY_ANSWER"](user, request): only True allows."""
    try:
        hook = _hook("MAY_ANSWER")
        return hook is None or hook(user, request) is True
    except Exception:
        log.exception("RAVI['MAY_ANSWER'] failed: it refuses", extra={"action": "people.hook_failed"})
        return False


def language_of(user: Any) -> str:
    """The language of e-mails to `user`: RAVI["LANGUAGE_OF"](user), else the site's LANGUAGE_CODE."""
    try:
        hook = _hook("LANGUAGE_OF")
        code = None if hook is None else hook(user)
        return get_supported_language_variant(code) if code else settings.LANGUAGE_CODE
    except Exception:
        log.exception("RAVI['LANGUAGE_OF'] failed: LANGUAGE_CODE is used", extra={"action": "people.hook_failed"})
        return settings.LANGUAGE_CODE


def _hook(name: str) -> Callable[..., Any] | None:
    value = getattr(conf, name)
    hook: Callable[..., Any] | None = import_string(value) if isinstance(value, str) else value
    return hook
