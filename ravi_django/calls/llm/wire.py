"""Convert chat messages to OpenAI's wire format, which litellm accepts. Each message is converted once and keeps the
result.

Media are sent in the form that the provider accepts. URLs of images and documents are checked: a user, a model or a
tool must not make litellm or a provider's server fetch from a private network.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import urlsplit

from ravi_django.calls.llm import turns
from ravi_django.calls.net.outbound import is_permitted
from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import (
    AudioBlock,
    CodeBlock,
    ContentBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    UnknownBlock,
    VideoBlock,
    text_of,
)
from ravi_django.kernel.llm import GenerationOptions

WireMessage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """The form in which a model accepts messages."""

    family: str = ""  # of the model: it decides on media, and sees again what its models have signed
    addresses: Addresses = "public"
    tool_images: bool = True  # images and documents that its tools return are sent
    video: bool = False
    server: str = ""  # a digest of the address in place of the provider's: calls may have fields for it alone
    endpoint: str = ""  # of OpenAI's Responses: a digest of server and key, which alone can read its reasoning


_ANY = Form()

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICE_WORDS = frozenset({"auto", "none", "required"})


def to_wire(messages: Iterable[ChatMessage], form: Form = _ANY) -> list[WireMessage]:
    """The messages as new dicts, which the caller may change.

    A message with several tool results becomes several. Signed reasoning is sent back to its own family, see `turns`.
    Content without a part in the form is sent as text: a
    recording's transcript, a document's URL. For Anthropic, images and documents that tools returned are in the tool
    results. Other providers accept only text there: the media follow the turn's results in a user message.
    """
    wire: list[WireMessage] = []
    pending: list[dict[str, Any]] = []
    ids: dict[str, str] = {}  # of calls whose id in this request is another one
    key = repr(form)
    for message in messages:
        parts, media = _converted(message, form, key)
        if message.role is Role.ASSISTANT:
            ids.update(other_ids(message, form.family))
        pending += media
        for part in parts:
            if pending and part["role"] != "tool":
                wire.append(_user_message(pending))
                pending = []
            if part["role"] == "tool":
                call_id = part["tool_call_id"]
                part = {**part, "tool_call_id": ids.get(call_id) or turns.id_for(form.family, call_id)}
            if not (wire and _joined(wire[-1], part, form)):
                wire.append(fresh(part))
    wire += [_user_message(pending)] if pending else []
    if form.family == "mistral":
        return list(_answered(wire))
    return turns.without_open_work(wire) if form.family == "anthropic" else wire


def other_ids(message: ChatMessage, family: str) -> Iterator[tuple[str, str]]:
    for call in message.tool_calls:
        if call.origin and (other := turns.id_for(family, call.call_id, call.origin)) != call.call_id:
            yield call.call_id, other


def tools_to_wire(options: GenerationOptions) -> dict[str, Any]:
    """The `tools` and `tool_choice` of a request; empty without tools."""
    if not options.tools:
        return {}
    request: dict[str, Any] = {
        "tools": [{"type": "function", "function": fresh(schema)} for schema in options.tool_schemas]
    }
    if options.tool_choice in _CHOICE_WORDS:
        request["tool_choice"] = options.tool_choice
    elif options.tool_choice:
        request["tool_choice"] = {"type": "function", "function": {"name": options.tool_choice}}
    return request


def cache_key(session_id: str) -> str:
    """OpenAI's `prompt_cache_key` of a conversation."""
    return sha256(session_id.encode()).hexdigest()[:32]


def with_cache_marks(request: dict[str, Any], life: str | None) -> dict[str, Any]:
    """Mark what Claude's prompt cache keeps: what stands before a mark is read from the cache by the next request. A
    read costs a tenth of the price, a write a quarter more. Source: Anthropic, "Prompt caching".

    Marks the tools, the instructions and the last two turns of the user, tool results included. `life` is "1h", or
    None for five minutes. Four marks are the most that a request may have."""
    cached = {"type": "ephemeral"} | ({"ttl": life} if life else {})
    if request.get("tools"):
        request["tools"][-1]["cache_control"] = cached
    before, turns = "", 0
    for message in reversed(request["messages"]):
        role = "user" if message["role"] == "tool" else message["role"]
        if role == "system" or (role == "user" and before != "user" and turns < 2):
            turns += role == "user"
            _mark_message(message, cached)
        before = role
    return request


def _mark_message(message: WireMessage, cached: dict[str, str]) -> None:
    if message["role"] == "tool":
        message["cache_control"] = cached
        return
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if parts and (parts[-1].get("type") != "text" or parts[-1]["text"].strip()):
        message["content"] = [*parts[:-1], {**parts[-1], "cache_control": cached}]


def _converted(message: ChatMessage, form: Form, key: str) -> tuple[list[WireMessage], list[dict[str, Any]]]:
    """The wire messages, and the media that follow the turn's tool results."""
    known: tuple[list[WireMessage], list[dict[str, Any]]] | None = message._wire.get(key)
    if known is None:
        known = message._wire[key] = _convert(message, form), _media(message, form)
    return known


def _media(message: ChatMessage, form: Form) -> list[dict[str, Any]]:
    if message.role is not Role.TOOL or form.family == "anthropic" or not form.tool_images:
        return []
    media: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock) and (parts := media_of(block.content, form)):
            media += [{"type": "text", "text": f"From the result of {block.call_id}:"}, *parts]
    return media


def _joined(last: WireMessage, part: WireMessage, form: Form) -> bool:
    """Join two answers beside each other, of two agents, where turns have to alternate."""
    if form.family == "openai" or not last["role"] == part["role"] == "assistant" or "tool_calls" in last:
        return False
    if form.family == "mistral" and "tool_calls" in part:
        return False
    if isinstance(last["content"], list) or isinstance(part["content"], list):  # litellm joins Claude's
        return False
    content = "\n\n".join(text for text in (last["content"], part["content"]) if text)
    last |= {**fresh(part), "content": content or None}
    return True


def _user_message(media: list[dict[str, Any]]) -> WireMessage:
    return {"role": "user", "content": fresh(media)}


def _answered(wire: list[WireMessage]) -> Iterator[WireMessage]:
    """Mistral refuses a user's message after a tool's, and names of users."""
    before = ""
    for part in wire:
        if (before, part["role"]) == ("tool", "user"):
            yield {"role": "assistant", "content": "I have the results."}
        part.pop("name", None)
        before = part["role"]
        yield part


def _convert(message: ChatMessage, form: Form) -> list[WireMessage]:
    if message.role is Role.ASSISTANT:
        answers = turns.assistant(message, form.family, text_of_blocks, form.server)
        return [_named(message, turn) for turn in answers] if form.family == "openai" else answers
    is_tool = message.role is Role.TOOL  # in other messages, tool results are ignored
    results = [block for block in message.content if is_tool and isinstance(block, ToolResultBlock)]
    rest = [block for block in message.content if not (is_tool and isinstance(block, ToolResultBlock))]
    wire: list[WireMessage] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": _result(result, form)} for result in results
    ]
    if message.role is Role.SYSTEM:
        wire.append(_named(message, {"role": "system", "content": text_of_blocks(rest)}))
    elif rest or not results:  # a tool message without a result is sent as the user's
        wire.append(_named(message, {"role": "user", "content": parts_of(rest, form)}))
    return wire


def _result(result: ToolResultBlock, form: Form) -> str | list[dict[str, Any]]:
    text = result_text(result)
    if form.family == "anthropic" and form.tool_images and (media := media_of(result.content, form)):
        return [*([{"type": "text", "text": text}] if text else []), *media]
    return text


def result_text(result: ToolResultBlock) -> str:
    text = text_of_blocks(result.content)
    if result.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"  # the format has no flag for it
    return text


def _named(message: ChatMessage, wire: WireMessage) -> WireMessage:
    if message.name and _NAME.fullmatch(message.name):  # providers refuse other names
        wire["name"] = message.name
    return wire


def fresh(value: Any) -> Any:
    """A copy of a JSON value: litellm changes its arguments for some providers."""
    if isinstance(value, dict):
        return {key: fresh(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [fresh(item) if isinstance(item, dict | list) else item for item in value]
    return value


Addresses = Literal["public", "all", "none"]  # the URLs that are passed on; others are sent as text

PDF = "application/pdf"


def parts_of(blocks: Sequence[ContentBlock], form: Form) -> str | list[dict[str, Any]]:
    """The parts of a message; one str if all are text."""
    parts = [part_of(block, form) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts if part["text"])
    return [part for part in parts if part.get("text") != ""]


def media_of(blocks: Sequence[ContentBlock], form: Form) -> list[dict[str, Any]]:
    """The parts of the images and documents among the blocks, without those that are sent as text."""
    parts = (part_of(block, form) for block in blocks if isinstance(block, ImageBlock | DocumentBlock))
    return [part for part in parts if part["type"] != "text"]


def part_of(block: ContentBlock, form: Form) -> dict[str, Any]:
    match block:
        case ImageBlock() if address := _address(block, form):
            image = {"url": address} | ({"detail": block.detail} if block.detail else {})
            return {"type": "image_url", "image_url": image}
        case AudioBlock(data=str() as data) if form.family != "anthropic":
            kind = (block.mime_type or "audio/wav").rpartition("/")[2].removeprefix("x-")
            return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(kind, kind)}}
        case VideoBlock(data=str() as data) if form.video:
            return {"type": "file", "file": {"file_data": f"data:{block.mime_type or 'video/mp4'};base64,{data}"}}
        case DocumentBlock() if form.family == "mistral":  # it accepts documents in a form that litellm has not
            return {"type": "text", "text": readable(block)}
        case DocumentBlock(data=str() as data) if not _is_text(block):
            file = {"file_data": f"data:{block.mime_type or PDF};base64,{data}"}
            return {"type": "file", "file": file | {"filename": block.name or _file_name(block)}}
        case DocumentBlock(url=str() as url) if not _passes(url, form) or form.family == "openai":
            return {"type": "text", "text": readable(block)}  # OpenAI accepts no URL here
        case DocumentBlock(url=str() as url) if form.family == "anthropic":
            return {"type": "file", "file": {"file_id": url}}  # a `format` would make it an uploaded file
        case DocumentBlock(url=str() as url):
            return {"type": "file", "file": {"file_id": url} | ({"format": block.mime_type} if block.mime_type else {})}
        case _:
            return {"type": "text", "text": readable(block)}


def text_of_blocks(blocks: Iterable[ContentBlock]) -> str:
    return "\n".join(text for text in map(readable, blocks) if text)


def readable(block: ContentBlock) -> str:
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
        case ImageBlock() | VideoBlock() | DocumentBlock() | AudioBlock(transcript=None) if label := _label(block):
            return f"[{block.type}: {label}]"
        case UnknownBlock(type=kind) if turns.is_signed(kind):
            return ""
        case _:
            return text_of([block])


def _file_name(block: DocumentBlock) -> str:
    """OpenAI requires a file name."""
    return f"document{mimetypes.guess_extension(block.mime_type or PDF) or ''}"


def _address(block: ImageBlock, form: Form) -> str | None:
    if block.data:
        return f"data:{block.mime_type or 'image/png'};base64,{block.data}"
    return block.url if block.url and _passes(block.url, form) else None


def _label(block: ImageBlock | VideoBlock | DocumentBlock | AudioBlock) -> str:
    """The address of media, else their name."""
    if block.url:
        return "" if block.url.startswith("data:") else block.url
    return block.name or ""


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


_CONFUSING = re.compile(r"[\\\s\x00-\x1f\x7f]")  # two parsers may find different hosts
_HOST = re.compile(r"(?:[a-z0-9_-]+\.)+(?!0x|\d+$)[a-z0-9-]+")  # a host that ends in a number is an IP address
_PRIVATE = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa")


def is_public(url: str) -> bool:
    """Whether the URL is https and its host, judged by its text, is a public address or a name in the public DNS."""
    if _CONFUSING.search(url):
        return False
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    if parts.scheme != "https":
        return False
    return is_permitted(host) or (_HOST.fullmatch(host) is not None and not host.endswith(_PRIVATE))
