"""An assistant's turn as each family of models accepts it: the order of its blocks, its reasoning, the ids of calls.

A family sees again what its models have signed, as it came. Another family gets none of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.content import SIGNED, ContentBlock, ThinkingBlock, ToolUseBlock, UnknownBlock

WireMessage = dict[str, Any]
Text = Callable[[Iterable[ContentBlock]], str]

SHOWS_REASONING = frozenset({"deepseek", "moonshot", "hosted_vllm"})  # they want the text of thoughts beside calls

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID_OF_MISTRAL = re.compile(r"[A-Za-z0-9]{9}")


def id_for(family: str, call_id: str, origin: Mapping[str, Any] | None = None) -> str:
    """The id of a call, and of its result, in a request to this family: as it came from it, else in its shape."""
    if origin and origin.get("family") == family and (family == "gemini" or _ID.fullmatch(str(origin.get("id")))):
        return str(origin.get("id") or call_id)  # litellm keeps Gemini's signature of a call in its id
    digest = sha256(call_id.encode(errors="replace")).hexdigest()
    if family == "mistral":
        return call_id if _ID_OF_MISTRAL.fullmatch(call_id) else digest[:9]
    return call_id if _ID.fullmatch(call_id) else f"call_{digest[:24]}"


def unsigned(message: ChatMessage) -> ChatMessage:
    """The message without what a model has signed, for a provider that refuses it."""
    content = [
        block.model_copy(update={"origin": None}) if isinstance(block, ToolUseBlock) else block
        for block in message.content
        if not (getattr(block, "signature", None) or getattr(block, "type", "") in SIGNED)
    ]
    return message.model_copy(update={"content": content})


def assistant(message: ChatMessage, family: str, text_of: Text) -> list[WireMessage]:
    """The turn; none if nothing of it can be sent: providers refuse an empty turn. The answer of another agent begins
    with its name, where messages have none."""
    if family == "anthropic" and any(_is_signed(block) for block in message.content):
        return _in_order(message, text_of)
    calls = [_call(block, family) for block in message.tool_calls]
    text = text_of([block for block in message.content if not isinstance(block, ToolUseBlock)])
    if not calls and not text.strip():
        return []
    if message.name and text and family != "openai":
        text = f"{message.name}:\n{text}"
    turn: WireMessage = {"role": "assistant", "content": text or None}
    if calls:
        turn["tool_calls"] = calls
    return [turn | _reasoning(message, family, has_calls=bool(calls))]


def _in_order(message: ChatMessage, text_of: Text) -> list[WireMessage]:
    """Claude's thoughts, texts and calls in their order. litellm puts the calls of a message at its end, and joins
    neighbours: what follows a call begins another message."""
    turns: list[WireMessage] = []
    for block in message.content:
        if isinstance(block, ToolUseBlock):
            turn = turns[-1] if turns else _next(turns)
            turn.setdefault("tool_calls", []).append(_call(block, "anthropic"))
            continue
        if isinstance(block, ThinkingBlock | UnknownBlock):
            part = _signed(block) if _is_signed(block) else None
        else:
            text = text_of([block])
            part = {"type": "text", "text": text} if text.strip() else None
        if part is not None:
            turn = turns[-1] if turns and "tool_calls" not in turns[-1] else _next(turns)
            turn["content"] = [*(turn["content"] or ()), part]
    return turns


def _next(turns: list[WireMessage]) -> WireMessage:
    turns.append({"role": "assistant", "content": None})
    return turns[-1]


def _is_signed(block: ContentBlock) -> bool:
    """Whether Claude wants to see this block again."""
    if isinstance(block, ThinkingBlock):
        return bool(block.signature) and (block.origin or {}).get("family", "anthropic") == "anthropic"
    return isinstance(block, UnknownBlock) and block.type == "redacted_thinking"


def _signed(block: Any) -> dict[str, Any]:
    if isinstance(block, ThinkingBlock):
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return {"type": block.type, "data": block.model_dump().get("data")}


def _reasoning(message: ChatMessage, family: str, *, has_calls: bool) -> dict[str, Any]:
    """What other families want to see again beside the calls of the turn."""
    if family in SHOWS_REASONING and has_calls:
        thoughts = "\n".join(block.text for block in message.content if isinstance(block, ThinkingBlock))
        return {"reasoning_content": thoughts} if thoughts else {}
    details: list[Any] = []
    for block in message.content:
        if isinstance(block, UnknownBlock) and block.type == "reasoning_details":
            fields = block.model_dump()
            if (fields.get("origin") or {}).get("family") == family:
                details += fields["details"]
    return {"reasoning_details": details} if details else {}


def _call(block: ToolUseBlock, family: str) -> dict[str, Any]:
    call_id = id_for(family, block.call_id, block.origin)
    return {"id": call_id, "type": "function", "function": function(block, family)}


def function(block: ToolUseBlock, family: str) -> dict[str, str]:
    """The name and the arguments of a call; its own family gets their text as it came."""
    origin = block.origin if block.origin and block.origin.get("family") == family else {}
    return {"name": _tool_name(block), "arguments": origin.get("arguments") or arguments_text(block.arguments)}


def _tool_name(block: ToolUseBlock) -> str:
    """The name in the characters that providers accept. A model may invent other names, and every later request with
    one would be refused."""
    return _NO_NAME.sub("_", block.tool_name)[:64] or "unnamed"


def arguments_text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)  # sorted: jsonb changes the order
