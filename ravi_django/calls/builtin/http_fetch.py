"""The tool `http_fetch(url)` reads web pages of allowed hosts, and never addresses inside the site's network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.calls.net.html_text import decoded, readable
from ravi_django.calls.net.outbound import (
    REDIRECTS,
    Resolver,
    Target,
    answered,
    bounded,
    checked_address,
    failures_as,
    joined,
    networks,
    parsed,
    resolve,
)
from ravi_django.kernel import ToolArgumentsError, ToolRefused
from ravi_django.kernel.checks import check_seconds

MAX_REDIRECTS = 5
MAX_URL = 4000  # characters
MAX_BYTES = 512 * 1024
_ACCEPT = "text/html, text/*, application/json, application/xml;q=0.9, */*;q=0.1"
_TEXT = re.compile(r"(?:text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-ndjson|yaml|toml))\Z")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z|\*\Z|[0-9a-f.:]+\Z")


class HttpFetchTool(FunctionTool):
    """GET or HEAD of an http or https URL for a model: status, final URL and text; HTML as its readable text.

    allow: the hosts, "example.org" or "*.example.org" (its subdomains); "*" is every public host. None by default.
    max_bytes: of a decompressed body; the rest is cut off. timeout_s: for a fetch with its redirects.
    ports: allowed in addition to 80 and 443. methods: "GET", or "GET" and "HEAD".
    allow_addresses: private networks ("10.1.0.0/16") that may be connected to.
    resolver: `(host, port) -> addresses`, instead of the system's.

    The addresses of a host are checked on every redirect, and the connection goes to the checked address. Proxies of
    the environment are not used. No cookies or credentials are sent. Raises ValueError that names the invalid option.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        *,
        methods: Iterable[str] = ("GET", "HEAD"),
        max_bytes: int = MAX_BYTES,
        timeout_s: float | timedelta = 20.0,
        ports: Iterable[int] = (),
        allow_addresses: Iterable[str] = (),
        resolver: Resolver | None = None,
    ) -> None:
        timeout_s = check_seconds("timeout_s", timeout_s)
        super().__init__(self._fetch, name="http_fetch", timeout=timeout_s + 5.0)
        self._allow = [_checked_pattern(pattern) for pattern in _listed("allow", allow)]
        self._methods = frozenset(_listed("methods", methods))
        if not self._methods or not self._methods <= {"GET", "HEAD"}:
            raise ValueError(f"methods are GET and HEAD, not {sorted(self._methods)}; write your own tool for others")
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._ports = frozenset({80, 443, *ports})
        self._networks = networks(allow_addresses)
        self._resolve = resolver or resolve

    async def _fetch(self, url: str, method: Literal["GET", "HEAD"] = "GET") -> str:
        """Fetch a web page or another text over http or https, and read it as text.

        Args:
            url: The whole address, such as https://example.org/page
            method: GET reads it, HEAD asks for the status alone.
        """
        if method not in self._methods:
            raise ToolArgumentsError(f"{method} is not allowed here; use {' or '.join(self._methods)}", field="method")
        with failures_as(ToolRefused, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, method)

    async def _follow(self, url: str, method: str) -> str:
        asked = url
        for _ in range(MAX_REDIRECTS + 1):
            target = await self._target(asked)
            async with answered(method, target, {"Accept": _ACCEPT}, self._timeout_s) as response:
                location = response.headers.get("location")
                if response.status_code not in REDIRECTS or not location:
                    return await self._response_text(response, target, method)
            asked = joined(target, location)
        raise ToolRefused(f"more than {MAX_REDIRECTS} redirects")

    async def _target(self, text: str) -> Target:
        """Resolve the URL's host. Refuse ports, hosts and addresses that are not allowed."""
        url, host, port = parsed(text, MAX_URL)
        if port not in self._ports:
            raise ToolRefused(f"port {port} is not allowed; allowed are {', '.join(map(str, sorted(self._ports)))}")
        if not any(_matches(pattern, host) for pattern in self._allow):
            allowed = f"allowed are {', '.join(self._allow)}" if self._allow else "no host is allowed"
            raise ToolRefused(f"the host {host!r} is not allowed; {allowed}")
        return Target(url, host, await checked_address(host, port, self._networks, self._resolve))

    async def _response_text(self, response: Any, target: Target, method: str) -> str:
        content_type = response.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower() or "text/plain"
        head = f"{response.status_code} {response.reason_phrase} {target.url} ({kind})".replace("  ", " ")
        if method == "HEAD":
            return head
        body, is_cut = await bounded(response, self._max_bytes)
        if not body:
            return head
        if not _TEXT.match(kind):
            return f"{head}\n[the body is not text and is not shown]"
        text = decoded(body, content_type)
        if kind in ("text/html", "application/xhtml+xml"):
            text = await asyncio.to_thread(readable, text, str(target.url))
        marker = f"\n[cut here: only the first {self._max_bytes} bytes were read]" if is_cut else ""
        return f"{head}\n\n{text}{marker}"


def _listed(option: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise ValueError(f"{option} must be a list, not {values!r}; write [{values!r}]")
    return list(values)


def _checked_pattern(pattern: str) -> str:
    """A host pattern in lower case, with an international name in its ASCII form."""
    text = str(pattern).strip().lower().rstrip(".").strip("[]")
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    if not name.isascii():
        import httpx

        name = httpx.URL(scheme="https", host=name).raw_host.decode("ascii")
    if not _HOST.match(star + name):
        raise ValueError(f'allow has {pattern!r}; use hosts such as "example.org" or "*.example.org", without a path')
    return star + name


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return pattern in ("*", host)
