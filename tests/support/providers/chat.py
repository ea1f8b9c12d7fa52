"""What OpenAI's chat completions refuse, and DeepSeek's, which are like them. Source: their references, and the words
of their errors."""

from __future__ import annotations

import re

from tests.support.providers import Body, Checker

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MESSAGE = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id"},
}
_CHUNK = {"user": {"text", "image_url", "input_audio", "file"}}


def check_chat(*, thinks: bool = False, images: bool = True) -> Checker:
    """Refuses what OpenAI refuses. `thinks`: a thinking model of DeepSeek, which wants its thoughts beside its calls;
    `images`: it accepts them."""

    def check(request: Body) -> str | None:
        pending: list[str] = []
        for message in [*request["messages"], {"role": "user", "content": "end"}]:
            if message["role"] == "tool":
                if message["tool_call_id"] not in pending:
                    return "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                pending.remove(message["tool_call_id"])
            elif pending:
                return "An assistant message with 'tool_calls' must be followed by tool messages."
            pending = pending or [call["id"] for call in message.get("tool_calls") or ()]
            if why := _of_message(message, thinks=thinks, images=images):
                return why
        return None

    return check


def _of_message(message: Body, *, thinks: bool, images: bool) -> str | None:
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls") or []
    allowed = _MESSAGE[role] | ({"reasoning_content"} if thinks and role == "assistant" else set())
    if extra := sorted(message.keys() - allowed):
        return f"Unknown parameter: '{extra[0]}'."
    if not _NAME.fullmatch(message.get("name", "none")):
        return "Invalid 'messages.name': string does not match pattern."
    if content is None and not calls:
        return "Invalid value for 'content': expected a string, got null."
    if thinks and calls and not message.get("reasoning_content"):
        return "Missing `reasoning_content` field in the assistant message"
    kinds = _CHUNK.get(role, {"text"}) - (set() if images else {"image_url"})
    if isinstance(content, list) and not {part["type"] for part in content} <= kinds:
        return "Invalid value of 'type' in content."
    return next(filter(None, map(_of_call, calls)), None)


def _of_call(call: Body) -> str | None:
    if extra := sorted(call.keys() - {"id", "type", "function", "index"}):
        return f"Unknown parameter: 'tool_calls.{extra[0]}'."
    if len(call["id"]) > 40:
        return "Invalid 'tool_calls.id': string too long."
    return None if _NAME.fullmatch(call["function"]["name"]) else "Invalid 'tool_calls.function.name'."
