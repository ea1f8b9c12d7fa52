"""Rights to answer requests: one rule for every surface, so that lists agree with the answers that are accepted.

A request is addressed to `owner`, `staff`, `user:NAME`, `group:NAME` or `permission:app.codename`. A superuser may
answer all. A delegate may answer what the other person may while the delegation lasts, but not what was delegated to
that person. Never: an inactive user, a user of another tenant, and a user whom the site's hook refuses. With four eyes
the owner of a run, and their delegates, decide on nothing of that run, except requests that `owner` has to confirm.

Users are read again each time: a session or a socket may be older than their dismissal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.utils.translation import gettext as _

from ravi_django.engine.db import clock
from ravi_django.kernel import ForbiddenError, NotFoundError
from ravi_django.models import TERMINAL, Delegation, HumanRequest
from ravi_django.people import site_rules
from ravi_django.people.site_rules import tenants_of
from ravi_django.users import has, permits

CONVERSATION = (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT)  # for the user who talks to the agent
_CLIENTS = Q(kind=HumanRequest.Kind.CLIENT_TOOL)  # for the client of the run's owner: nobody's inbox has them
MOST = 200  # recipients of one address, and delegators of one user


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to an answer."""

    user: Any  # None: the site's own operator, at a terminal or in its code
    instead_of: Any = None  # the delegator


def check(user: Any, request: HumanRequest) -> Authority:
    """The right by which `user` answers this request, by its present row.

    Raises NotFoundError when the user may not see it, ForbiddenError with the reason when they may not answer it.
    """
    if user is None:
        return Authority(None)
    present = as_now(user)
    row = None if request.pk is None else HumanRequest.objects.filter(pk=request.pk).only(*_GOES_BY).first()
    if present is None or row is None:
        raise not_found(request.pk)
    seen = row.owner_id == present.pk or has(present, "is_superuser")
    for right in rights_to(present, row):
        seen = True
        if _is_allowed(right, request):
            return right
        if right.instead_of is None:
            raise ForbiddenError(_("A rule of this site does not allow you to answer request %(id)s.") % {"id": row.pk})
    if not seen:
        raise not_found(request.pk)
    if _is_own_call(present, row) and _would_decide(present, row):
        raise ForbiddenError(
            _(
                "Request %(id)s is from your own run, so another person must answer it (four eyes): %(address)s. "
                "If your site has one member of staff, set RAVI['FOUR_EYES'] to False."
            )
            % {"id": row.pk, "address": address_now(row)}
        )
    raise ForbiddenError(
        _("Request %(id)s is addressed to %(address)s. You may only read it.") % {"id": row.pk, "address": row.to}
    )


def not_found(request_id: object) -> NotFoundError:
    return NotFoundError(_("There is no request %(id)s.") % {"id": request_id})


def _would_decide(user: Any, request: HumanRequest) -> bool:
    """Whether `user` could answer it without four eyes."""
    alone = copy(request)
    alone.four_eyes = False
    return next(rights_to(user, alone), None) is not None


def check_changed(right: Authority, request: HumanRequest) -> None:
    """Ask the site's hook about changed arguments: `request` is a copy with those. Raises ForbiddenError."""
    if not _is_allowed(right, request):
        raise ForbiddenError(
            _("A rule of this site does not allow you to answer request %(id)s with these arguments.")
            % {"id": request.pk}
        )


def may_answer_unsaved(user: Any, request: HumanRequest) -> bool:
    """Whether `user` could answer a request that is not saved, at any of its steps."""
    present = as_now(user)
    if present is None:
        return False
    placed = []
    for level, step in enumerate(request.steps or [{"to": request.to}]):
        placed.append(copy(request))
        placed[-1].level, placed[-1].to = level, step["to"]
    return any(_is_allowed(right, one) for one in placed for right in rights_to(present, one))


def answerable(user: Any) -> QuerySet[HumanRequest]:
    """The requests of any status that `user` may answer. Includes those that the site's hook refuses."""
    present = as_now(user)
    return HumanRequest.objects.none() if present is None else HumanRequest.objects.filter(_all_rights(present))


def answerable_as_read(user: Any) -> QuerySet[HumanRequest]:
    """`answerable` with fewer queries, for pages: by the user and the permissions that this HTTP request has read."""
    if not getattr(user, "is_authenticated", False) or not user.is_active:
        return HumanRequest.objects.none()
    meant = site_rules.of_users([user], "group:")[user.pk]
    meant += [f"permission:{name}" for name in getattr(user, "get_all_permissions", frozenset)()]
    return HumanRequest.objects.filter(reduce(or_, [_right(user, meant), *_delegated(user, delegators(user))]))


def visible(user: Any) -> QuerySet[HumanRequest]:
    """The requests that `user` may read: those of `answerable`, and those of their own runs."""
    present = as_now(user)
    if present is None:
        return HumanRequest.objects.none()
    if has(present, "is_superuser"):
        return HumanRequest.objects.all()
    return HumanRequest.objects.filter(_all_rights(present) | Q(owner=present))


def refusal(user: Any, request: HumanRequest) -> str:
    """Why `user` may not answer it; "" if they may."""
    try:
        check(user, request)
    except (NotFoundError, ForbiddenError) as error:
        return str(error)
    return ""


def open_among(user: Any, requests: Sequence[HumanRequest]) -> set[UUID]:
    """The ids of those that `user` may answer, as by `check`, in a constant number of queries."""
    if user is None:
        return {request.pk for request in requests}
    present = as_now(user)
    if present is None or not requests:
        return set()
    others = delegators(present)
    asked = {"own": _rights([present])[0] | (_CLIENTS & Q(owner=present))}
    asked |= {f"delegated_{number}": right for number, right in enumerate(_delegated(present, others))}
    columns = {name: ExpressionWrapper(right, output_field=BooleanField()) for name, right in asked.items()}
    rows = HumanRequest.objects.filter(pk__in=[request.pk for request in requests]).annotate(**columns).in_bulk()
    return {
        request.pk
        for request in requests
        if request.pk in rows and _is_open(present, others, rows[request.pk], request)
    }


def _is_open(user: Any, others: Sequence[Any], row: Any, request: HumanRequest) -> bool:
    if row.own:
        return site_rules.allows(user, request)
    represented = (other for number, other in enumerate(others) if getattr(row, f"delegated_{number}"))
    return any(_is_allowed(Authority(user, other), request) for other in represented)


def _is_allowed(right: Authority, request: HumanRequest) -> bool:
    """Whether the site's hook allows the user, and the delegator."""
    return all(site_rules.allows(one, request) for one in (right.user, right.instead_of) if one is not None)


def as_now(user: Any) -> Any:
    """The user as the database has it now; None for an anonymous, inactive or deleted one."""
    if not getattr(user, "is_authenticated", False) or user.pk is None:
        return None
    row = get_user_model()._default_manager.filter(pk=user.pk).first()
    return row if row is not None and row.is_active else None


def permitted(user_id: str | None, permission: str) -> bool:
    user = get_user_model().objects.filter(pk=user_id).first() if user_id else None
    return user is not None and permits(user, permission)


_GOES_BY = ("to", "owner", "kind", "four_eyes", "tenant")


def rights_to(user: Any, request: HumanRequest) -> Iterator[Authority]:
    """The rights by which `user` answers it, without the site's hook; the own right is the first. The rule of `_right`
    for one request, which may be unsaved."""
    if _is_right(user, site_rules.of_users([user], request.to)[user.pk], request):
        yield Authority(user)
    others = delegators(user) if _may_stand_in(user, request) else []
    meant = site_rules.of_users(others, request.to) if others else {}
    for other in others:
        if _is_right(other, meant[other.pk], request):
            yield Authority(user, other)


def _is_right(user: Any, meant: Collection[str], request: HumanRequest) -> bool:
    if request.kind == HumanRequest.Kind.CLIENT_TOOL:
        return bool(request.owner_id == user.pk)
    if _is_own_call(user, request):
        return False
    if has(user, "is_superuser"):
        return True
    to = address_now(request)
    return (to in meant or (to == "owner" and request.owner_id == user.pk)) and _is_open_to_tenant(user, request)


def _is_own_call(user: Any, request: HumanRequest) -> bool:
    """Four eyes: the run's owner does not decide, except on requests to `owner`."""
    return request.four_eyes and request.owner_id == user.pk and request.to != "owner"


def _own_calls(user: Any) -> Q:
    """The same as a filter."""
    return Q(four_eyes=True, owner=user) & ~Q(to="owner")


def _may_stand_in(user: Any, request: HumanRequest) -> bool:
    """Whether `user` may answer for a delegator. Only staff answer requests to staff and to permissions."""
    if _is_own_call(user, request) or not _is_open_to_tenant(user, request):
        return False
    if request.kind == HumanRequest.Kind.CLIENT_TOOL:
        return False
    return has(user, "is_staff") or not goes_to_staff(request)


def goes_to_staff(request: HumanRequest) -> bool:
    to = address_now(request)
    return to == "staff" or to.startswith("permission:")


_STAFFS = Q(to="staff") | Q(to="owner", owner=None)


def _is_open_to_tenant(user: Any, request: HumanRequest) -> bool:
    theirs = tenants_of(user)
    return theirs is None or request.tenant in theirs or request.owner_id == user.pk


def _all_rights(user: Any) -> Q:
    return reduce(or_, [*_rights([user]), *_delegated(user, delegators(user))])


def _delegated(user: Any, others: Sequence[Any]) -> list[Q]:
    """The requests that `user` may answer for each of these delegators: the rule of `_may_stand_in` as a filter."""
    if not others:
        return []
    open_to_user = in_tenant(user) & ~_own_calls(user)
    if not has(user, "is_staff"):
        open_to_user &= ~(_STAFFS | Q(to__startswith="permission:"))
    return [theirs & open_to_user for theirs in _rights(others)]


def _rights(users: Sequence[Any]) -> list[Q]:
    """The requests that each user may answer without a delegation."""
    meant = site_rules.of_users(users, None)
    return [_right(user, meant[user.pk]) for user in users]


def _right(user: Any, meant: Collection[str]) -> Q:
    if has(user, "is_superuser"):
        return ~_own_calls(user) & ~_CLIENTS
    rights = Q(to__in=meant) | Q(to="owner", owner=user)
    if has(user, "is_staff"):
        rights |= _STAFFS
    return rights & in_tenant(user) & ~_own_calls(user) & ~_CLIENTS


def in_tenant(user: Any) -> Q:
    theirs = tenants_of(user)
    return Q() if theirs is None else Q(tenant__in=theirs) | Q(owner=user)


def delegators(user: Any) -> list[Any]:
    """The active users that `user` may represent now."""
    if has(user, "is_superuser"):
        return []  # they may already
    rows = Delegation.objects.filter(
        Q(until__isnull=True) | Q(until__gt=clock.now()), delegate=user, since__lte=clock.now()
    )
    users_by_id = {row.user_id: row.user for row in rows.select_related("user")[:MOST]}
    return [other for other in users_by_id.values() if other.is_active]


def have_a_tenant(delegate: Any, user: Any) -> bool:
    """Whether some tenant is of both: otherwise `delegate` can answer nothing in the place of `user`."""
    theirs, others = tenants_of(user), tenants_of(delegate)
    return others is None or bool(others if theirs is None else set(theirs).intersection(others))


def candidates(to: str, request: HumanRequest) -> list[Any]:
    """The recipients of an address: active users, at most MOST, without delegates and other superusers."""
    return list(islice((user for user in _meant(to, request) if user is not None), MOST))


def has_recipient(to: str, request: HumanRequest) -> bool:
    """Whether the address has a recipient. True if that is not known: for a permission of a backend without
    `with_perm`, and an address of more users than READ."""
    if to.startswith("permission:") and not site_rules.holders_are_known():
        return True
    return next(_meant(to, request), False) is not False


def address_now(request: HumanRequest) -> str:
    return address_of(str(request.to), request.owner_id)


def address_of(to: str, owner_id: Any) -> str:
    """The address, or `staff` for the owner of a run that has none."""
    return "staff" if to == "owner" and owner_id is None else to


def _meant(to: str, request: HumanRequest) -> Iterator[Any]:
    """The recipients; a None at the end if there are more users than READ."""
    recipients = site_rules.users_at(to, request.owner_id)[: site_rules.READ + 1]
    asked = copy(request)
    asked.to = to  # the request may be at another of its steps
    for number, user in enumerate(recipients.iterator(chunk_size=MOST)):
        if number == site_rules.READ:
            yield None
        elif _is_open_to_tenant(user, asked) and not _is_own_call(user, asked) and site_rules.allows(user, asked):
            yield user


def in_time() -> Q:
    """Pending requests whose answer is neither too early nor too late now, of runs that have not ended."""
    now = clock.now()
    begun, goes_on = Q(not_before=None) | Q(not_before__lte=now), Q(expires_at=None) | Q(expires_at__gt=now)
    return begun & goes_on & ~Q(run__status__in=TERMINAL)
