"""Reading web pages: `http_fetch(url)`, for named hosts alone, and never an address inside of the site's network."""

from __future__ import annotations

import asyncio
import codecs
import re
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ravi_django.agents.function_tool import FunctionTool
from ravi_django.capabilities.tools.addresses import is_permitted, networks
from ravi_django.capabilities.tools.html_text import readable
from ravi_django.kernel import ToolArgumentsError, ToolRefused

if TYPE_CHECKING:
    import httpx

Resolver = Callable[[str, int], Awaitable[list[str]]]

MAX_REDIRECTS = 5
MAX_URL = 4000  # characters
MAX_BYTES = 512 * 1024
PACKING = 64 * 1024  # bytes that a packed body may have beyond its limit, for headers and blocks without content
LOOKUP_THREADS = 4
_TEXT = re.compile(r"(?:text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-ndjson|yaml|toml))\Z")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z|\*\Z|[0-9a-f.:]+\Z")
_ODD_CODECS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}


@dataclass(frozen=True, slots=True)
class _Target:
    """An address that was looked up and found permitted: the connection goes there and nowhere else."""

    url: httpx.URL
    host: str  # as certificates name it
    address: str


class HttpFetchTool(FunctionTool):
    """GET (or HEAD) of an http or https URL for a model: status, final URL and text; HTML as its readable text.

    allow: the hosts, "example.org" or "*.example.org" (its subdomains); "*" is every public one. Nothing by default.
    max_bytes: of a body, unpacked; the rest is cut off. timeout_s: of a fetch, redirects included.
    ports: that may be asked besides 80 and 443. methods: "GET" alone, or "GET" and "HEAD".
    allow_addresses: networks ("10.1.0.0/16") that may be connected to though they are not public.
    resolver: `(host, port) -> addresses`, in place of the system's.

    Each address is checked after the host was looked up, on every redirect too, and the connection goes to the very
    address that was checked. Proxies of the environment are not used; no cookie or credential is sent.
    Raises ValueError that names the option which cannot be.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        *,
        methods: Iterable[str] = ("GET", "HEAD"),
        max_bytes: int = MAX_BYTES,
        timeout_s: float = 20.0,
        ports: Iterable[int] = (),
        allow_addresses: Iterable[str] = (),
        resolver: Resolver | None = None,
    ) -> None:
        super().__init__(self._fetch, name="http_fetch", timeout=timeout_s + 5.0)
        self._allow = [_checked_pattern(pattern) for pattern in _listed("allow", allow)]
        self._methods = frozenset(_listed("methods", methods))
        if not self._methods or not self._methods <= {"GET", "HEAD"}:
            raise ValueError(
                f"methods are GET and HEAD, not {sorted(self._methods)}; write a tool of your own for others"
            )
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._ports = frozenset({80, 443, *ports})
        self._networks = networks(allow_addresses)
        self._resolve = resolver or _resolve

    async def _fetch(self, url: str, method: Literal["GET", "HEAD"] = "GET") -> str:
        """Fetch a web page or another text over http or https, and read it as text.

        Args:
            url: The whole address, such as https://example.org/page
            method: GET reads it, HEAD asks for the status alone.
        """
        if method not in self._methods:
            raise ToolArgumentsError(f"{method} is not allowed here; use {' or '.join(self._methods)}", field="method")
        import httpx

        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(httpx, url, method)
        except TimeoutError:
            raise ToolRefused(f"there was no whole answer within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise ToolRefused(f"the server could not be reached: {error or type(error).__name__}") from None

    async def _follow(self, httpx: Any, url: str, method: str) -> str:
        asked = url
        for _ in range(MAX_REDIRECTS + 1):
            target = await self._target(httpx, asked)
            # A client for each: nothing of one server (cookies, connections) reaches the next.
            async with httpx.AsyncClient(verify=_trust(), trust_env=False, timeout=self._timeout_s) as client:
                request = self._request(client, target, method)
                response = await client.send(request, stream=True)
                try:
                    location = response.headers.get("location")
                    if response.status_code not in (301, 302, 303, 307, 308) or not location:
                        return await self._told(response, target, method)
                finally:
                    await response.aclose()
            try:
                asked = str(target.url.join(location))
            except httpx.InvalidURL:
                raise ToolRefused(f"{target.url} redirects to what is no address") from None
        raise ToolRefused(f"more than {MAX_REDIRECTS} redirects")

    def _request(self, client: Any, target: _Target, method: str) -> Any:
        """To the address that was checked, with the name that was asked for in Host and in the certificate's check."""
        return client.build_request(
            method,
            target.url.copy_with(host=target.address),
            headers={
                "Host": target.url.netloc.decode("ascii"),
                "User-Agent": "ravi-django",
                "Accept": "text/html, text/*, application/json, application/xml;q=0.9, */*;q=0.1",
                "Accept-Encoding": "gzip, identity",
            },
            extensions={"sni_hostname": target.host},
        )

    async def _target(self, httpx: Any, text: str) -> _Target:
        """Look the URL's host up, and refuse what must not be asked."""
        try:
            if len(text) > MAX_URL:
                raise ValueError
            url = httpx.URL(text)
            host = url.raw_host.decode("ascii").lower().rstrip(".").strip("[]")
            port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
        except (ValueError, TypeError, UnicodeError, httpx.InvalidURL):
            raise ToolRefused(f"{text[:200]!r} is no address of the web") from None
        if url.scheme not in ("http", "https") or not host:
            raise ToolRefused(f"{text[:200]!r} is no address of the web: it begins with http:// or https://")
        if url.userinfo:
            raise ToolRefused("an address with a user name or a password in it is not fetched")
        if port not in self._ports:
            raise ToolRefused(f"port {port} is not allowed; allowed are {', '.join(map(str, sorted(self._ports)))}")
        if not any(_matches(pattern, host) for pattern in self._allow):
            raise ToolRefused(f"the host {host!r} is not allowed; {self._allowed_words()}")
        return _Target(url.copy_with(fragment=None, host=host), host, await self._checked_address(host, port))

    async def _checked_address(self, host: str, port: int) -> str:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise ToolRefused(f"there is no host {host!r}")
        if not all(is_permitted(address, self._networks) for address in addresses):
            raise ToolRefused(f"the host {host!r} is in a network that must not be asked from here")
        return addresses[0]

    def _allowed_words(self) -> str:
        return f"allowed are {', '.join(self._allow)}" if self._allow else "no host is"

    async def _told(self, response: Any, target: _Target, method: str) -> str:
        kind, charset = _content_type(response.headers.get("content-type", ""))
        head = f"{response.status_code} {response.reason_phrase} {target.url} ({kind})".replace("  ", " ")
        if method == "HEAD":
            return head
        body, is_cut = await _bounded(response, self._max_bytes)
        if not body:
            return head
        if not _TEXT.match(kind):
            return f"{head}\n[a body that is no text is not shown]"
        text = body.decode(charset, errors="replace")
        if kind in ("text/html", "application/xhtml+xml"):
            text = await asyncio.to_thread(readable, text, str(target.url))
        marker = f"\n[cut here: only the first {self._max_bytes} bytes were read]" if is_cut else ""
        return f"{head}\n\n{text}{marker}"


@cache
def _trust() -> ssl.SSLContext:
    """Of all clients: to read the certificates takes the loop longer than anything else here."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


class _Lookups:
    """Threads of their own, and not many: names whose servers never answer must not take the loop's from others."""

    def __init__(self, threads: int = LOOKUP_THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "ravi-lookup")
        self._room = threading.Semaphore(threads * 4)

    async def run(self, host: str, port: int) -> Any:
        if not self._room.acquire(blocking=False):
            raise ToolRefused("too many hosts are being looked up at once; try again later")
        looking = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        looking.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(looking)


@cache
def _lookups() -> _Lookups:
    return _Lookups()


async def _resolve(host: str, port: int) -> list[str]:
    return [str(address[4][0]) for address in await _lookups().run(host, port)]


async def _bounded(response: Any, limit: int) -> tuple[bytes, bool]:
    """At most `limit` bytes of the body, unpacked piece by piece, and whether there was more."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ToolRefused(f"the server sent an encoding that was not asked for: {encoding[:40]!r}")
    unpacker = None if encoding in ("", "identity") else zlib.decompressobj(47 if encoding != "deflate" else 15)
    body = bytearray()
    raw = 0
    async for piece in _pieces(response):
        raw += len(piece)
        try:
            # One byte more than is kept says that there was more.
            body += piece if unpacker is None else unpacker.decompress(piece, limit + 1 - len(body))
        except zlib.error:
            raise ToolRefused("the server's answer could not be unpacked") from None
        if len(body) > limit:
            return bytes(body[:limit]), True
        if unpacker is not None and unpacker.eof:
            break  # what comes behind the end is no part of it
        if raw > limit + PACKING:
            return bytes(body), True
    return bytes(body), False


async def _pieces(response: Any) -> AsyncIterator[bytes]:
    async for piece in response.aiter_raw():
        yield piece


def _content_type(header: str) -> tuple[str, str]:
    kind, _, rest = header.partition(";")
    given = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", rest, re.IGNORECASE)
    return kind.strip().lower() or "text/plain", _codec(given[1] if given else "utf-8")


def _codec(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        return "utf-8"
    is_text = getattr(found, "_is_text_encoding", False) and found.name.replace("_", "-") not in _ODD_CODECS
    return found.name if is_text else "utf-8"


def _listed(option: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise ValueError(f"{option} is a list, not {values!r}; write [{values!r}]")
    return list(values)


def _checked_pattern(pattern: str) -> str:
    """A host as requests name it: lower case, international names in their ASCII form."""
    text = str(pattern).strip().lower().rstrip(".").strip("[]")
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    if not name.isascii():
        import httpx

        name = httpx.URL(scheme="https", host=name).raw_host.decode("ascii")
    if not _HOST.match(star + name):
        raise ValueError(
            f'allow has {pattern!r}; it takes hosts such as "example.org" or "*.example.org", without a path'
        )
    return star + name


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return pattern in ("*", host)
