"""Check a feed with the C parser before feedparser reads it: that it is well-formed XML, and within limits that keep
feedparser fast."""

from __future__ import annotations

import binascii
import html
import re
from xml.parsers import expat

from ravi_django.wings.feeds.fetching.adapter import SourceError

MAX_DEPTH = 100
MAX_ELEMENTS = 150_000
MAX_ATTRIBUTES = 50  # of one element
MAX_NAMESPACES = 100
MAX_WORD = 80  # characters of a word in a person's name or address: feedparser searches for an @ after each character
MAX_TAGS = 10_000  # of a feed: feedparser compares each with all others of its item
_PEOPLE = {"author", "creator", "managingeditor", "webmaster", "publisher", "contributor", "owner", "name", "email"}
_LISTS = {"keywords", "tags"}  # several in one element, separated by commas
_TAGS = {"category", "subject", *_LISTS}
_WATCHED = _PEOPLE | _TAGS
_WORD = re.compile(r"[\w.+-]+")
_KNOWN = {"amp", "lt", "gt", "quot", "apos"}
_ENTITY = re.compile(r"&(#[0-9]{1,7};|#[xX][0-9a-fA-F]{1,6};|[A-Za-z][A-Za-z0-9]{1,31};)?")
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,500}\?>")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class _IllFormed(Exception):
    pass


def checked(text: str) -> bytes:
    """The document as UTF-8, with bare ampersands and HTML entities fixed. Raises SourceError when it is still not
    well-formed, declares entities, or is nested too deeply."""
    text = _DECLARATION.sub("", _NO_XML.sub(" ", text.lstrip("\ufeff")), count=1).lstrip()
    try:
        return _scanned(text)
    except _IllFormed:
        pass
    try:
        return _scanned(_ENTITY.sub(_fixed, text))
    except _IllFormed as error:
        raise SourceError(f"the feed is not well-formed XML: {error}") from None


def _fixed(match: re.Match[str]) -> str:
    name = (match[1] or "").rstrip(";")
    if name in _KNOWN:
        return match[0]
    if name.startswith("#"):  # may name a character that XML does not allow
        return html.escape(_NO_XML.sub(" ", html.unescape(match[0])))
    meant = html.unescape(match[0]) if name else match[0]
    return f"&amp;{match[0][1:]}" if meant == match[0] else html.escape(meant)


class _Scan:
    def __init__(self) -> None:
        self._depth = self._elements = self._namespaces = 0
        self._tags = 0
        self._watched = 0  # depth inside an element of people or tags
        self._kinds: set[str] = set()  # of the elements there
        self._text: list[str] = []  # there
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._entity
        parser.SkippedEntityHandler = self._skipped

    def read(self, body: bytes) -> None:
        self._parser.Parse(body, True)

    def _start(self, name: str, attributes: list[str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise SourceError(f"the feed is nested more than {MAX_DEPTH} elements deep")
        if self._elements > MAX_ELEMENTS:
            raise SourceError(f"the feed has more than {MAX_ELEMENTS} elements")
        if len(attributes) > 2 * MAX_ATTRIBUTES:
            raise SourceError(f"the feed has an element with more than {MAX_ATTRIBUTES} attributes")
        self._namespaces += sum(name.startswith("xmlns") for name in attributes[::2])
        if self._namespaces > MAX_NAMESPACES:
            raise SourceError(f"the feed declares more than {MAX_NAMESPACES} namespaces")
        kind = re.split("[:_]", name.lower())[-1]  # feedparser reads dc_subject as dc:subject
        if kind in _TAGS:
            self._count_tags(1)
        if self._watched or kind in _WATCHED:
            self._watched += 1
            self._kinds.add(kind)
            self._parser.CharacterDataHandler = self._text.append

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._watched:
            self._watched -= 1
            if not self._watched:
                self._parser.CharacterDataHandler = None
                self._check(name, "".join(self._text))
                self._text.clear()
                self._kinds.clear()

    def _check(self, name: str, text: str) -> None:
        forms = [text, _decoded(text)]
        if not self._kinds.isdisjoint(_LISTS):
            self._count_tags(max(form.count(",") for form in forms))
        if self._kinds.isdisjoint(_PEOPLE):
            return
        if any(len(word[0]) > MAX_WORD for form in forms for word in _WORD.finditer(form)):
            raise SourceError(f"the feed has a word of more than {MAX_WORD} characters in <{name[:40]}>")

    def _count_tags(self, more: int) -> None:
        self._tags += more
        if self._tags > MAX_TAGS:
            raise SourceError(f"the feed has more than {MAX_TAGS} categories and keywords")

    def _entity(self, *declared: object) -> None:
        raise SourceError("the feed declares entities, which is not allowed")

    def _skipped(self, name: str, is_parameter: bool) -> None:
        raise _IllFormed(f"undefined entity &{name[:40]};")


def _decoded(text: str) -> str:
    """The text as feedparser decodes it where the content is declared as base64."""
    try:
        return binascii.a2b_base64(text.encode()).decode() if len(text) > MAX_WORD else ""
    except ValueError:
        return ""


def _scanned(text: str) -> bytes:
    body = b'<?xml version="1.0" encoding="utf-8"?>\n' + text.encode()
    try:
        _Scan().read(body)
    except expat.ExpatError as error:
        raise _IllFormed(str(error)) from None
    return body
