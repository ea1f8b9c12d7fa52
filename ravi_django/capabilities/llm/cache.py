"""Marks for Claude's prompt cache: what stands before a mark is read from the cache by the next request.

A read costs a tenth of the price, a write a quarter more. Source: Anthropic, "Prompt caching".
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

Request = dict[str, Any]


def key_of(session_id: str) -> str:
    """OpenAI's `prompt_cache_key` of a conversation."""
    return sha256(session_id.encode()).hexdigest()[:32]


def mark(request: Request, life: str | None) -> Request:
    """Mark the tools, the instructions and the last two turns of the user, tool results included. `life` is "1h", or
    None for five minutes. Four marks are the most that a request may have."""
    cached = {"type": "ephemeral"} | ({"ttl": life} if life else {})
    if request.get("tools"):
        request["tools"][-1]["cache_control"] = cached
    before, turns = "", 0
    for message in reversed(request["messages"]):
        role = "user" if message["role"] == "tool" else message["role"]
        if role == "system" or (role == "user" and before != "user" and turns < 2):
            turns += role == "user"
            _mark(message, cached)
        before = role
    return request


def _mark(message: Request, cached: dict[str, str]) -> None:
    if message["role"] == "tool":
        message["cache_control"] = cached
        return
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if parts and (parts[-1].get("type") != "text" or parts[-1]["text"].strip()):
        message["content"] = [*parts[:-1], {**parts[-1], "cache_control": cached}]
