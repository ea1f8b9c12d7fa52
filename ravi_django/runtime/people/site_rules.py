"""The site's settings about people: RAVI["ADDRESSEES"], ["TENANT_OF"], ["MAY_ANSWER"] and ["LANGUAGE_OF"].

A hook that fails gives nobody anything.
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

LONGEST = 100  # a tenant's name, as the rows have it
UNKNOWN = "your tenant is not known at present; try again later"

OF_KIND: dict[str, Any] = {  # unless RAVI["ADDRESSEES"] says otherwise
    "question": "owner",
    "input": "owner",
    "approval": None,  # nobody: denied
    "uncertain": "staff",
    "budget": "staff",
}


def addressees(kind: str, tool: str = "", risk: str = "") -> Addressees | None:
    """Whom the site's settings name for requests of this kind ("budget" is one here); None: nobody."""
    given = {**OF_KIND, **conf.ADDRESSEES}.get(kind)
    if isinstance(given, Mapping) and not set(given) & {"to", "steps"}:
        given = next((given[key] for key in (tool, risk, "*") if key in given), None)
    return None if given is None else Addressees.of(given, "ADDRESSEES")


def faults(setting: Any) -> Iterator[str]:
    """What is wrong with RAVI["ADDRESSEES"], in words that name the place."""
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
    """The tenants whose requests `user` may see; None: all. Without RAVI["TENANT_OF"], that of runs without one. A
    hook that raises, or that gives something else, gives none."""
    if users.has(user, "is_superuser"):
        return None
    try:
        return _tenants(user, unsaid={""})
    except ForbiddenError:
        return set()


def own_tenants(user: Any) -> Collection[str] | None:
    """The tenants that `user` belongs to by RAVI["TENANT_OF"], which a superuser is asked about too; None: all, or the
    site does not say. Raises ForbiddenError when the hook fails: what is done in a wrong tenant is worse."""
    return _tenants(user, unsaid=None)


def tenant_for(user: Any) -> str:
    """The tenant of what `user` makes on a surface where none is named: the one that RAVI["TENANT_OF"] gives, when that
    is exactly one; else "". Raises ForbiddenError as `own_tenants` does, and for what cannot be a tenant's name."""
    return only_one(own_tenants(user))


def only_one(theirs: Collection[str] | None) -> str:
    """The one tenant of `own_tenants`, else ""."""
    only = next(iter(theirs)) if theirs is not None and len(theirs) == 1 else ""
    if len(only) > LONGEST or "\0" in only:
        log.error("RAVI['TENANT_OF'] gave %.200r, which is no name", only, extra={"action": "people.hook_failed"})
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
            raise TypeError(f"it gave {found!r}")
    except Exception as error:
        log.exception("RAVI['TENANT_OF'] failed: the user has no tenant", extra={"action": "people.hook_failed"})
        raise ForbiddenError(UNKNOWN) from error
    return theirs


def allows(user: Any, request: HumanRequest) -> bool:
    """RAVI["MAY_ANSWER"](user, request): what is not True refuses."""
    try:
        hook = _hook("MAY_ANSWER")
        return hook is None or hook(user, request) is True
    except Exception:
        log.exception("RAVI['MAY_ANSWER'] failed: it refuses", extra={"action": "people.hook_failed"})
        return False


def language_of(user: Any) -> str:
    """What is written to `user` in: RAVI["LANGUAGE_OF"](user), else the site's LANGUAGE_CODE. A worker writes it, which
    has no request that says so."""
    try:
        hook = _hook("LANGUAGE_OF")
        code = None if hook is None else hook(user)
        return get_supported_language_variant(code) if code else settings.LANGUAGE_CODE
    except Exception:
        log.exception("RAVI['LANGUAGE_OF'] failed: it is the site's", extra={"action": "people.hook_failed"})
        return settings.LANGUAGE_CODE


def _hook(name: str) -> Callable[..., Any] | None:
    given = getattr(conf, name)
    found: Callable[..., Any] | None = import_string(given) if isinstance(given, str) else given
    return found
