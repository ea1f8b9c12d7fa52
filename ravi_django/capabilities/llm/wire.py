"""Chat messages as the OpenAI wire format that litellm takes; one conversion a message, kept on the message."""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import (
    AudioBlock,
    CodeBlock,
    ContentBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    VideoBlock,
    text_of,
)
from ravi_django.kernel.llm import GenerationOptions

WireMessage = dict[str, Any]
Dialect = Literal["openai", "anthropic", "any"]  # what the provider behind litellm takes of media

PDF = "application/pdf"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICE_WORDS = frozenset({"auto", "none", "required"})


def to_wire(messages: Iterable[ChatMessage], *, thinking: bool = False, dialect: Dialect = "any") -> list[WireMessage]:
    """The messages as fresh dicts, free to be changed by the callee.

    A message with several tool results becomes several. With `thinking`, signed reasoning is sent back, as the
    providers that sign it require; the others refuse the field. What the `dialect` has no part for goes as text: a
    recording's transcript, a document's address.
    """
    wire: list[WireMessage] = []
    for message in messages:
        wire.extend(_fresh(part) for part in _converted(message, thinking, dialect))
    return wire


def tools_to_wire(options: GenerationOptions) -> dict[str, Any]:
    """The `tools` and `tool_choice` of a request; empty without tools."""
    if not options.tools:
        return {}
    request: dict[str, Any] = {
        "tools": [{"type": "function", "function": _fresh(schema)} for schema in options.tool_schemas]
    }
    if options.tool_choice in _CHOICE_WORDS:
        request["tool_choice"] = options.tool_choice
    elif options.tool_choice:
        request["tool_choice"] = {"type": "function", "function": {"name": options.tool_choice}}
    return request


def _converted(message: ChatMessage, thinking: bool, dialect: Dialect) -> list[WireMessage]:
    form = f"{dialect}+thinking" if thinking else dialect
    known: list[WireMessage] | None = message._wire.get(form)
    if known is None:
        known = message._wire[form] = _convert(message, thinking, dialect)
    return known


def _convert(message: ChatMessage, thinking: bool, dialect: Dialect) -> list[WireMessage]:
    if message.role is Role.ASSISTANT:
        return _assistant(message, thinking)
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    rest = [block for block in message.content if not isinstance(block, ToolResultBlock)]
    wire: list[WireMessage] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": _result_text(result)} for result in results
    ]
    if message.role is Role.SYSTEM:
        wire.append(_named(message, {"role": "system", "content": _text(rest)}))
    elif rest or not results:  # a tool message without a call to answer reads as the user's
        wire.append(_named(message, {"role": "user", "content": _parts(rest, dialect)}))
    return wire


def _assistant(message: ChatMessage, thinking: bool) -> list[WireMessage]:
    calls = [_tool_call(block) for block in message.tool_calls]
    text = _text([block for block in message.content if not isinstance(block, ToolUseBlock)])
    if not calls and not text:
        return []  # providers refuse an empty turn
    wire = _named(message, {"role": "assistant", "content": text or None})
    if calls:
        wire["tool_calls"] = calls
    if thinking and (signed := _signed_thinking(message.content)):
        wire["thinking_blocks"] = signed
    return [wire]


def _tool_call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.arguments, ensure_ascii=False)
    return {"id": block.call_id, "type": "function", "function": {"name": block.tool_name, "arguments": arguments}}


def _signed_thinking(blocks: Iterable[ContentBlock]) -> list[dict[str, Any]]:
    signed: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, ThinkingBlock) and block.signature:
            signed.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
        elif isinstance(block, UnknownBlock) and block.type == "redacted_thinking":
            signed.append(block.model_dump())
    return signed


def _result_text(result: ToolResultBlock) -> str:
    text = _text(result.content)
    if result.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"  # the format has no flag for it
    return text


def _parts(blocks: Sequence[ContentBlock], dialect: Dialect) -> str | list[dict[str, Any]]:
    parts = [_part(block, dialect) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts if part["text"])
    return [part for part in parts if part.get("text") != ""]


def _part(block: ContentBlock, dialect: Dialect) -> dict[str, Any]:
    match block:
        case ImageBlock() if address := _address(block):
            image = {"url": address} | ({"detail": block.detail} if block.detail else {})
            return {"type": "image_url", "image_url": image}
        case AudioBlock(data=str() as data) if dialect != "anthropic":
            kind = (block.mime_type or "audio/wav").rpartition("/")[2].removeprefix("x-")
            return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(kind, kind)}}
        case DocumentBlock(data=str() as data) if not _is_text(block):
            file = {"file_data": f"data:{block.mime_type or PDF};base64,{data}"}
            return {"type": "file", "file": file | {"filename": block.name or _file_name(block)}}
        case DocumentBlock(url=str() as url) if dialect == "anthropic":  # with a format it would be an uploaded file
            return {"type": "file", "file": {"file_id": url}}
        case DocumentBlock(url=str() as url) if dialect == "any":  # OpenAI takes no address here
            return {"type": "file", "file": {"file_id": url} | ({"format": block.mime_type} if block.mime_type else {})}
        case _:
            return {"type": "text", "text": _readable(block)}


def _text(blocks: Iterable[ContentBlock]) -> str:
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
        case ImageBlock() | VideoBlock() | DocumentBlock() | AudioBlock(transcript=None) if block.url:
            return f"[{block.type}: {block.url}]"
        case UnknownBlock(type="redacted_thinking"):
            return ""
        case _:
            return text_of([block])


def _file_name(block: DocumentBlock) -> str:
    """OpenAI wants one."""
    return f"document{mimetypes.guess_extension(block.mime_type or PDF) or ''}"


def _address(block: ImageBlock) -> str | None:
    if block.data:
        return f"data:{block.mime_type or 'image/png'};base64,{block.data}"
    return block.url


def _is_text(block: DocumentBlock) -> bool:
    kind = block.mime_type or ""
    return kind.startswith("text/") or kind == "application/json"


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data).decode(errors="replace")
    except ValueError:
        return "[document]"


def _named(message: ChatMessage, wire: WireMessage) -> WireMessage:
    if message.name and _NAME.fullmatch(message.name):  # other names are refused by the provider
        wire["name"] = message.name
    return wire


def _fresh(value: Any) -> Any:
    """A copy of a JSON value: litellm rewrites what it is given for some providers."""
    if isinstance(value, dict):
        return {key: _fresh(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [_fresh(item) if isinstance(item, dict | list) else item for item in value]
    return value
