"""Which addresses of images and documents are passed on. Whoever fetches them, litellm in this process or a provider's
server, must not be sent into a private network by what a user, a model or a tool has written."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ravi_django.capabilities.addresses import is_permitted

_CONFUSING = re.compile(r"[\\\s\x00-\x1f\x7f]")  # two parsers may find two hosts
_NAME = re.compile(r"(?:[a-z0-9_-]+\.)+(?!0x|\d+$)[a-z0-9-]+")  # what ends in a number is an address in disguise
_PRIVATE = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa")


def is_public(url: str) -> bool:
    """Whether it is https and its host a public address or a name of the public DNS, as far as its text tells."""
    if _CONFUSING.search(url):
        return False
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        _ = parts.port  # raises for what is none
    except ValueError:
        return False
    if parts.scheme != "https":
        return False
    return is_permitted(host) or (_NAME.fullmatch(host) is not None and not host.endswith(_PRIVATE))
