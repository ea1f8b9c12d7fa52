"""Somebody else is asked: who may say so, and to whom a request may be put."""

from __future__ import annotations

from copy import copy
from typing import Any

from ravi_django.kernel import Addressees, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import HumanRequest
from ravi_django.runtime import addresses, hidden, people, requests
from ravi_django.runtime.addresses import permits
from ravi_django.runtime.people import Authority


def check(user: Any, request: HumanRequest) -> Authority | None:
    """Whether `user` may address it to somebody else: who may answer it, by that right, and an operator of the site,
    who holds `ravi.change_humanrequest` and may see it: None. Raises as `people.check`."""
    try:
        return people.check(user, request)
    except (NotFoundError, ForbiddenError):
        present = people.as_now(user)
        if present is None or not permits(present, "ravi.change_humanrequest"):
            raise
        reads = permits(present, "ravi.view_humanrequest") and HumanRequest.objects.filter(people.in_tenant(present))
        if not (reads or people.visible(present)).filter(pk=request.pk).exists():
            raise
    return None


def address_for(request: HumanRequest, to: Any, user: Any, right: Authority | None) -> str:
    """The address that `user` puts it to, by what `check` has said of them.

    Raises InvalidInputError where `to` is not one address, means nobody who could answer, or takes from staff what they
    decide; ForbiddenError where an operator who may not answer would come to do so by it: themselves, or in the place
    of one whom they stand in for.
    """
    step = Addressees.of(to)
    address = requests.address_of(step.steps[0].to, request.owner_id)
    if len(step.steps) > 1:
        raise InvalidInputError("to is one address: the steps behind the present one stay", field="to")
    if address == "owner" and request.kind not in people.CONVERSATION and hidden.is_about(request):
        raise InvalidInputError(f"to: what {request.tool} is called with is hidden from the owner", field="to")
    if address == request.to:
        raise InvalidInputError(f"to: {address} is asked already", field="to")
    placed = copy(request)
    placed.to = address
    if right is None and next(people.rights_to(user, placed), None) is not None:  # whatever the site's hook would say
        raise ForbiddenError(f"{address} means you, who may not answer request {request.pk}: put it to somebody else")
    confirms = address == "owner" and request.four_eyes  # that is for the agent's code and the site to ask
    if confirms or not people.means_somebody(address, placed):
        raise InvalidInputError(f"to: {address} means nobody who may answer request {request.id}", field="to")
    if user is not None and people.goes_to_staff(request):
        _check_stays_with_staff(request, address, placed)
    return address


def _check_stays_with_staff(request: HumanRequest, address: str, placed: HumanRequest) -> None:
    asked, found = people.address_now(request), people.candidates(address, placed)
    meant = addresses.of_users(found, asked)
    if any(asked not in meant[user.pk] and not addresses.has(user, "is_staff") for user in found):
        raise InvalidInputError(
            f"to: {address} means users who are not staff; request {request.id} is for {asked}", field="to"
        )
