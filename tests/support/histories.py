"""Conversations of agents, models and accidents, for each dialect of a provider. Nothing leaves the process: `Wire`
stands in for the transport below litellm, and keeps what a provider would refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal
from unittest.mock import patch

import httpx
from hypothesis import strategies as st

from ravi_django.calls.llm import LLMFactory
from ravi_django.kernel import ChatMessage, GenerationOptions, RetryPolicy, RunMeta
from tests.support.patience import BOUND_S
from tests.support.providers import (
    Body,
    Checker,
    Line,
    answer,
    call_piece,
    check_chat,
    check_claude,
    check_responses,
    chunk,
    claude,
    responses,
)

Part = tuple[str, ...]  # ("text", words), ("thought",), ("redacted",), ("call", tool, id, arguments)
TYPED = '{"order": 3}'
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(frozen=True)
class Say:
    """One answer of a model."""

    parts: tuple[Part, ...]
    end: Literal["whole", "length", "refusal", "broken", "busy"] = "whole"
    dialect: str | None = None  # None: that of the run; another one is a fallback's


# ------------------------------------------------------------------------------------------------------ the dialects


def say_claude(say: Say, said: list[Any], number: Iterator[int]) -> list[Line]:
    blocks: list[Body] = []
    for part in say.parts:
        match part:
            case ("text", text) if blocks and blocks[-1]["type"] == "text":  # Claude sends no two texts in a row
                blocks[-1]["text"] += text
            case ("text", text):
                blocks.append({"type": "text", "text": text})
            case ("thought",):
                name = str(next(number))
                blocks.append({"type": "thinking", "thinking": f"thought {name}", "signature": f"signed {name}"})
            case ("redacted",):
                blocks.append({"type": "redacted_thinking", "data": f"sealed {next(number)}"})
            case ("call", tool, _, arguments):
                input = json.loads(arguments) if _is_object(arguments) else {"text": arguments}
                blocks.append({"type": "tool_use", "id": f"toolu_{next(number)}", "name": _named(tool), "input": input})
    kept = [block for block in blocks if block.get("text", "-").strip()]
    while kept and "thinking" in kept[-1]["type"]:
        kept.pop()
    said.append(kept)
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return claude(*blocks, reason={"length": "max_tokens", "refusal": "refusal"}.get(say.end, reason))


def say_responses(say: Say, said: list[Any], number: Iterator[int]) -> list[Line]:
    items: list[Body] = []
    for part in say.parts:
        id = str(next(number))
        match part:
            case ("text", ""):  # OpenAI sends no empty message
                continue
            case ("text", text):
                kind = "refusal" if say.end == "refusal" else "output_text"
                content = [{"type": kind, "refusal" if say.end == "refusal" else "text": text}]
                items.append({"type": "message", "id": f"msg_{id}", "role": "assistant", "content": content})
            case ("thought",):
                sealed = {"summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": f"sealed {id}"}
                items.append({"type": "reasoning", "id": f"rs_{id}", **sealed})
            case ("call", tool, _, arguments):
                call = {
                    "call_id": f"call_{id}",
                    "name": _named(tool),
                    "arguments": arguments or "{}",
                    "status": "completed",
                }
                items.append({"type": "function_call", "id": f"fc_{id}", **call})
    said += [*items, {"type": "end"}]
    is_cut = say.end == "length"
    return responses(
        *items, status="incomplete" if is_cut else "completed", why="max_output_tokens" if is_cut else None
    )


def say_chat(say: Say, said: list[Any], number: Iterator[int]) -> list[Line]:
    pieces: list[Line] = []
    calls = 0
    for part in say.parts:
        match part:
            case ("text", text):
                pieces.append(chunk({"refusal" if say.end == "refusal" else "content": text}))
            case ("thought",):
                pieces.append(chunk({"reasoning_content": f"thought {next(number)}"}))
            case ("call", tool, id, arguments):
                pieces.append(call_piece(calls, id.format(next(number)), name=tool, arguments=arguments))
                calls += 1
    return answer(*pieces, reason="length" if say.end == "length" else "tool_calls" if calls else "stop")


@dataclass(frozen=True)
class Dialect:
    model: str
    say: Callable[[Say, list[Any], Iterator[int]], list[Line]]  # a stream; it adds to `said` what a checker needs
    check: Callable[[list[Any]], Checker]  # of all that was said
    options: dict[str, Any] = field(default_factory=dict)


DIALECTS = {
    "claude": Dialect("anthropic/claude-sonnet-4-5", say_claude, check_claude),
    "responses": Dialect("openai/gpt-5", say_responses, check_responses, {"dialect": "responses"}),
    "chat": Dialect("openai/gpt-4o", say_chat, lambda said: check_chat, {"dialect": "chat"}),
}


def _named(tool: str) -> str:
    """Only other servers let a model use other letters."""
    return tool.replace(" ", "_")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# --------------------------------------------------------------------------------------------------------- the wire


class Wire:
    """Answers requests in the place of the network. It is the ChatModel of its agents too: that of the next answer."""

    name = "wire"

    def __init__(self) -> None:
        self.said: dict[str, list[Any]] = {name: [] for name in DIALECTS}
        self.requests: list[Body] = []
        self.refused: list[tuple[str, str, Body]] = []
        self.script: list[Say] = []
        self.dialect = "chat"
        self.moments = 0  # pieces sent and tools called
        self.at: tuple[int, Callable[[], Awaitable[Any]]] | None = None  # what happens at which moment
        self._numbers = count(1)
        self._models: dict[str, Any] = {}
        for name, dialect in DIALECTS.items():
            policy = RetryPolicy(max_attempts=1)
            factory = LLMFactory(dialect.model, "key", api_base=f"http://{name}.test", retry=policy, **dialect.options)
            self._models[name] = factory.build()
        self.retry = RetryPolicy(max_attempts=1)

    @contextmanager
    def connected(self) -> Iterator[None]:
        async def send(client: Any, request: httpx.Request, **options: Any) -> httpx.Response:
            return self._answer(request)

        with patch.object(httpx.AsyncClient, "send", send):
            yield

    async def stream(self, messages: Sequence[ChatMessage], options: Any, meta: Any) -> AsyncIterator[Any]:
        dialect = (self.script[0].dialect if self.script else None) or self.dialect
        async for event in self._models[dialect].stream(messages, options, meta):
            yield event

    async def ask(self, dialect: str, messages: Sequence[ChatMessage]) -> None:
        """A request that ends a history."""
        self.dialect, self.script, self.at = dialect, [], None
        async for _ in self.stream(messages, GenerationOptions(), RunMeta(run_id="r")):
            pass

    async def supports_schema(self) -> bool:
        return True

    async def moment(self) -> None:
        self.moments += 1
        if self.at is not None and self.at[0] == self.moments:
            await self.at[1]()
            await asyncio.sleep(BOUND_S)  # until the cancellation is here

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name = str(request.url.host).partition(".")[0]
        body = json.loads(request.content)
        self.requests.append(body)
        if why := DIALECTS[name].check(self.said[name])(body):
            self.refused.append((name, why, body))
        say = self._next(body)
        if say.end == "busy":
            return httpx.Response(503, json={"error": {"message": "busy"}}, request=request)
        lines = DIALECTS[name].say(say, self.said[name], self._numbers)
        pieces = self._pieces(lines[: len(lines) // 2] if say.end == "broken" else lines)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=pieces, request=request)

    def _next(self, body: Body) -> Say:
        if "tools" not in body:  # of a summary
            return Say((("text", "notes"),))
        return self.script.pop(0) if self.script else Say((("text", TYPED),))

    async def _pieces(self, lines: Sequence[Line]) -> AsyncIterator[bytes]:
        for line in lines:
            await self.moment()
            yield f"{line}\n\n".encode()


# -------------------------------------------------------------------------------------------------------- the stories

ARGUMENTS = ['{"text": "x"}', '{ "text":"ü" }', "{}", "", '{"text": "cut', "[1]", '{"text": 3}']
TOOLS = ["echo", "fails", "picture", "silent", "final_result", "no such tool"]
IDS = ["call_{}", "c0", "", "functions.echo:{}", "chatcmpl-tool-0123456789abcdef0123456789abcdef{}"]
TEXTS = ["I look.", "", "\n\n", "Größe 😀", TYPED]

texts = st.sampled_from(TEXTS).map(lambda text: ("text", text))
calls = st.tuples(st.just("call"), st.sampled_from(TOOLS), st.sampled_from(IDS), st.sampled_from(ARGUMENTS))
parts = st.one_of(calls, texts, st.just(("thought",)), calls, st.just(("redacted",)))
ends = st.sampled_from(["whole"] * 8 + ["length", "refusal", "broken", "busy"])
says = st.builds(
    Say, st.lists(parts, max_size=4).map(tuple), ends, st.sampled_from([None] * (2 * len(DIALECTS)) + [*DIALECTS])
)

ASKED: list[list[Body]] = [
    [{"type": "text", "text": "hello"}],
    [{"type": "image", "data": PIXEL, "mime_type": "image/png"}],
    [{"type": "text", "text": " \n"}, {"type": "text", "text": "look"}, {"type": "image", "data": PIXEL}],
    [{"type": "text", "text": " "}],
    [{"type": "document", "data": "aGVsbG8=", "mime_type": "text/plain", "name": "notes.txt"}],
]
cuts = st.one_of(
    st.none(),
    st.tuples(st.just("cancel"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["crash", "crash after"]), st.integers(1, 8)),
    st.tuples(st.just("fork"), st.integers(1, 20)),
)


@dataclass(frozen=True)
class Turn:
    """A message of a person to one of two agents of the conversation, the answers of the models, and what cuts in."""

    asked: int  # in ASKED
    agent: int
    dialect: str
    says: list[Say]
    cut: tuple[str, int] | None  # and when


stories = st.lists(
    st.builds(
        Turn, st.integers(0, len(ASKED) - 1), st.sampled_from([0, 0, 1]), st.sampled_from([*DIALECTS]),
        st.lists(says, min_size=1, max_size=4), cuts,
    ),
    min_size=1, max_size=3,
)  # fmt: skip
