"""Paths of the app's pages, and links in e-mails to the page where one person answers one request.

The token of a link is signed, and valid for RAVI["REQUEST_LINK_S"]. Each person and level has one row, which is claimed
before the e-mail is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urljoin
from uuid import UUID

from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from django.db.models import Exists, F, OuterRef, Q
from django.urls import get_script_prefix, reverse
from django.utils.translation import gettext as _

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import NotFoundError
from ravi_django.models import HumanRequest, RequestLink
from ravi_django.runtime.db import clock
from ravi_django.runtime.db.clock import present

_SALT = "ravi.request_link"


class ExpiredLinkError(NotFoundError):
    """The link is signed here and too old."""


def path_to(name: str, **kwargs: Any) -> str:
    """The path of a page, also outside of an HTTP request. Raises NoReverseMatch when the app's URLs are not mounted,
    or RAVI["URL_KWARGS"] lacks an argument of their prefix."""
    return reverse(f"ravi:{name}", kwargs={**conf.URL_KWARGS, **kwargs})


def socket(name: str = "") -> str:
    """The path of one of the app's sockets, or of all of them, for a page that is being served."""
    path = f"{conf.SOCKET_PATH.rstrip('/')}/"
    return urljoin(get_script_prefix(), f"{path}{name}/" if name else path)


def token_of(link: RequestLink) -> str:
    return _signer().sign(link.id.hex)


def id_of(token: str) -> UUID:
    """The id in a token, without a query. Raises NotFoundError for a wrong signature, and ExpiredLinkError."""
    try:
        return UUID(_signer().unsign(token, max_age=conf.REQUEST_LINK_S))
    except SignatureExpired:
        raise ExpiredLinkError(_("The link has expired.")) from None
    except (BadSignature, ValueError):
        raise NotFoundError(_("There is no such link.")) from None


def find(token: str, user: Any) -> RequestLink:
    """The link, with its request. Raises as `id_of`, and NotFoundError when the link is another person's."""
    rows = RequestLink.objects.select_related("request__run", "request__owner", "request__answered_by")
    link: RequestLink | None = rows.filter(id=id_of(token), user_id=user.pk).first()
    if link is None:
        raise NotFoundError(_("There is no such link."))
    if link.expires_at <= present():
        raise ExpiredLinkError(_("The link has expired."))
    return link


def _signer() -> TimestampSigner:
    return TimestampSigner(salt=_SALT, sep=".")


TRIES = 8
FIRST_WAIT_S = 60.0  # after a failed try; it doubles, so the last try is two hours after the first


def unwritten(limit: int) -> list[UUID]:
    """Pending requests with e-mails to send at their present level, the oldest first. Without those whose failed
    e-mails are retried later."""
    links = RequestLink.objects.filter(request=OuterRef("pk"), level=OuterRef("level"), sent_at=None, tries__lt=TRIES)
    waiting, due = links.filter(retry_at__gt=clock.now()), _ready(links)
    found = _unwritten().filter(~Exists(waiting) | Exists(due)).order_by("id")
    return list(found.values_list("id", flat=True)[:limit])


def find_unwritten(request_id: UUID | str) -> HumanRequest | None:
    """That request, if it has e-mails to send at its present level."""
    found: HumanRequest | None = _unwritten().filter(id=request_id).select_related("run", "owner").first()
    return found


def make_links(request: HumanRequest, users: Sequence[Any], valid_s: float) -> list[RequestLink]:
    """Create the missing links of these users; returns the links whose e-mail may be sent now."""
    same: dict[str, Any] = {"request": request, "level": request.level, "expires_at": clock.after(valid_s)}
    rows = [clock.stamp(RequestLink(user=user, **same)) for user in users]
    RequestLink.objects.bulk_create(rows, ignore_conflicts=True, batch_size=100)
    links = RequestLink.objects.filter(request=request, level=request.level, sent_at=None, tries__lt=TRIES)
    return list(_ready(links).filter(user__in=users).order_by("id"))


def claim_link(link: RequestLink, request: HumanRequest) -> bool:
    """Claim the sending of this e-mail: only one sender may. False also when `request` has changed. The link's columns
    are in the WHERE of the UPDATE, so a second sender waits and finds them changed."""
    same = HumanRequest.objects.filter(id=request.id, status=HumanRequest.Status.PENDING, version=request.version)
    mine = RequestLink.objects.filter(id=link.id, sent_at=None, tries=link.tries).filter(Exists(same))
    return bool(mine.update(sent_at=clock.now(), tries=F("tries") + 1))


def link_failed(link: RequestLink) -> bool:
    """Release a claimed link whose e-mail could not be sent. Returns whether there is another try."""
    tries = link.tries + 1
    with transaction.atomic():
        wait = FIRST_WAIT_S * 2 ** (tries - 1)
        RequestLink.objects.filter(id=link.id, tries=tries).update(sent_at=None, retry_at=clock.after(wait))
        if tries < TRIES:  # another sender may have marked the level as written
            done = HumanRequest.objects.filter(id=link.request_id, level=link.level, notified=link.level)
            done.update(notified=link.level - 1)
    return tries < TRIES


def mark_written(request: HumanRequest, users: Sequence[Any]) -> bool:
    """Mark the level of the request as written. Returns False while an e-mail waits for a retry, and when the request
    has changed."""
    left = RequestLink.objects.filter(request=request, level=request.level, user__in=users, sent_at=None)
    if left.filter(tries__lt=TRIES).exists():
        return False
    same = HumanRequest.objects.filter(id=request.id, version=request.version, notified__lt=request.level)
    return bool(same.update(notified=request.level))


def give_up_writing(request_id: UUID | str) -> None:
    """Mark the present level as written, without e-mails."""
    _unwritten().filter(id=request_id).update(notified=F("level"))


def forget_links(request_ids: Collection[UUID], level: int | None = None) -> None:
    """Delete the links, of one level or of all: the requests are asked again, and the recipients get new links."""
    sent = RequestLink.objects.filter(request__in=request_ids)
    (sent if level is None else sent.filter(level=level)).delete()


def use_link(link: RequestLink) -> bool:
    """Use the link, once. In the transaction of the decision."""
    return bool(RequestLink.objects.filter(id=link.id, used_at=None).update(used_at=clock.now()))


def _unwritten() -> Any:
    return HumanRequest.objects.filter(status=HumanRequest.Status.PENDING, notified__lt=F("level"))


def _ready(links: Any) -> Any:
    return links.filter(Q(retry_at=None) | Q(retry_at__lte=clock.now()))
