"""Paths of the app's pages, and the token in a link to the page that one person decides on: signed, and good for
RAVI["REQUEST_LINK_S"]."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin
from uuid import UUID

from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from django.urls import get_script_prefix, reverse

from ravi_django.conf import conf
from ravi_django.kernel import NotFoundError
from ravi_django.models import RequestLink
from ravi_django.runtime.store import links

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
    if links.is_link_expired(link):
        raise ExpiredLinkError("the link has expired")
    return link


def _signer() -> TimestampSigner:
    return TimestampSigner(salt=_SALT, sep=".")
