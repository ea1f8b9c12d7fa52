"""HTTP requests to outside servers. Each host is resolved and its addresses are checked first. The connection goes to
the checked address, so a name cannot resolve to an internal address later (DNS rebinding)."""

from __future__ import annotations

import asyncio
import ipaddress
import re
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

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = (
    ipaddress.IPv6Network("::/96"),  # an IPv4 address in an old form
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # NAT64 of a local network
    ipaddress.IPv6Network("fec0::/10"),  # site-local
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays to 6to4
)


def networks(values: Iterable[str]) -> list[Network]:
    """Parse networks. Raises ValueError that names an invalid one."""
    if isinstance(values, str):
        raise ValueError(f"allow_addresses must be a list of networks, not {values!r}; write [{values!r}]")
    return [ipaddress.ip_network(text) for text in values]


def is_permitted(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether the address is public or in an allowed network. False for text that is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    forms = [address, *_inside(address)]
    if any(form.version == network.version and form in network for form in forms for network in allowed):
        return True
    return all(map(_is_public, forms))


def _inside(address: Address) -> list[Address]:
    """The IPv4 addresses inside an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    teredo = address.teredo or ()
    addresses = [address.ipv4_mapped, address.sixtofour, *teredo]
    if address in _NAT64:
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in addresses if inner is not None]


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return True  # the embedded address decides: it is checked too
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    known = address.is_reserved and address not in _NAT64
    return (address.is_global or address in _NAT64) and not (address.is_multicast or known)


if TYPE_CHECKING:
    import httpx

Resolver = Callable[[str, int], Awaitable[list[str]]]

PACKING = 64 * 1024  # bytes that a compressed body may have above the limit: headers and empty blocks
MEMBERS = 1000  # of a gzip body
LOOKUP_THREADS = 4
REDIRECTS = (301, 302, 303, 307, 308)


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
    """At most `limit` bytes of the body, decompressed piece by piece, and whether there was more. Raises Unreachable
    for a compressed body that is broken or ends too early."""
    header = response.headers.get("content-encoding", "").strip().lower()
    encodings = [name for name in re.split(r"[\s,]+", header) if name not in ("", "identity")]
    if encodings[1:] or (encodings and encodings[0] not in ("gzip", "x-gzip", "deflate")):
        raise Unreachable(f"the server sent an unsupported encoding: {header[:40]!r}")
    unpacker = _Unpacker(encodings[0]) if encodings else None
    body = bytearray()
    raw = 0
    async for piece in response.aiter_raw():
        raw += len(piece)
        # Read one byte more than is kept, to see whether there is more.
        body += piece if unpacker is None else unpacker.decompress(piece, limit + 1 - len(body))
        if len(body) > limit:
            return bytes(body[:limit]), True
        if unpacker is not None and unpacker.is_over:
            break  # ignore data after the end
        if raw > limit + PACKING:
            return bytes(body), True
    if raw and unpacker is not None and not unpacker.is_whole:
        raise Unreachable("the server's response is incomplete: its compressed data has no end")
    return bytes(body), False


class _Unpacker:
    """Decompresses gzip, a series of members (RFC 1952, 2.2), and deflate, with or without the zlib header."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._members = 0  # begun
        self._stream: Any = None  # of the member that has not ended
        self._rest = b""  # fewer bytes than a member's header
        self.is_over = False  # what follows is no member

    @property
    def is_whole(self) -> bool:
        return self._members > 0 and self._stream is None

    def decompress(self, piece: bytes, most: int) -> bytes:
        """At most `most` bytes. Raises Unreachable."""
        piece, unpacked = self._rest + piece, bytearray()
        while len(piece) > (self._stream is None) and len(unpacked) < most and not self.is_over:
            self._stream = self._stream or self._begun(piece)
            if self._stream is not None:
                try:
                    unpacked += self._stream.decompress(piece, most - len(unpacked))
                except zlib.error:
                    raise Unreachable("the server's response could not be decompressed") from None
                piece = self._stream.unused_data
                self._stream = None if self._stream.eof else self._stream
        self._rest = piece
        return bytes(unpacked)

    def _begun(self, head: bytes) -> Any:
        """The next member's decompressor; None after the last."""
        if self._members and not (self._is_gzip and head.startswith(b"\x1f\x8b")):
            self.is_over = True
            return None
        self._members += 1
        if self._members > MEMBERS:
            raise Unreachable(f"the server's response has more than {MEMBERS} gzip members")
        if self._is_gzip:
            return zlib.decompressobj(47)
        has_header = head[0] & 15 == 8 and int.from_bytes(head[:2]) % 31 == 0
        return zlib.decompressobj(15 if has_header else -15)
