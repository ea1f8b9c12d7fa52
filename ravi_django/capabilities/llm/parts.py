"""Content blocks as the parts of a message on the wire, by what the provider takes of media."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ravi_django.capabilities.llm.remote import is_public
from ravi_django.kernel.content import (
    AudioBlock,
    CodeBlock,
    ContentBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    TextBlock,
    UnknownBlock,
    VideoBlock,
    text_of,
)

Dialect = Literal["openai", "anthropic", "any"]  # what the provider behind litellm takes of media
Addresses = Literal["public", "all", "none"]  # which are passed on; the others are text

PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class Form:
    """How a model takes its messages."""

    dialect: Dialect = "any"
    thinking: bool = False  # signed reasoning is sent back
    addresses: Addresses = "public"
    sees: bool = True  # images and documents that its tools return


def parts_of(blocks: Sequence[ContentBlock], form: Form) -> str | list[dict[str, Any]]:
    """Text alone is a str."""
    parts = [_part(block, form) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts if part["text"])
    return [part for part in parts if part.get("text") != ""]


def media_of(blocks: Sequence[ContentBlock], form: Form) -> list[dict[str, Any]]:
    """The images and documents among the blocks that have a part of their own."""
    parts = (_part(block, form) for block in blocks if isinstance(block, ImageBlock | DocumentBlock))
    return [part for part in parts if part["type"] != "text"]


def _part(block: ContentBlock, form: Form) -> dict[str, Any]:
    match block:
        case ImageBlock() if address := _address(block, form):
            image = {"url": address} | ({"detail": block.detail} if block.detail else {})
            return {"type": "image_url", "image_url": image}
        case AudioBlock(data=str() as data) if form.dialect != "anthropic":
            kind = (block.mime_type or "audio/wav").rpartition("/")[2].removeprefix("x-")
            return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(kind, kind)}}
        case DocumentBlock(data=str() as data) if not _is_text(block):
            file = {"file_data": f"data:{block.mime_type or PDF};base64,{data}"}
            return {"type": "file", "file": file | {"filename": block.name or _file_name(block)}}
        case DocumentBlock(url=str() as url) if not _passes(url, form) or form.dialect == "openai":
            return {"type": "text", "text": _readable(block)}  # OpenAI takes no address here
        case DocumentBlock(url=str() as url) if (
            form.dialect == "anthropic"
        ):  # with a format it would be an uploaded file
            return {"type": "file", "file": {"file_id": url}}
        case DocumentBlock(url=str() as url):
            return {"type": "file", "file": {"file_id": url} | ({"format": block.mime_type} if block.mime_type else {})}
        case _:
            return {"type": "text", "text": _readable(block)}


def text_of_blocks(blocks: Iterable[ContentBlock]) -> str:
    return "\n".join(text for text in map(_readable, blocks) if text)


def _readable(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case CodeBlock():
            return f"```{block.language}\n{block.code}\n```"
        case ErrorBlock():
            return f"Error: {block.message}"
        case DocumentBlock(data=str() as data) if _is_text(block):
            return _decoded(data)
        case ImageBlock(alt=str() as alt):
            return f"[image: {alt}]"
        case DocumentBlock(name=str() as name, url=None):
            return f"[document: {name}]"
        case ImageBlock() | VideoBlock() | DocumentBlock() | AudioBlock(transcript=None) if _is_address(block.url):
            return f"[{block.type}: {block.url}]"
        case UnknownBlock(type="redacted_thinking"):
            return ""
        case _:
            return text_of([block])


def _file_name(block: DocumentBlock) -> str:
    """OpenAI wants one."""
    return f"document{mimetypes.guess_extension(block.mime_type or PDF) or ''}"


def _address(block: ImageBlock, form: Form) -> str | None:
    if block.data:
        return f"data:{block.mime_type or 'image/png'};base64,{block.data}"
    return block.url if block.url and _passes(block.url, form) else None


def _is_address(url: str | None) -> bool:
    return bool(url) and not str(url).startswith("data:")


def _passes(url: str, form: Form) -> bool:
    if form.addresses == "all" or url.startswith("data:"):
        return True
    return form.addresses == "public" and is_public(url)


def _is_text(block: DocumentBlock) -> bool:
    kind = block.mime_type or ""
    return kind.startswith("text/") or kind == "application/json"


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data).decode(errors="replace")
    except ValueError:
        return "[document]"
