"""An assistant's turn as each family of models accepts it: the order of its blocks, its reasoning, the ids of calls.

Signed blocks are sent back unchanged to the family of models that signed them, and to no other family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import ContentBlock, ThinkingBlock, ToolUseBlock, UnknownBlock

WireMessage = dict[str, Any]
Text = Callable[[Iterable[ContentBlock]], str]

SHOWS_REASONING = frozenset({"deepseek", "moonshot", "hosted_vllm"})  # they want the text of thoughts beside calls

EXTRA = ("extra_content", "provider_specific_fields")  # of a call: Google's signature, behind an address like OpenAI's
REFUSED = "signatures_refused"  # a mark in an answer: what was signed before it is not sent to its origin again

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID_OF_MISTRAL = re.compile(r"[A-Za-z0-9]{9}")


def id_for(family: str, call_id: str, origin: Mapping[str, Any] | None = None) -> str:
    """The id of a call, and of its result, in a request to this family, in its shape. Gemini's is as it came."""
    if family == "gemini" and origin and origin.get("family") == family and origin.get("id"):
        return str(origin["id"])  # litellm keeps the signature of a call in its id
    digest = sha256(call_id.encode(errors="replace")).hexdigest()
    if family == "mistral":
        return call_id if _ID_OF_MISTRAL.fullmatch(call_id) else digest[:9]
    return call_id if _ID.fullmatch(call_id) else f"call_{digest[:24]}"


def is_signed(kind: str) -> bool:
    """Whether blocks of this type, which is none of ours, are for the family alone that has made them."""
    return kind in ("redacted_thinking", "reasoning_details", REFUSED) or _is_of_server(kind)


def _is_of_server(kind: str) -> bool:
    """Whether it is what Claude's server has run, or its result."""
    return kind == "server_tool_use" or kind.endswith("_tool_result")


def unsigned(message: ChatMessage) -> ChatMessage:
    """The message without what a model has signed, for a provider that refuses it."""
    if "unsigned" in message._wire:
        return cast(ChatMessage, message._wire["unsigned"])
    content = [
        block.model_copy(update={"origin": None}) if isinstance(block, ToolUseBlock) else block
        for block in message.content
        if not (getattr(block, "signature", None) or (isinstance(block, UnknownBlock) and is_signed(block.type)))
    ]
    copied = message._wire["unsigned"] = message.model_copy(update={"content": content})
    return copied


def sendable(messages: Sequence[ChatMessage], origin: Mapping[str, Any]) -> tuple[Sequence[ChatMessage], bool]:
    """The messages without the signed blocks that `origin` has refused, and whether that was in the present turn."""
    last = next((at for at in reversed(range(len(messages))) if _is_mark(messages[at], origin)), None)
    if last is None:
        return messages, False
    is_now = not any(message.role is Role.USER for message in messages[last:])
    return [*map(unsigned, messages[:last]), *messages[last:]], is_now


def _is_mark(message: ChatMessage, origin: Mapping[str, Any]) -> bool:
    return message.role is Role.ASSISTANT and any(
        block.type == REFUSED and block.model_dump()["origin"] == origin
        for block in message.content
        if isinstance(block, UnknownBlock)
    )


def assistant(message: ChatMessage, family: str, text_of: Text, server: str = "") -> list[WireMessage]:
    """The turn; none if nothing of it can be sent: providers refuse an empty turn. The answer of another agent begins
    with its name, where messages have none. `server`: see Form."""
    if family == "anthropic" and any(_is_signed(block) for block in message.content):
        return _in_order(message, text_of)
    calls = [_call(block, family, server) for block in message.tool_calls]
    text = text_of([block for block in message.content if not isinstance(block, ToolUseBlock)])
    if not calls and not text.strip():
        return []
    if (name := speaker(message)) and text and family != "openai":
        text = f"{name}:\n{text}"
    turn: WireMessage = {"role": "assistant", "content": text or None}
    if family == "mistral" and calls and text:  # some of its models refuse both in one message
        return [turn, {"role": "assistant", "content": None, "tool_calls": calls}]
    if calls:
        turn["tool_calls"] = calls
    return [turn | _reasoning(message, family, has_calls=bool(calls))]


def speaker(message: ChatMessage) -> str:
    """The other agent whose answer it is. The library's own names of turns are no words."""
    return message.name if message.name and not _NO_NAME.search(message.name) else ""


def _in_order(message: ChatMessage, text_of: Text) -> list[WireMessage]:
    """Claude's thoughts, texts and calls in their order. litellm puts the calls of a message at its end, and joins
    neighbours: what follows a call begins another message. Thoughts at the end led to nothing, and are refused."""
    turns: list[WireMessage] = []
    last = max((at for at, block in enumerate(message.content) if _leads(block, text_of)), default=-1)
    for block in message.content[: last + 1]:
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


def _leads(block: ContentBlock, text_of: Text) -> bool:
    if _is_signed(block):
        return _is_of_server(block.type)
    return isinstance(block, ToolUseBlock) or bool(text_of([block]).strip())


def _next(turns: list[WireMessage]) -> WireMessage:
    turns.append({"role": "assistant", "content": None})
    return turns[-1]


def _is_signed(block: ContentBlock) -> bool:
    """Whether Claude wants to see this block again."""
    if isinstance(block, ThinkingBlock):
        return bool(block.signature) and (block.origin or {}).get("family", "anthropic") == "anthropic"
    return isinstance(block, UnknownBlock) and (block.type == "redacted_thinking" or _is_of_server(block.type))


def _signed(block: Any) -> dict[str, Any]:
    if isinstance(block, ThinkingBlock):
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return {name: value for name, value in block.model_dump().items() if name != "origin"}


def without_open_work(wire: list[WireMessage]) -> list[WireMessage]:
    """The turns without calls of Claude's server that have no result, and results whose call an older view had. It
    accepts such a call at the very end alone, after a pause."""
    lists = [turn["content"] for turn in wire if isinstance(turn["content"], list)]
    work = [part for parts in lists for part in parts if _is_of_server(part["type"])]
    done = {part.get("tool_use_id") for part in work} & {part.get("id") for part in work}
    left = [part for part in work if (part.get("tool_use_id") or part["id"]) not in done]
    if left and left[-1] is (wire[-1]["content"] or [None])[-1]:
        left.pop()
    for parts in lists if left else ():
        parts[:] = [part for part in parts if part not in left]
    return [turn for turn in wire if turn["content"] != [] or turn.get("tool_calls")]


def _reasoning(message: ChatMessage, family: str, *, has_calls: bool) -> dict[str, Any]:
    """What other families want to see again beside the calls of the turn."""
    if family in SHOWS_REASONING and has_calls:
        thoughts = "\n".join(block.text for block in message.content if isinstance(block, ThinkingBlock))
        if family == "deepseek":  # it refuses a call without them, also the call of another model
            thoughts = thoughts or " "
        return {"reasoning_content": thoughts} if thoughts else {}
    details: list[Any] = []
    for block in message.content:
        if isinstance(block, UnknownBlock) and block.type == "reasoning_details":
            fields = block.model_dump()
            if (fields.get("origin") or {}).get("family") == family:
                details += fields["details"]
    return {"reasoning_details": details} if details else {}


def _call(block: ToolUseBlock, family: str, server: str = "") -> dict[str, Any]:
    origin = block.origin or {}
    extra = origin.get("extra", {}) if (origin.get("family"), origin.get("server")) == (family, server) else {}
    call_id = id_for(family, block.call_id, block.origin)
    return {"id": call_id, "type": "function", "function": function(block, family), **extra}


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
