"""Recognise a file's media type by its content, and read RAVI["FILES"]."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ravi_django.conf import DEFAULTS, conf
from ravi_django.kernel.checks import did_you_mean

TEXT = "text/plain"
_MAGIC = {  # how each type begins
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF.{4}WEBP",
    "application/pdf": rb"%PDF-",
    "audio/wav": rb"RIFF.{4}WAVE",
    "audio/mpeg": rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]",  # a tag, or a frame of layer III
    "video/mp4": rb".{4}ftyp(?:iso[m2-6]|mp4[12]|avc1|M4V |dash)",
    "video/webm": rb"\x1a\x45\xdf\xa3.{0,60}?webm",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _MAGIC.items()}
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
KNOWN = (*_MAGIC, TEXT)


def type_of(content: bytes) -> str:
    """The media type; "" if it is not in KNOWN. HTML, SVG and other texts are plain text."""
    for name, pattern in _PATTERNS.items():
        if pattern.match(content):
            return name
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return ""
    return TEXT if text and not _NO_TEXT.search(text) else ""


def kind_of(media_type: str) -> str:
    """The type of the content block for a file: image, audio, video or document."""
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def setting(name: str) -> Any:
    return {**DEFAULTS["FILES"], **conf.FILES}[name]


def faults(given: Any) -> Iterator[str]:
    """Errors in RAVI["FILES"]."""
    if not isinstance(given, Mapping):
        yield f" is {given!r}, not a dict"
        return
    for name, value in given.items():
        if name not in DEFAULTS["FILES"]:
            known = DEFAULTS["FILES"]
            yield f" has an unknown name {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}"
        elif name == "types":
            if not isinstance(value, list | tuple):
                yield f"['types'] is {value!r}, not a list"
            else:
                yield from (f"['types'] has {one!r}; known: {', '.join(KNOWN)}" for one in value if one not in KNOWN)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            yield f"[{name!r}] is {value!r}, not a number above 0"
