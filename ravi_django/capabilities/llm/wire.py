"""Chat messages as the OpenAI wire format that litellm takes; one conversion a message, kept on the message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ravi_django.capabilities.llm.parts import Form, media_of, parts_of, text_of_blocks
from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import ContentBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock, UnknownBlock
from ravi_django.kernel.llm import GenerationOptions

WireMessage = dict[str, Any]

_ANY = Form()
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_CHOICE_WORDS = frozenset({"auto", "none", "required"})


def to_wire(messages: Iterable[ChatMessage], form: Form = _ANY) -> list[WireMessage]:
    """The messages as fresh dicts, free to be changed by the callee.

    A message with several tool results becomes several. Signed reasoning is sent back where the form says so, as the
    providers that sign it require; the others refuse the field. What the form has no part for goes as text: a
    recording's transcript, a document's address. The images and documents that tools returned are in their results
    for Anthropic, and in a user message behind the turn's results for the others, whose results are text.
    """
    wire: list[WireMessage] = []
    shown: list[dict[str, Any]] = []
    key = repr(form)
    for message in messages:
        parts, media = _converted(message, form, key)
        shown += media
        for part in parts:
            if shown and part["role"] != "tool":
                wire.append(_shown(shown))
                shown = []
            wire.append(_fresh(part))
    return [*wire, _shown(shown)] if shown else wire


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


def _converted(message: ChatMessage, form: Form, key: str) -> tuple[list[WireMessage], list[dict[str, Any]]]:
    """The message, and what is to be shown behind the results that it is one of."""
    known: tuple[list[WireMessage], list[dict[str, Any]]] | None = message._wire.get(key)
    if known is None:
        known = message._wire[key] = _convert(message, form), _media(message, form)
    return known


def _media(message: ChatMessage, form: Form) -> list[dict[str, Any]]:
    if message.role is not Role.TOOL or form.dialect == "anthropic" or not form.sees:
        return []
    media: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock) and (found := media_of(block.content, form)):
            media += [{"type": "text", "text": f"From the result of {block.call_id}:"}, *found]
    return media


def _shown(media: list[dict[str, Any]]) -> WireMessage:
    return {"role": "user", "content": _fresh(media)}


def _convert(message: ChatMessage, form: Form) -> list[WireMessage]:
    if message.role is Role.ASSISTANT:
        return _assistant(message, form.thinking)
    is_tool = message.role is Role.TOOL  # no other message may claim what a tool returned
    results = [block for block in message.content if is_tool and isinstance(block, ToolResultBlock)]
    rest = [block for block in message.content if not (is_tool and isinstance(block, ToolResultBlock))]
    wire: list[WireMessage] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": _result(result, form)} for result in results
    ]
    if message.role is Role.SYSTEM:
        wire.append(_named(message, {"role": "system", "content": text_of_blocks(rest)}))
    elif rest or not results:  # a tool message without a call to answer reads as the user's
        wire.append(_named(message, {"role": "user", "content": parts_of(rest, form)}))
    return wire


def _assistant(message: ChatMessage, thinking: bool) -> list[WireMessage]:
    calls = [_tool_call(block) for block in message.tool_calls]
    text = text_of_blocks([block for block in message.content if not isinstance(block, ToolUseBlock)])
    if not calls and not text:
        return []  # providers refuse an empty turn
    wire = _named(message, {"role": "assistant", "content": text or None})
    if calls:
        wire["tool_calls"] = calls
    if thinking and (signed := _signed_thinking(message.content)):
        wire["thinking_blocks"] = signed
    return [wire]


def _tool_call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.arguments, ensure_ascii=False, sort_keys=True)  # jsonb returns them in another order
    return {"id": block.call_id, "type": "function", "function": {"name": _tool_name(block), "arguments": arguments}}


def _tool_name(block: ToolUseBlock) -> str:
    """As the model wrote it, where providers take that: a name that it made up is refused with all that follows."""
    return _NO_NAME.sub("_", block.tool_name)[:64] or "unnamed"


def _signed_thinking(blocks: Iterable[ContentBlock]) -> list[dict[str, Any]]:
    signed: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, ThinkingBlock) and block.signature:
            signed.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
        elif isinstance(block, UnknownBlock) and block.type == "redacted_thinking":
            signed.append(block.model_dump())
    return signed


def _result(result: ToolResultBlock, form: Form) -> str | list[dict[str, Any]]:
    text = _result_text(result)
    if form.dialect == "anthropic" and form.sees and (media := media_of(result.content, form)):
        return [*([{"type": "text", "text": text}] if text else []), *media]
    return text


def _result_text(result: ToolResultBlock) -> str:
    text = text_of_blocks(result.content)
    if result.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"  # the format has no flag for it
    return text


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
