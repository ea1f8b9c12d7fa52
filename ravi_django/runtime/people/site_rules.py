"""The site's settings about people: RAVI["ADDRESSEES"], ["TENANT_OF"], ["MAY_ANSWER"] and ["LANGUAGE_OF"].

A hook that fails allows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import get_supported_language_variant

from ravi_django import users
from ravi_django.conf import conf
from ravi_django.kernel import Addressees, ForbiddenError, InvalidInputError
from ravi_django.models import HumanRequest

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
    given = {**OF_KIND, **conf.ADDRESSEES}.get(kind)
    if isinstance(given, Mapping) and not set(given) & {"to", "steps"}:
        given = next((given[key] for key in (tool, risk, "*") if key in given), None)
    return None if given is None else Addressees.of(given, "ADDRESSEES")


def faults(setting: Any) -> Iterator[str]:
    """Errors in RAVI["ADDRESSEES"], with their place."""
    if not isinstance(setting, Mapping):
        yield f" is {setting!r}, not a dict of addresses by kind"
        return
    for kind, given in setting.items():
        if kind not in OF_KIND:
            yield f" has an unknown kind {kind!r}: there are {', '.join(OF_KIND)}"
            continue
        by_tool = isinstance(given, Mapping) and not set(given) & {"to", "steps"}
        for key, value in given.items() if by_tool else [("", given)]:
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
        found = unsaid if hook is None else hook(user)
        if found is None:
            return None
        theirs = {found} if isinstance(found, str) else set(found)
        if not all(isinstance(tenant, str) for tenant in theirs):
            raise TypeError(f"it returned {found!r}")
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
    given = getattr(conf, name)
    found: Callable[..., Any] | None = import_string(given) if isinstance(given, str) else given
    return found
