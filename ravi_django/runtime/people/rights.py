"""Who may answer what. One rule for every surface: the list that a person sees agrees with the answers that count.

A request is addressed to `owner`, `staff`, `user:NAME`, `group:NAME` or `permission:app.codename`. A superuser may
answer all. A delegate may answer what the other person may while the delegation lasts, but not what was delegated to
that person. Never: an inactive user, a user of another tenant, or one whom the site's hook refuses. With four eyes a
run's owner, and anybody in their place, decides on nothing of that run, except what asks `owner` to confirm.

Users are read anew each time: a session or a socket may be older than their dismissal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from ravi_django.kernel import ForbiddenError, NotFoundError
from ravi_django.models import TERMINAL, Delegation, HumanRequest
from ravi_django.runtime.db import clock
from ravi_django.runtime.people import addressees, site_rules
from ravi_django.runtime.people.site_rules import tenants_of
from ravi_django.users import has, permits

CONVERSATION = (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT)  # asked of whoever talks to the agent
SWITCH = "A site with one member of staff sets RAVI['FOUR_EYES'] to False"
MOST = 200  # people that one address is resolved to, and in whose place one other may answer


@dataclass(frozen=True, slots=True)
class Authority:
    """By what right somebody answers: their own, or that of another who has delegated it to them."""

    user: Any  # None: the site's own operator, at a terminal or in its code
    instead_of: Any = None


def check(user: Any, request: HumanRequest) -> Authority:
    """By what right `user` answers this request, as it is now.

    Raises NotFoundError when they may not even see it, ForbiddenError with the reason when they may not answer it.
    """
    if user is None:
        return Authority(None)
    present = as_now(user)
    row = None if request.pk is None else HumanRequest.objects.filter(pk=request.pk).only(*_GOES_BY).first()
    if present is None or row is None:
        raise NotFoundError(f"there is no request {request.pk}")
    seen = row.owner_id == present.pk
    for right in rights_to(present, row):
        seen = True
        if _is_allowed(right, request):
            return right
        if right.instead_of is None:
            raise ForbiddenError(f"request {request.pk} is not yours to answer: the site's own rule refuses it")
    if not seen:
        raise NotFoundError(f"there is no request {request.pk}")
    if _is_own_call(present, row) and _would_decide(present, row):
        told = f"comes from your own run; with four eyes another person decides: {address_now(row)}. {SWITCH}"
        raise ForbiddenError(f"request {request.pk} {told}")
    raise ForbiddenError(f"request {request.pk} is addressed to {row.to}; you may read it")


def _would_decide(user: Any, request: HumanRequest) -> bool:
    """But for four eyes."""
    alone = copy(request)
    alone.four_eyes = False
    return next(rights_to(user, alone), None) is not None


def check_changed(right: Authority, request: HumanRequest) -> None:
    """The hook once more, where an answer puts others in the place of the arguments: `request` is a copy that has
    those. Raises ForbiddenError."""
    if not _is_allowed(right, request):
        raise ForbiddenError(
            f"request {request.pk} is not yours to answer with these arguments: the site's own rule refuses them"
        )


def could_answer(user: Any, request: HumanRequest) -> bool:
    """Whether `user`, as they are now, could answer a request that is not saved, at any of its steps: as `check` says
    of one that is."""
    present = as_now(user)
    if present is None:
        return False
    placed = []
    for level, step in enumerate(request.steps or [{"to": request.to}]):
        placed.append(copy(request))
        placed[-1].level, placed[-1].to = level, step["to"]
    return any(_is_allowed(right, one) for one in placed for right in rights_to(present, one))


def answerable(user: Any) -> QuerySet[HumanRequest]:
    """The requests, of any status, that `user` may answer, or could. What the hook refuses is in here too."""
    present = as_now(user)
    return HumanRequest.objects.none() if present is None else HumanRequest.objects.filter(_all_rights(present))


def answerable_as_read(user: Any) -> QuerySet[HumanRequest]:
    """As `answerable`, of a user whom this request has read already, by the permissions that Django has cached of them:
    fewer queries, for a page that shows. An answer is checked by `check`."""
    if not getattr(user, "is_authenticated", False) or not user.is_active:
        return HumanRequest.objects.none()
    meant = addressees.of_users([user], "group:")[user.pk]
    meant += [f"permission:{name}" for name in getattr(user, "get_all_permissions", frozenset)()]
    found = _right(user, meant)
    for place in _places(user, delegators(user)):
        found |= place
    return HumanRequest.objects.filter(found)


def visible(user: Any) -> QuerySet[HumanRequest]:
    """Those that `user` may answer, and those of their own runs, to read. What the hook refuses is in here too."""
    present = as_now(user)
    if present is None:
        return HumanRequest.objects.none()
    if has(present, "is_superuser"):
        return HumanRequest.objects.all()
    return HumanRequest.objects.filter(_all_rights(present) | Q(owner=present))


def why_not(user: Any, request: HumanRequest) -> str:
    """Why `user` may not answer it, for a surface that shows buttons or these words; "" where they may."""
    try:
        check(user, request)
    except (NotFoundError, ForbiddenError) as error:
        return str(error)
    return ""


def open_among(user: Any, requests: Sequence[HumanRequest]) -> set[UUID]:
    """Which of these `user` may answer, as `check` says of each: a constant number of queries for all of them."""
    if user is None:
        return {request.pk for request in requests}
    present = as_now(user)
    if present is None or not requests:
        return set()
    others = delegators(present)
    asked = {"own": _rights([present])[0]}
    asked |= {f"place_{number}": place for number, place in enumerate(_places(present, others))}
    told = HumanRequest.objects.filter(pk__in=[request.pk for request in requests])
    rows = told.annotate(**{name: _as_column(condition) for name, condition in asked.items()}).in_bulk()
    return {
        request.pk
        for request in requests
        if request.pk in rows and _is_open(present, others, rows[request.pk], request)
    }


def _is_open(user: Any, others: Sequence[Any], told: Any, request: HumanRequest) -> bool:
    places = (other for number, other in enumerate(others) if getattr(told, f"place_{number}"))
    if told.own:
        return site_rules.allows(user, request)
    return any(_is_allowed(Authority(user, other), request) for other in places)


def _is_allowed(right: Authority, request: HumanRequest) -> bool:
    """By the site's hook, of both: who answers, and in whose place."""
    return all(site_rules.allows(one, request) for one in (right.user, right.instead_of) if one is not None)


def as_now(user: Any) -> Any:
    """None unless it is somebody who counts."""
    if not getattr(user, "is_authenticated", False) or user.pk is None:
        return None
    found = get_user_model()._default_manager.filter(pk=user.pk).first()
    return found if found is not None and found.is_active else None


def permitted(user_id: str | None, permission: str) -> bool:
    user = get_user_model().objects.filter(pk=user_id).first() if user_id else None
    return user is not None and permits(user, permission)


_GOES_BY = ("to", "owner", "kind", "four_eyes", "tenant")


def rights_to(user: Any, request: HumanRequest) -> Iterator[Authority]:
    """By what rights `user`, read anew, answers it but for the site's hook, their own before those of others: the rule
    of `_right` for one request, which need not be saved."""
    if _is_right(user, addressees.of_users([user], request.to)[user.pk], request):
        yield Authority(user)
    others = delegators(user) if _may_stand_in(user, request) else []
    meant = addressees.of_users(others, request.to) if others else {}
    for other in others:
        if _is_right(other, meant[other.pk], request):
            yield Authority(user, other)


def _is_right(user: Any, meant: Collection[str], request: HumanRequest) -> bool:
    if _is_own_call(user, request):
        return False
    if has(user, "is_superuser"):
        return True
    to = address_now(request)
    return (to in meant or (to == "owner" and request.owner_id == user.pk)) and _is_open_to_tenant(user, request)


def _is_own_call(user: Any, request: HumanRequest) -> bool:
    """Four eyes: the run's owner does not decide, but confirms what the agent's code or the site asks of `owner`."""
    return request.four_eyes and request.owner_id == user.pk and request.to != "owner"


def _own_calls(user: Any) -> Q:
    """The same, of rows."""
    return Q(four_eyes=True, owner=user) & ~Q(to="owner")


def _may_stand_in(user: Any, request: HumanRequest) -> bool:
    """What staff, or the holders of a permission, decide is answered in their place by staff alone. (A holder has the
    right already.)"""
    if _is_own_call(user, request) or not _is_open_to_tenant(user, request):
        return False
    return has(user, "is_staff") or not goes_to_staff(request)


def goes_to_staff(request: HumanRequest) -> bool:
    """To staff, or to the holders of a permission."""
    to = address_now(request)
    return to == "staff" or to.startswith("permission:")


_STAFFS = Q(to="staff") | Q(to="owner", owner=None)  # what belongs to nobody is the staff's


def _is_open_to_tenant(user: Any, request: HumanRequest) -> bool:
    theirs = tenants_of(user)
    return theirs is None or request.tenant in theirs or request.owner_id == user.pk


def _all_rights(user: Any) -> Q:
    others = delegators(user)
    found = _rights([user])[0]
    for place in _places(user, others):
        found |= place
    return found


def _places(user: Any, others: Sequence[Any], to: str | None = None) -> list[Q]:
    """What `user` may answer in the place of each of the others: the rule of `_may_stand_in` for rows."""
    if not others:
        return []
    open_to_user = in_tenant(user) & ~_own_calls(user)
    if not has(user, "is_staff"):
        open_to_user &= ~(_STAFFS | Q(to__startswith="permission:"))
    return [theirs & open_to_user for theirs in _rights(others, to)]


def _rights(users: Sequence[Any], to: str | None = None) -> list[Q]:
    """What each may answer in their own right; `to` where it is about requests of that address alone."""
    meant = addressees.of_users(users, to)
    return [_right(user, meant[user.pk]) for user in users]


def _right(user: Any, meant: Collection[str]) -> Q:
    if has(user, "is_superuser"):
        return ~_own_calls(user)
    found = Q(to__in=meant) | Q(to="owner", owner=user)
    if has(user, "is_staff"):
        found |= _STAFFS
    return found & in_tenant(user) & ~_own_calls(user)


def _as_column(condition: Q) -> Any:
    return ExpressionWrapper(condition, output_field=BooleanField())


def in_tenant(user: Any) -> Q:
    theirs = tenants_of(user)
    return Q() if theirs is None else Q(tenant__in=theirs) | Q(owner=user)


def delegators(user: Any) -> list[Any]:
    """The active users in whose place `user` may answer now."""
    if has(user, "is_superuser"):
        return []  # they may already
    rows = Delegation.objects.filter(
        Q(until__isnull=True) | Q(until__gt=clock.now()), delegate=user, since__lte=clock.now()
    )
    found = {row.user_id: row.user for row in rows.select_related("user")[:MOST]}
    return [other for other in found.values() if other.is_active]


# ---------------------------------------------------------------------------------------------- who that is


def candidates(to: str, request: HumanRequest, most: int = MOST) -> list[Any]:
    """The active users whom an address means, but for delegates and superusers who are not meant: whom to write to."""
    return list(islice((user for user in _meant(to, request) if user is not None), most))


def means_somebody(to: str, request: HumanRequest) -> bool:
    """Whether anybody could answer it at that address. Where that cannot be said somebody might: a permission of a
    backend that does not tell who has it, an address of more users than are looked at."""
    if to.startswith("permission:") and not addressees.holders_are_known():
        return True
    return next(_meant(to, request), False) is not False


def address_now(request: HumanRequest) -> str:
    return address_of(str(request.to), request.owner_id)


def address_of(to: str, owner_id: Any) -> str:
    """The address, or `staff` for the owner of a run that has none."""
    return "staff" if to == "owner" and owner_id is None else to


def _meant(to: str, request: HumanRequest) -> Iterator[Any]:
    """One after the other as they are read; at last None where there are more than are looked at."""
    found = addressees.users_at(to, request.owner_id)[: addressees.READ + 1]
    for place, user in enumerate(found.iterator(chunk_size=MOST)):
        if place == addressees.READ:
            yield None
        elif _is_open_to_tenant(user, request) and not _is_own_call(user, request) and site_rules.allows(user, request):
            yield user


def in_time() -> Q:
    """Of the pending requests those whose answer is neither too early nor too late now, of runs that have not ended."""
    now = clock.now()
    begun, goes_on = Q(not_before=None) | Q(not_before__lte=now), Q(expires_at=None) | Q(expires_at__gt=now)
    return begun & goes_on & ~Q(run__status__in=TERMINAL)
