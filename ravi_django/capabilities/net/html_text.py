"""The readable text of an HTML page, in bounded time."""

from __future__ import annotations

import re
import time
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urljoin

_SILENT = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"}
_BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "li", "main", "nav", "ol",
    "option", "p", "pre", "section", "table", "td", "th", "title", "tr", "ul",
}  # fmt: skip
_PIECE = 16 * 1024  # characters per call of the parser, which scans an unfinished tag again in each call
_BOUND_S = 2.0
_TAG = re.compile(r"</?[a-zA-Z!?]")


def readable(html: str, base: str = "") -> str:
    """Text with one line per block, without scripts and styles. Links become `text <URL>`, absolute by `base`."""
    reader = _Reader(base)
    give_up = time.monotonic() + _BOUND_S
    for start in range(0, len(html), _PIECE):
        reader.feed(html[start : start + _PIECE])
        if time.monotonic() > give_up:  # a page made to be slow
            break
    # Not `close`: the rest is an unfinished tag, or text before the end of an entity.
    if not _TAG.match(reader.rawdata):
        reader.handle_data(unescape(reader.rawdata))
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(reader.parts).split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._base = base
        self._silent: str | None = None  # the element whose content is skipped
        self._nested = 0  # open elements of the same name inside it
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent is not None:
            self._nested += tag == self._silent
            return
        if tag in _SILENT:
            self._silent, self._nested = tag, 0
        elif tag in _BLOCKS:
            self.parts.append("\n")
        elif tag == "a":
            self._link = self._address(dict(attrs).get("href") or "")
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.parts.append(f"[{alt}]")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _SILENT:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._silent is not None:
            if tag == self._silent:
                self._nested -= 1
                self._silent = None if self._nested < 0 else self._silent
        elif tag in _BLOCKS:
            self.parts.append("\n")
        elif tag == "a" and self._link:
            self.parts.append(f" <{self._link}>")
            self._link = ""

    def handle_data(self, data: str) -> None:
        if self._silent is None:
            self.parts.append(data.replace("\n", " "))

    def _address(self, href: str) -> str:
        if href.startswith("#"):
            return ""
        try:
            address = urljoin(self._base, href)
        except ValueError:
            return ""
        return address if address.startswith(("http://", "https://")) else ""
