"""Paths of the app's pages, and links in e-mails to the page where one person decides.

A link's token is signed and good for RAVI["REQUEST_LINK_S"]. One row a person and level is claimed before the e-mail
is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urljoin
from uuid import UUID

from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from django.db.models import Exists, F, OuterRef, Q
from django.urls import get_script_prefix, reverse

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import NotFoundError
from ravi_django.models import HumanRequest, RequestLink
from ravi_django.runtime.db import clock
from ravi_django.runtime.db.clock import present

_SALT = "ravi.request_link"


class ExpiredLinkError(NotFoundError):
    """The link was good once."""


def path_to(name: str, **kwargs: Any) -> str:
    """Outside of a request. Raises NoReverseMatch where the app's URLs are not mounted, and where RAVI["URL_KWARGS"]
    lacks an argument of their prefix."""
    return reverse(f"ravi:{name}", kwargs={**conf.URL_KWARGS, **kwargs})


def socket(name: str) -> str:
    """The address of one of the app's sockets for a page that is being served: below the site's prefix."""
    return urljoin(get_script_prefix(), f"{conf.SOCKET_PATH.rstrip('/')}/{name}/")


def token_of(link: RequestLink) -> str:
    return _signer().sign(link.id.hex)


def id_of(token: str) -> UUID:
    """Without a query. Raises NotFoundError for what was never signed here, ExpiredLinkError when it is too old."""
    try:
        return UUID(_signer().unsign(token, max_age=conf.REQUEST_LINK_S))
    except SignatureExpired:
        raise ExpiredLinkError("the link has expired") from None
    except (BadSignature, ValueError):
        raise NotFoundError("there is no such link") from None


def find(token: str, user: Any) -> RequestLink:
    """The link, with its request. Raises as `id_of`, and NotFoundError when it is another person's."""
    rows = RequestLink.objects.select_related("request__run", "request__owner", "request__answered_by")
    link: RequestLink | None = rows.filter(id=id_of(token), user_id=user.pk).first()
    if link is None:
        raise NotFoundError("there is no such link")
    if is_link_expired(link):
        raise ExpiredLinkError("the link has expired")
    return link


def _signer() -> TimestampSigner:
    return TimestampSigner(salt=_SALT, sep=".")


TRIES = 8
FIRST_WAIT_S = 60.0  # after a failed try; doubling, so that the last one is two hours after the first


def unwritten(limit: int) -> list[UUID]:
    """Pending requests whose present level's people have not all been written to, the oldest first; not those of which
    a failed e-mail is to be tried again later."""
    links = RequestLink.objects.filter(request=OuterRef("pk"), level=OuterRef("level"), sent_at=None, tries__lt=TRIES)
    waiting, due = links.filter(retry_at__gt=clock.now()), _ready(links)
    found = _unwritten().filter(~Exists(waiting) | Exists(due)).order_by("id")
    return list(found.values_list("id", flat=True)[:limit])


def find_unwritten(request_id: UUID | str) -> HumanRequest | None:
    """That request, where its present level's people have not all been written to."""
    found: HumanRequest | None = _unwritten().filter(id=request_id).select_related("run", "owner").first()
    return found


def make_links(request: HumanRequest, users: Sequence[Any], valid_s: float) -> list[RequestLink]:
    """A link for each of them, where there is none yet; returns those whose e-mail may be sent now."""
    until = clock.after(valid_s)
    rows = [RequestLink(request=request, user=user, level=request.level, expires_at=until, **_made()) for user in users]
    RequestLink.objects.bulk_create(rows, ignore_conflicts=True, batch_size=100)
    links = RequestLink.objects.filter(request=request, level=request.level, sent_at=None, tries__lt=TRIES)
    return list(_ready(links).filter(user__in=users).order_by("id"))


def claim_link(link: RequestLink, request: HumanRequest) -> bool:
    """Of all who would send this e-mail, one may. False also when `request` has changed: it is decided, or others are
    asked. The link's own columns stand in the UPDATE itself, where a second sender waits and then looks again."""
    same = HumanRequest.objects.filter(id=request.id, status=HumanRequest.Status.PENDING, version=request.version)
    mine = RequestLink.objects.filter(id=link.id, sent_at=None, tries=link.tries).filter(Exists(same))
    return bool(mine.update(sent_at=clock.now(), tries=F("tries") + 1))


def link_failed(link: RequestLink) -> bool:
    """It was claimed and could not be sent. Whether there is another try."""
    tries = link.tries + 1
    with transaction.atomic():
        wait = FIRST_WAIT_S * 2 ** (tries - 1)
        RequestLink.objects.filter(id=link.id, tries=tries).update(sent_at=None, retry_at=clock.after(wait))
        if tries < TRIES:  # another sender may have taken the level for done
            done = HumanRequest.objects.filter(id=link.request_id, level=link.level, notified=link.level)
            done.update(notified=link.level - 1)
    return tries < TRIES


def mark_written(request: HumanRequest, users: Sequence[Any]) -> bool:
    """All of them have been written to at this level of the request; not so while some e-mails are to be tried again,
    or when others are asked by now."""
    left = RequestLink.objects.filter(request=request, level=request.level, user__in=users, sent_at=None)
    if left.filter(tries__lt=TRIES).exists():
        return False
    same = HumanRequest.objects.filter(id=request.id, version=request.version, notified__lt=request.level)
    return bool(same.update(notified=request.level))


def give_up_writing(request_id: UUID | str) -> None:
    """Nobody is written to about the request at its present level."""
    _unwritten().filter(id=request_id).update(notified=F("level"))


def forget_links(request_ids: Collection[UUID], level: int | None = None) -> None:
    """They are asked anew: whoever is meant gets a new link, and one that was sent before leads nowhere. `level`: of
    that one alone."""
    sent = RequestLink.objects.filter(request__in=request_ids)
    (sent if level is None else sent.filter(level=level)).delete()


def use_link(link: RequestLink) -> bool:
    """Its one use. In the transaction of the decision."""
    return bool(RequestLink.objects.filter(id=link.id, used_at=None).update(used_at=clock.now()))


def is_link_expired(link: RequestLink) -> bool:
    """By the database's clock."""
    return link.expires_at <= present()


def _unwritten() -> Any:
    return HumanRequest.objects.filter(status=HumanRequest.Status.PENDING, notified__lt=F("level"))


def _ready(links: Any) -> Any:
    return links.filter(Q(retry_at=None) | Q(retry_at__lte=clock.now()))


def _made() -> dict[str, Any]:
    at = clock.fixed()
    return {} if at is None else {"created_at": at}
