"""The content of a file as all providers accept it: its type, images scaled down, documents with few pages.

Pillow scales the images and pypdf counts the pages: the extra `files`. Without Pillow an image that is too big is
refused; without pypdf documents are taken unread.
"""

from __future__ import annotations

import base64
import re
import threading
from io import BytesIO
from typing import Any, NamedTuple

from ravi_django.kernel import ContentBlock, InputTooLargeError, InvalidInputError, TextBlock
from ravi_django.kernel.content import DocumentBlock, ImageBlock

SIDE = 2_000  # pixels, of an image's longer side: Claude accepts no more in a request with over 20 images
MAX_BASE64 = 3_500_000  # characters of an image
MAX_PIXELS = 50_000_000  # of an image that is decoded: 200 MB
MAX_PAGES = 100  # of a PDF
PDF = "application/pdf"
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


class Content(NamedTuple):
    content: bytes
    type: str
    pages: int | None = None  # of a PDF, if known


def fitted(content: bytes, media_type: str, max_base64: int = MAX_BASE64) -> Content:
    """The content as all providers accept it; of an animation the first picture. Slow for a big image: not for the
    event loop. Raises InputTooLargeError for a PDF of too many pages and for an image that cannot be scaled."""
    if media_type == PDF:
        pages = _pages(content)
        if pages is not None and pages > MAX_PAGES:
            raise InputTooLargeError(f"the document has {pages} pages, and at most {MAX_PAGES}", field="file")
        return Content(content, media_type, pages)
    if kind_of(media_type) != "image":
        return Content(content, media_type)
    width, height = _pixels(content, media_type) or (0, 0)
    if max(width, height) <= SIDE and len(content) * 4 // 3 <= max_base64:
        return Content(content, media_type)
    size = f"the image has {width} by {height} pixels and {len(content)} bytes"
    if width * height > MAX_PIXELS:
        raise InputTooLargeError(f"{size}; at most {MAX_PIXELS} pixels are decoded", field="file")
    try:
        return _scaled(content, max_base64)
    except ImportError:
        most = f"at most {SIDE} pixels a side and {max_base64 * 3 // 4} bytes"
        raise InputTooLargeError(f"{size}; without ravi-django[files] {most}", field="file") from None
    except Exception as error:
        raise InvalidInputError(f"{size}, and cannot be scaled: {error!s:.200}", field="file") from None


def fitted_block(block: ContentBlock, max_base64: int) -> ContentBlock:
    """An inline image or PDF as `fitted`, with the type of its content; as text if it cannot be sent."""
    if not isinstance(block, ImageBlock | DocumentBlock):
        return block
    url = block.url or ""
    data = block.data or (url.partition(";base64,")[2] if url.startswith("data:") else "")
    try:
        content = base64.b64decode(data)
    except ValueError:
        return block
    media_type = type_of(content)
    if kind_of(media_type) != block.type or media_type == TEXT:
        return block
    try:
        scaled = fitted(content, media_type, min(max_base64, MAX_BASE64))
    except InvalidInputError as error:
        return TextBlock(
            text=f"[{block.type}: {block.name or getattr(block, 'alt', None) or 'inline'}; not sent: {error}]"
        )
    if scaled.content is not content:
        data = base64.b64encode(scaled.content).decode()
    return block.model_copy(update={"data": data, "url": None, "mime_type": scaled.type})


def _pages(content: bytes) -> int | None:
    try:
        from pypdf import PdfReader

        reader = PdfReader(BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidInputError("the document needs a password; upload it without one", field="file")
        return int(reader.root_object["/Pages"]["/Count"])  # type: ignore[index]
    except InvalidInputError:
        raise
    except Exception:  # a broken file, or one that only its reader can open
        return None


def _pixels(content: bytes, media_type: str) -> tuple[int, int] | None:
    """Width and height by the header; None if it is broken."""

    def number(at: int, length: int, order: Any = "little") -> int:
        return int.from_bytes(content[at : at + length], order)

    match media_type, content[12:16]:
        case "image/png", b"IHDR":
            return number(16, 4, "big"), number(20, 4, "big")
        case "image/gif", _:
            return number(6, 2), number(8, 2)
        case "image/webp", b"VP8X":
            return number(24, 3) + 1, number(27, 3) + 1
        case "image/webp", b"VP8L":
            return (number(21, 4) & 0x3FFF) + 1, (number(21, 4) >> 14 & 0x3FFF) + 1
        case "image/webp", b"VP8 ":
            return number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF
    at = 2
    for _ in range(1_000):  # the segments of a JPEG
        if content[at : at + 1] != b"\xff":
            break
        marker = content[at + 1 : at + 2]
        if b"\xc0" <= marker <= b"\xcf" and marker not in b"\xc4\xc8\xcc":
            return number(at + 7, 2, "big"), number(at + 5, 2, "big")
        at += 1 if marker == b"\xff" else 2 + number(at + 2, 2, "big")
    return None


_decoding = threading.Lock()  # one image at a time, for the memory


def _scaled(content: bytes, max_base64: int) -> Content:
    """A JPEG stays one; others become a PNG, or a JPEG if a PNG is too big."""
    from PIL import Image, ImageOps

    with _decoding, Image.open(BytesIO(content), formats=("PNG", "JPEG", "GIF", "WEBP")) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has {image.width} by {image.height} pixels")
        is_photo = image.format in ("JPEG", "MPO")  # MPO: a phone's, with a second picture
        if is_photo:
            image.thumbnail((SIDE, SIDE))  # decodes at a fraction of the size
        is_deep = image.mode.startswith("I")  # 16 bits a pixel
        upright = ImageOps.exif_transpose(image.point(lambda grey: grey / 256).convert("L") if is_deep else image)
        picture = upright.convert("RGB" if is_photo else "RGBA")
        for side in (SIDE, 1_400, 1_000, 700, 400):
            picture.thumbnail((side, side))
            for form in ("JPEG",) if is_photo else ("PNG", "JPEG"):
                body = _saved(picture, form)
                if len(body) * 4 // 3 + 4 <= max_base64:
                    return Content(body, f"image/{form.lower()}")
    raise ValueError(f"it has more than {max_base64} characters as base64")


def _saved(picture: Any, form: str) -> bytes:
    from PIL import Image

    if form == "JPEG" and picture.mode == "RGBA":
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture).convert("RGB")
    file = BytesIO()
    picture.save(file, form, quality=85)
    return file.getvalue()
