"""The same small HTTP server speaking Anthropic's Messages protocol, streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.support.openai_server import Body, OpenAIServer, Reply, _send_json, _start


class AnthropicServer(OpenAIServer):
    """`script` as there; `Reply.usage` is in Anthropic's terms (`input_tokens`, `cache_read_input_tokens`, …)."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, path: str, body: Body, send: Any, gone: asyncio.Task[None]) -> None:
        reply = self.script(body)
        if not path.endswith("/messages"):
            reply = Reply(status=404, text=f"no route {path}", error_type="not_found_error")
        if reply.status >= 400:
            error = {"type": "error", "error": {"type": reply.error_type, "message": reply.text}}
            await _send_json(send, error, reply)
            return
        await _start(send, 200, {"content-type": "text/event-stream", **reply.headers})
        for event in _events(body, reply):
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _events(body: Body, reply: Reply) -> list[dict[str, Any]]:
    usage = reply.usage or {"input_tokens": 10, "output_tokens": 5}
    given = {**usage, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": reply.model or body["model"]}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": given}}
    ]
    if reply.text:
        events += [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": reply.text}},
            {"type": "content_block_stop", "index": 0},
        ]
    for place, (name, arguments) in enumerate(reply.tool_calls, bool(reply.text)):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        start = {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": {}}
        events.append({"type": "content_block_start", "index": place, "content_block": start})
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            delta = {"type": "input_json_delta", "partial_json": piece}
            events.append({"type": "content_block_delta", "index": place, "delta": delta})
        events.append({"type": "content_block_stop", "index": place})
    reason = "tool_use" if reply.tool_calls else "end_turn"
    ended = {"output_tokens": usage["output_tokens"]}
    events.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": ended})
    events.append({"type": "message_stop"})
    return events
