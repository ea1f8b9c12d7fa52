"""Stand-ins of model providers on loopback: a real server that plays answers byte by byte, and refuses what a provider
refuses."""

from __future__ import annotations

import json
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import pairwise
from typing import Any, Self

Body = dict[str, Any]
Line = str | bytes | float  # a piece of an event stream, its raw bytes, or a pause in seconds
Checker = Callable[[Body], str | None]  # why a provider refuses the request


@dataclass(frozen=True)
class Document:
    """An answer that is one document."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Answer = Sequence[Line] | Document


class Provider:
    """Plays `answers` in order; the last one repeats. A request that `checker` refuses gets a 400 with its words."""

    def __init__(self, *answers: Answer, checker: Checker | None = None) -> None:
        self.answers, self.checker = answers, checker
        self.requests: list[Body] = []
        self.refused: list[str] = []
        self.times: list[float] = []  # of the requests

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None: ...

            def do_POST(self) -> None:
                provider._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.requests.append(body)
        self.times.append(time.monotonic())
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if self.checker is not None and (why := self.checker(body)):
            self.refused.append(why)
            answer = Document({"error": {"type": "invalid_request_error", "message": why}}, 400)
        document = answer if isinstance(answer, Document) else None
        handler.send_response(document.status if document else 200)
        kind = "application/json" if document else "text/event-stream; charset=utf-8"
        for name, value in {"Content-Type": kind, **(document.headers if document else {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        try:
            for line in [json.dumps(document.body)] if document else answer:  # type: ignore[union-attr]
                if isinstance(line, float):
                    time.sleep(line)
                else:
                    handler.wfile.write(line if isinstance(line, bytes) else line.encode() + b"\n\n")
                    handler.wfile.flush()
        except OSError:  # the client has left
            return


def data(value: Any) -> str:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}"


# ------------------------------------------------------------------------------------------------------ OpenAI's chat


def chunk(delta: Any = None, reason: str | None = None, **fields: Any) -> str:
    """A piece of an answer as OpenAI's servers send it."""
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": reason}]
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": choices, **fields})


def call_piece(index: int | None = 0, id: str | None = None, **function: Any) -> str:
    """A piece of a call."""
    named = {"index": index, "id": id, "type": "function", "function": function}
    return chunk({"tool_calls": [{name: value for name, value in named.items() if value is not None}]})


USAGE = chunk(choices=[], usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
DONE = data("[DONE]")


def answer(*pieces: Line, reason: str | None = "stop") -> list[Line]:
    return [*pieces, *([chunk(reason=reason)] if reason else []), USAGE, DONE]


def says(text: str) -> list[Line]:
    return answer(chunk({"role": "assistant", "content": text}))


def check_chat(request: Body) -> str | None:
    """What OpenAI refuses: calls without their results right after them, results of no call, long ids, names of other
    letters, a turn or a part without content."""
    waiting: set[str] = set()
    for message in [*request["messages"], {"role": "end", "content": "end"}]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"tool_call_ids did not have response messages: {waiting}"
        calls, content = message.get("tool_calls"), message.get("content")
        if calls == [] or content == [] or (content is None and not calls):
            return "Invalid value for 'content': expected a string, got null"
        if any(part["type"] == "text" and not part["text"] for part in (content if isinstance(content, list) else ())):
            return "Invalid content: empty text"
        ids = [call["id"] for call in calls or ()]
        waiting = set(ids)
        names = [call["function"]["name"] for call in calls or ()] + [message.get("name", "a")]
        if len(waiting) < len(ids) or not all(0 < len(id) <= 40 for id in ids):
            return "Invalid 'messages.tool_calls.id'"
        if not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names):
            return "Invalid 'messages.tool_calls.function.name'"
    return None


# ------------------------------------------------------------------------------------------------- Anthropic Messages


def claude(*blocks: Body, reason: str = "end_turn") -> list[Line]:
    """An answer of Claude: `text`, `thinking` with `signature`, `redacted_thinking` and `tool_use` blocks."""
    usage = {"input_tokens": 10, "output_tokens": 1}
    lines = [
        event(
            "message_start",
            message={
                "id": "msg",
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": "claude",
                "usage": usage,
            },
        )
    ]
    for index, block in enumerate(blocks):
        empty, deltas = _pieces(block)
        lines.append(event("content_block_start", index=index, content_block=empty))
        lines += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        lines.append(event("content_block_stop", index=index))
    lines.append(
        event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 20})
    )
    return [*lines, event("message_stop")]


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\n{data({'type': kind, **fields})}"


def _pieces(block: Body) -> tuple[Body, list[Body]]:
    match block["type"]:
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            said = {"type": "thinking_delta", "thinking": block["thinking"]}
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [said, signed]
        case "tool_use" | "server_tool_use":
            pieces = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
            return {**block, "input": {}}, pieces
    return block, []


def check_claude(said: Sequence[Body]) -> Checker:
    """What Anthropic's documentation refuses: thoughts that are not in one of the answers `said` as it came, or at the
    end of a turn; calls without results in the next message, ids of other letters or twice; empty texts, a beginning
    that is not the user's, roles that do not alternate."""

    def check(request: Body) -> str | None:
        turns = [{"role": "assistant", "content": []}, *request["messages"], {"role": "user", "content": []}]
        ids: list[str] = []
        for (before, turn), (_, after) in pairwise(pairwise(turns)):
            if before["role"] == turn["role"]:
                return "messages: roles must alternate"
            blocks = [{k: v for k, v in block.items() if k != "cache_control"} for block in _blocks(turn)]
            if not blocks:
                return "messages: all messages must have non-empty content"
            if any(block["type"] == "text" and not block["text"].strip() for block in _nested(blocks)):
                return "messages: text content blocks must contain non-whitespace text"
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            results = [block["tool_use_id"] for block in _blocks(after) if block["type"] == "tool_result"]
            if sorted(calls) != sorted(results):
                return "messages: `tool_use` ids were found without `tool_result` blocks immediately after"
            ids += calls
            if any("thinking" in block["type"] for block in _besides(blocks, said)):
                return "messages: `thinking` or `redacted_thinking` blocks cannot be modified"
            if "thinking" in blocks[-1]["type"]:
                return "messages: The final block in an assistant message cannot be `thinking`"
        if len(set(ids)) < len(ids) or not all(re.fullmatch(r"[a-zA-Z0-9_-]+", id) for id in ids):
            return "messages: `tool_use` ids must be unique, and match '^[a-zA-Z0-9_-]+$'"
        return None

    return check


def _besides(blocks: list[Body], said: Sequence[Body]) -> list[Body]:
    """The turn without the whole answers in it: providers join neighbours."""
    for answer in sorted(said, key=len, reverse=True):  # a short one may be a part of another
        for at in range(len(blocks) - len(answer) + 1):
            if answer and blocks[at : at + len(answer)] == answer:
                return _besides(blocks[:at] + blocks[at + len(answer) :], said)
    return blocks


def _nested(blocks: Sequence[Body]) -> list[Body]:
    results = [block["content"] for block in blocks if isinstance(block.get("content"), list)]
    return [*blocks, *(part for parts in results for part in parts)]


def _blocks(turn: Body) -> list[Body]:
    content = turn["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def check_claude_sizes(request: Body) -> str | None:
    """What Anthropic's documentation refuses: an image of over 5 MB of base64, or of over 8,000 pixels a side (2,000
    from the 21st image on), over 100 pages of PDF, a request of over 32 MB."""
    from PIL import Image
    from pypdf import PdfReader

    images, pages = [], 0
    for turn in request["messages"]:
        for block in _blocks(turn):
            source = block.get("source", {}).get("data", "")
            if block["type"] == "document":
                pages += len(PdfReader(BytesIO(b64decode(source))).pages)
            elif block["type"] == "image" and len(source) > 5 * 1024 * 1024:
                return f"messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: {len(source)} bytes"
            elif block["type"] == "image":
                images.append(max(Image.open(BytesIO(b64decode(source))).size))
    if images and max(images) > (8_000 if len(images) <= 20 else 2_000):
        return "messages.0.content.0.image: At least one of the image dimensions exceed max allowed size"
    if pages > 100:
        return "messages.0.content.0.pdf.source.base64.data: A maximum of 100 PDF pages may be provided."
    return "Request exceeds the maximum size" if len(json.dumps(request)) > 32 * 1024 * 1024 else None


def marked(request: Body) -> list[tuple[str, str]]:
    """Where a request to Claude has a mark for the cache, and how long it lives; refuses more than four."""
    marks = [("tools", tool) for tool in request.get("tools", ())] + [("system", part) for part in request["system"]]
    for turn in request["messages"]:
        marks += [(block["type"], block) for block in _blocks(turn)]
    found = [(place, part["cache_control"].get("ttl", "5m")) for place, part in marks if "cache_control" in part]
    assert len(found) <= 4
    return found


class ClaudeCache:
    """What Claude reads from its cache: the longest beginning of a request that an earlier one has stored at a mark, up
    to 20 blocks before a mark of this one, from 1,024 tokens on. A token is four bytes."""

    LOOK_BACK, LEAST = 20, 1_024

    def __init__(self) -> None:
        self._stored: set[str] = set()
        self.input = self.read = 0  # tokens

    def add(self, request: Body) -> None:
        assert len(marked(request)) <= 4
        blocks = [*request.get("tools", ()), *request["system"]]
        blocks += [{"role": turn["role"], **block} for turn in request["messages"] for block in _blocks(turn)]
        digest, size, beginnings = sha256(), 0, []
        for block in blocks:
            text = json.dumps({name: value for name, value in block.items() if name != "cache_control"})
            digest.update(text.encode())
            size += len(text) // 4
            beginnings.append((digest.hexdigest(), size))
        marks = [at for at, block in enumerate(blocks) if "cache_control" in block]
        near = {at - back for at in marks for back in range(min(self.LOOK_BACK, at + 1))}
        self.read += max((beginnings[at][1] for at in near if beginnings[at][0] in self._stored), default=0)
        self.input += size
        self._stored |= {beginnings[at][0] for at in marks if beginnings[at][1] >= self.LEAST}


# --------------------------------------------------------------------------------------------------- OpenAI's Responses


def responses(*items: Body, status: str = "completed", why: str | None = None) -> list[Line]:
    """An answer of items: `reasoning` with `encrypted_content`, `message`, `function_call`. `why` it is incomplete."""
    answer = {"id": "resp", "object": "response", "model": "gpt-5"}
    lines = [event("response.created", response=answer | {"status": "in_progress", "output": []})]
    for index, item in enumerate(items):
        empty, pieces = _streamed(item)
        lines.append(event("response.output_item.added", output_index=index, item=empty))
        lines += [event(f"response.{kind}", output_index=index, item_id=item["id"], **piece) for kind, piece in pieces]
        lines.append(event("response.output_item.done", output_index=index, item=item))
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 15},
        "total_tokens": 120,
    }
    ended = {"status": status, "output": items, "usage": usage, "error": None}
    return [*lines, event(f"response.{status}", response=answer | ended | {"incomplete_details": {"reason": why}})]


def _streamed(item: Body) -> tuple[Body, list[tuple[str, Body]]]:
    if item["type"] == "reasoning":
        pieces: list[tuple[str, Body]] = []
        for at, part in enumerate(item["summary"]):
            pieces.append(("reasoning_summary_part.added", {"summary_index": at}))
            pieces.append(("reasoning_summary_text.delta", {"summary_index": at, "delta": part["text"]}))
        return item | {"summary": [], "encrypted_content": ""}, pieces
    if item["type"] == "function_call":
        texts = item["arguments"][:3], item["arguments"][3:]
        return item | {"arguments": ""}, [("function_call_arguments.delta", {"delta": text}) for text in texts]
    (part,) = item["content"]
    kind = "refusal.delta" if "refusal" in part else "output_text.delta"
    return item | {"content": []}, [(kind, {"delta": part.get("refusal") or part["text"]})]


def check_responses(said: Sequence[Body]) -> Checker:
    """What OpenAI refuses: reasoning that is not of `said` byte by byte, in its order and before the item that followed
    it; calls without output; long ids; an item of a call without its reasoning."""

    def check(request: Body) -> str | None:
        items = request["input"]
        if request["store"] or "reasoning.encrypted_content" not in request["include"]:
            return "the reasoning is not asked for"
        if any(len(item.get(name, "")) > 64 for item in items for name in ("id", "call_id")):
            return "Invalid 'input.id': string too long"
        thoughts = [item for item in items if item["type"] == "reasoning"]
        if any(item not in said for item in thoughts):
            return "The encrypted content could not be verified"
        if [said.index(item) for item in thoughts] != sorted(said.index(item) for item in thoughts):
            return "the reasoning is not in its order"
        for item, after in pairwise([*items, {}]):
            if item["type"] == "reasoning" and not _is_same(said[said.index(item) + 1], after):
                return f"Item '{item['id']}' of type 'reasoning' was provided without its required following item"
            if item["type"] == "function_call" and "id" in item and not any(_is_same(one, item) for one in said):
                return f"Item '{item['id']}' was provided without its required 'reasoning' item"
        calls = {kind: [item["call_id"] for item in items if item["type"] == kind] for kind in _PAIR}
        if sorted(calls["function_call"]) != sorted(calls["function_call_output"]):
            return "No tool output found for function call"
        return None

    return check


_PAIR = ("function_call", "function_call_output")


def _is_same(said: Body, sent: Body) -> bool:
    if said["type"] == "message" == sent.get("type"):
        return [part["text"] for part in said["content"]] == [part["text"] for part in sent["content"]]
    return {name: value for name, value in said.items() if name != "status"} == sent
