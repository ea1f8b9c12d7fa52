"""A stand-in of Mistral's chat completions: what it refuses. Its stream is that of OpenAI's chat.

Source: the API's reference (docs.mistral.ai), the validator of the library mistral-common, the words of its errors."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from tests.support.providers import Body

_ID = re.compile(r"[A-Za-z0-9]{9}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MESSAGE = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_CHUNK = {
    "text": {"type", "text"},
    "image_url": {"type", "image_url"},
    "document_url": {"type", "document_url", "document_name"},
    "input_audio": {"type", "input_audio"},
    "file": {"type", "file_id"},
    "thinking": {"type", "thinking", "closed"},
}
_AFTER = {
    "system": {"system", "user", "assistant"},
    "user": {"system", "user", "assistant"},
    "assistant": {"user", "assistant", "tool"},
    "tool": {"assistant", "tool"},
}
_REQUEST = {
    *("model", "messages", "stream", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "stop"),
    *("random_seed", "response_format", "parallel_tool_calls", "presence_penalty", "frequency_penalty", "n"),
    *("prediction", "safe_prompt", "prompt_mode", "reasoning_effort", "metadata", "prompt_cache_key"),
}


def check_mistral(request: Body) -> str | None:
    """Refuses what Mistral refuses."""
    messages = request["messages"]
    return (
        _of_fields("body", request, _REQUEST)
        or next(filter(None, map(_of_message, messages)), None)
        or _of_order(messages)
        or _of_calls(messages)
    )


def _of_fields(place: str, value: Body, allowed: set[str]) -> str | None:
    extra = sorted(value.keys() - allowed)
    return f"{place}.{extra[0]}: Extra inputs are not permitted" if extra else None


def _of_message(message: Body) -> str | None:
    role = message["role"]
    if role not in _MESSAGE:
        return f"Input tag '{role}' found using 'role' does not match any of the expected tags"
    if why := _of_fields(role, message, _MESSAGE[role]):
        return why
    return _of_content(role, message.get("content")) or _of_calling(message)


def _of_content(role: str, content: Any) -> str | None:
    for part in content if isinstance(content, list) else ():
        if part["type"] not in _CHUNK or (part["type"] == "thinking" and role == "user"):
            return f"Input tag '{part['type']}' found using 'type' does not match any of the expected tags"
        if why := _of_fields(part["type"], part, _CHUNK[part["type"]]):
            return why
    if role in ("system", "user") and content is None:
        return f"{role}.content: Input should be a valid string"
    return None


def _of_calling(message: Body) -> str | None:
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls") or []
    if role == "assistant" and bool(content) == bool(calls):  # newer models accept both
        return f"Assistant message must have either content or tool_calls, but not {'both' if content else 'none'}."
    ids = [call["id"] for call in calls] + ([message.get("tool_call_id")] if role == "tool" else [])
    for id in ids:
        if not _ID.fullmatch(id or ""):
            return f"Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."
    for call in calls:
        if not _NAME.fullmatch(call["function"]["name"]):
            return f"Function name was {call['function']['name']} but must be a-z, A-Z, 0-9, or contain underscores"
    return None


def _of_order(messages: list[Body]) -> str | None:
    if not messages:
        return "Conversation must have at least one message"
    for before, after in pairwise(messages):
        if after["role"] not in _AFTER[before["role"]]:
            return f"Unexpected role '{after['role']}' after role '{before['role']}'"
        if before.get("prefix"):
            return "Assistant message with prefix True must be last message"
    last = messages[-1]
    if last["role"] not in ("user", "tool") and not last.get("prefix"):
        return f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {last['role']}"
    return None


def _of_calls(messages: list[Body]) -> str | None:
    pending: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in pending:
                return "Tool call id has to be defined."
            pending.remove(message["tool_call_id"])
        elif pending:
            return "Not the same number of function calls and responses"
        pending = pending or [call["id"] for call in message.get("tool_calls") or ()]
    return None
