"""Content blocks, the parts of a chat message. A block of an unknown type survives a round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, model_serializer
from pydantic_core import to_json


class Block(BaseModel):
    """Common base; blocks are immutable."""

    model_config = ConfigDict(frozen=True)


class TextBlock(Block):
    """A text."""

    type: Literal["text"] = "text"
    text: str  # Markdown or plain


class CodeBlock(Block):
    """Source code. `language`: its name in lower case, or empty."""

    type: Literal["code"] = "code"
    code: str  # the source code
    language: str = ""


class DataBlock(Block):
    """JSON, for programs; a model reads it as text."""

    type: Literal["data"] = "data"
    data: Any = None  # any JSON value; null is one


class ErrorBlock(Block):
    """An error that is shown in a message. `error_type`: the name of its class."""

    type: Literal["error"] = "error"
    message: str  # for people
    error_type: str = ""
    details: dict[str, Any] | None = None  # JSON, for programs


class MediaBlock(Block):
    """Bytes by address or inline, as providers take them, or an uploaded file; `data` is base64."""

    url: str | None = None  # http, https or a data URL
    data: str | None = None  # the bytes as base64
    mime_type: str | None = None  # such as image/png
    file: str | None = None  # id of an uploaded file; the engine reads its content for each model call
    name: str | None = None  # of the file; for an uploaded one the engine sets it with `mime_type` and `size`
    size: int | None = None  # bytes


class ImageBlock(MediaBlock):
    """An image, as a URL, base64 data or an uploaded file."""

    type: Literal["image"] = "image"
    detail: str | None = None  # "low", "high" or "auto", for providers that know it
    alt: str | None = None  # a text in place of the image


class AudioBlock(MediaBlock):
    """A recording. A model that takes no audio reads its transcript."""

    type: Literal["audio"] = "audio"
    transcript: str | None = None  # the spoken text


class VideoBlock(MediaBlock):
    """A video, for models that take videos."""

    type: Literal["video"] = "video"


class DocumentBlock(MediaBlock):
    """A document, such as a PDF."""

    type: Literal["document"] = "document"


Media: TypeAlias = ImageBlock | AudioBlock | VideoBlock | DocumentBlock


class ToolUseBlock(Block):
    """The model asks for a tool call; `call_id` pairs it with its result."""

    type: Literal["tool_use"] = "tool_use"
    tool_name: str  # as the model wrote it
    arguments: dict[str, Any] = Field(default_factory=dict)  # JSON, by parameter
    call_id: str
    hidden: Literal[True] | None = None  # its tool is visible to staff alone; the engine sets it
    origin: dict[str, Any] | None = None  # its model's `family`, with the `id` and the text of `arguments` as they came


class ThinkingBlock(Block):
    """Thoughts of the model before its answer."""

    type: Literal["thinking"] = "thinking"
    text: str  # may be empty, if the provider hides it
    signature: str | None = None  # the provider's proof; sent back unchanged, to models of the `origin`'s family
    origin: dict[str, Any] | None = None  # as of ToolUseBlock


class UIResourceBlock(Block):
    """A user interface that a tool returns: HTML in `text`, or bytes in `data`."""

    type: Literal["ui_resource"] = "ui_resource"
    uri: str  # its address, such as ui://shop/cart
    mime_type: str = "text/html"  # of `text` or `data`
    text: str | None = None
    data: str | None = None  # base64


class UnknownBlock(Block):
    """A block of a type that this release does not know, stored unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str  # as it was sent

    @model_serializer
    def _as_it_came(self) -> dict[str, Any]:
        return {"type": self.type, **(self.model_extra or {})}  # nulls too: `exclude_none` is for known fields


class ToolResultBlock(Block):
    """The result of a tool call; every ToolUseBlock gets exactly one."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str  # that of its ToolUseBlock
    content: list[ContentBlock] = Field(default_factory=list)  # what the model reads
    is_error: bool = False  # whether the call failed or was refused
    hidden: Literal[True] | None = None  # as of the call

    @property
    def text(self) -> str:
        """The readable text of the content."""
        return text_of(self.content)


_KNOWN: tuple[type[Block], ...] = (
    *(TextBlock, CodeBlock, DataBlock, ErrorBlock, ImageBlock, AudioBlock, VideoBlock, DocumentBlock),
    *(ToolUseBlock, ToolResultBlock, ThinkingBlock, UIResourceBlock),
)
BLOCK_TYPES: dict[str, type[Block]] = {block.model_fields["type"].default: block for block in _KNOWN}

# What a client may send; the other types are written by models, tools and the engine.
FROM_CLIENTS = ("text", "image", "audio", "video", "document", "code", "data")


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in BLOCK_TYPES else "unknown"


ContentBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[CodeBlock, Tag("code")]
    | Annotated[DataBlock, Tag("data")]
    | Annotated[ErrorBlock, Tag("error")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[AudioBlock, Tag("audio")]
    | Annotated[VideoBlock, Tag("video")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[UIResourceBlock, Tag("ui_resource")]
    | Annotated[UnknownBlock, Tag("unknown")],
    Discriminator(_tag),
]

ToolResultBlock.model_rebuild()

blocks_adapter: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])


def blocks_json(blocks: list[ContentBlock]) -> list[dict[str, Any]]:
    """Blocks as JSON without unset fields; reads back equal. The contents of a block (arguments, data) stay whole,
    nulls too."""
    return [_block_json(block) for block in blocks]


def _block_json(block: ContentBlock) -> dict[str, Any]:
    body = block.model_dump(mode="json")
    if isinstance(block, ToolResultBlock):
        body["content"] = blocks_json(block.content)
    if isinstance(block, DataBlock | UnknownBlock):
        return body
    return {name: value for name, value in body.items() if value is not None}


def media_of(blocks: list[ContentBlock]) -> Iterator[Media]:
    """The images, recordings, videos and documents among the blocks, also in tool results."""
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            yield from media_of(block.content)
        elif isinstance(block, MediaBlock):
            yield block


def text_of(blocks: list[ContentBlock]) -> str:
    """The readable text of blocks, one line a block; a binary block is its kind in brackets."""
    return "\n".join(part for part in map(_readable, blocks) if part)


def _readable(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case CodeBlock():
            return block.code
        case DataBlock():
            return to_json(block.data).decode()
        case ErrorBlock():
            return block.message
        case ThinkingBlock() | ToolUseBlock():
            return ""
        case UnknownBlock() if "origin" in (block.model_extra or {}):  # for its provider alone
            return ""
        case ToolResultBlock():
            return block.text
        case UIResourceBlock():
            return block.text or f"[{block.uri}]"
        case AudioBlock(transcript=str() as transcript):
            return transcript
        case _:
            return f"[{block.type}]"
