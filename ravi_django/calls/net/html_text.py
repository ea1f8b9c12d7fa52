"""The text of a web page: decoded and without markup, in bounded time."""

from __future__ import annotations

import codecs
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


# Labels of encodings mean what https://encoding.spec.whatwg.org/#names-and-labels says, which is often more than
# Python's codec of that name: gb2312 is GBK, shift_jis is Windows-31J, iso-8859-1 is windows-1252.
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_HEAD = 4096  # bytes of a page that are searched for its encoding
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_DECLARATION = re.compile(rb"\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]+)")
_META = re.compile(rb"<meta\s[^>]{0,500}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_ISO_8859 = re.compile(r"(?:cs)?iso[-_]?8859[-_]?(\d{1,2})(?:-?[ei])?\Z")
_ODD_CODECS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem", "utf-7"}
_WIDER = {  # Python's codec: the codec that the web uses for its labels
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949",
    "utf-16": "utf-16-le",
}  # fmt: skip
_LABELS = {  # that Python does not know, without x-
    label: codec
    for codec, labels in {
        "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8",
        "iso8859-7": "sun_eu_greek",
        "iso8859-8": "visual logical",
        "iso8859-15": "csisolatin9",
        "koi8-r": "koi koi8",
        "koi8-u": "koi8-ru",
        "mac-roman": "mac csmacintosh",
        "mac-cyrillic": "mac-ukrainian",
        "cp874": "dos-874 windows-874",
        "cp1252": "user-defined",
        "gb18030": "csgb2312 gb_2312 gb_2312-80",
        "big5hkscs": "cn-big5",
        "euc_jp": "cseucpkdfmtjapanese",
        "cp932": "windows-31j",
        "cp949": "cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601 windows-949",
        "utf-16-be": "unicodefffe",
        "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff",
    }.items()
    for label in labels.split()
}


def decoded(body: bytes, kind: str = "") -> str:
    """The text of a body. `kind` is its Content-Type. As in browsers a byte order mark counts first, then the label in
    `kind`, then the one in the XML declaration or, in HTML, in `<meta>`. Without a known label it is UTF-8. Bytes that
    the encoding does not have become U+FFFD."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, errors="replace")
    sent = _CHARSET.search(kind)
    return body.decode((sent and _codec(sent[1])) or _declared(body, kind) or "utf-8", errors="replace")


def _declared(body: bytes, kind: str) -> str:
    match = _DECLARATION.match(body)
    if not match and "html" in kind.lower():
        match = _META.search(_COMMENT.sub(b"", body[:_HEAD]))
    name = _codec(match[1].decode("ascii", errors="replace")) if match else ""
    return "utf-8" if name.startswith("utf-16") else name  # a declaration in UTF-16 is not read as ASCII


def _codec(label: str) -> str:
    """Python's name of the encoding; empty when the label is unknown."""
    label = re.sub(r"\A(?:x-)+", "", label.lower())
    label = _LABELS.get(label) or _ISO_8859.sub(r"iso8859-\1", label)
    try:
        codec = codecs.lookup(label)
    except (LookupError, ValueError):
        return ""
    is_text = getattr(codec, "_is_text_encoding", False) and codec.name.replace("_", "-") not in _ODD_CODECS
    return _WIDER.get(codec.name, codec.name) if is_text else ""
