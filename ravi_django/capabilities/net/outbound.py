"""HTTP requests to outside servers. Each host is resolved and its addresses are checked first. The connection goes to
the checked address, so a name cannot resolve to an internal address later (DNS rebinding)."""

from __future__ import annotations

import asyncio
import codecs
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ravi_django.capabilities.net.addresses import Network, is_permitted

if TYPE_CHECKING:
    import httpx

Resolver = Callable[[str, int], Awaitable[list[str]]]

PACKING = 64 * 1024  # bytes that a compressed body may have above the limit: headers and empty blocks
LOOKUP_THREADS = 4
REDIRECTS = (301, 302, 303, 307, 308)
_ODD_CODECS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}


class Unreachable(Exception):
    """No request was sent, or the response cannot be read. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL with its host and the checked address to connect to."""

    url: httpx.URL
    host: str  # the name in the certificate
    address: str


@contextmanager
def failures_as(kind: type[Exception], timeout_s: float) -> Iterator[None]:
    """Raise the failures of a request as `kind`."""
    import httpx

    try:
        yield
    except Unreachable as error:
        raise kind(str(error)) from None
    except TimeoutError:
        raise kind(f"there was no complete response within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        raise kind(f"the server could not be reached: {error or type(error).__name__}") from None


def parsed(text: str, longest: int) -> tuple[httpx.URL, str, int]:
    """The URL with its host and port. Raises Unreachable unless it is a valid http or https URL."""
    import httpx

    try:
        if len(text) > longest:
            raise ValueError
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii").lower().rstrip(".").strip("[]")
        port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    except (ValueError, TypeError, UnicodeError, httpx.InvalidURL):
        raise Unreachable(f"{text[:200]!r} is not a valid URL") from None
    if url.scheme not in ("http", "https") or not host:
        raise Unreachable(f"{text[:200]!r} is not a valid URL: it must begin with http:// or https://")
    if url.userinfo:
        raise Unreachable("a URL with a user name or a password is not allowed")
    return url.copy_with(fragment=None, host=host), host, port


def joined(target: Target, location: str) -> str:
    """The URL of a redirect."""
    import httpx

    try:
        return str(target.url.join(location))
    except httpx.InvalidURL:
        raise Unreachable(f"{target.url} redirects to an invalid URL") from None


async def checked_address(host: str, port: int, allowed: Iterable[Network], resolve: Resolver) -> str:
    """The address to connect to. Raises Unreachable if any address of the host is in a network that is not allowed."""
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError):
        addresses = []
    if not addresses:
        raise Unreachable(f"the host {host!r} was not found")
    if not all(is_permitted(address, allowed) for address in addresses):
        raise Unreachable(f"the host {host!r} is in a network that is not allowed")
    return addresses[0]


@asynccontextmanager
async def answered(method: str, target: Target, headers: Mapping[str, str], timeout_s: float) -> AsyncIterator[Any]:
    """The server's response with an unread body. Each request has its own client, so cookies and connections are not
    shared. The Host header and the certificate check use the host's name. Raises the errors of httpx."""
    import httpx

    async with httpx.AsyncClient(verify=trust(), trust_env=False, timeout=timeout_s) as client:
        request = client.build_request(
            method,
            target.url.copy_with(host=target.address),
            headers={
                "Host": target.url.netloc.decode("ascii"),
                "User-Agent": "ravi-django",
                "Accept-Encoding": "gzip, identity",
                **headers,
            },
            extensions={"sni_hostname": target.host},
        )
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


@cache
def trust() -> ssl.SSLContext:
    """Shared by all clients: reading the certificates is the slowest step."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


class Lookups:
    """DNS lookups in separate threads, so that slow name servers do not block the event loop's threads."""

    def __init__(self, threads: int = LOOKUP_THREADS, room: int = 0) -> None:
        self._threads = ThreadPoolExecutor(threads, "ravi-lookup")
        self._room = threading.Semaphore(room or threads * 4)

    async def addresses(self, host: str, port: int) -> list[str]:
        if not self._room.acquire(blocking=False):
            raise Unreachable("too many hosts are being looked up at once; try again later")
        lookup = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        lookup.add_done_callback(lambda _: self._room.release())
        return [str(address[4][0]) for address in await asyncio.wrap_future(lookup)]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@cache
def _lookups() -> Lookups:
    return Lookups()


async def resolve(host: str, port: int) -> list[str]:
    return await _lookups().addresses(host, port)


async def bounded(response: Any, limit: int) -> tuple[bytes, bool]:
    """At most `limit` bytes of the body, decompressed piece by piece, and whether there was more."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise Unreachable(f"the server sent an unsupported encoding: {encoding[:40]!r}")
    unpacker = None if encoding in ("", "identity") else zlib.decompressobj(47 if encoding != "deflate" else 15)
    body = bytearray()
    raw = 0
    async for piece in response.aiter_raw():
        raw += len(piece)
        try:
            # Read one byte more than is kept, to see whether there is more.
            body += piece if unpacker is None else unpacker.decompress(piece, limit + 1 - len(body))
        except zlib.error:
            raise Unreachable("the server's response could not be decompressed") from None
        if len(body) > limit:
            return bytes(body[:limit]), True
        if unpacker is not None and unpacker.eof:
            break  # ignore data after the end
        if raw > limit + PACKING:
            return bytes(body), True
    return bytes(body), False


def codec(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        return "utf-8"
    is_text = getattr(found, "_is_text_encoding", False) and found.name.replace("_", "-") not in _ODD_CODECS
    return found.name if is_text else "utf-8"
