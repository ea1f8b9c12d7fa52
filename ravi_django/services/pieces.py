"""The parts of a run for a chat client: text, reasoning, tool calls and their results, then requests or the end.

Made from the frames of the run's tree. The formats of OpenAI and AG-UI are made from these.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ravi_django.engine.db.threads import readers
from ravi_django.live.streams.buffer import POLL_S
from ravi_django.live.streams.reading import follow, with_pauses
from ravi_django.models import Run, Status
from ravi_django.services.exchanges import Exchange, asked, waits

LOOK_S = 5.0  # requests are escalated, reassigned and become due without a frame


@dataclass(frozen=True, slots=True)
class Text:
    """A part of a message of the root's agent. A new `message` id begins another message."""

    message: str
    text: str
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The model has called a tool, which runs on the server."""

    id: str
    message: str  # the message that the call is part of
    tool: str
    arguments: dict[str, Any] | None  # None: hidden from the owner


@dataclass(frozen=True, slots=True)
class Result:
    id: str  # of the call
    text: str


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the session's board has changed."""

    task: dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """The agent has set the state that it shares with the page."""

    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The last piece: the run waits for answers of this user."""

    requests: list[dict[str, Any]]  # as REST shows them


@dataclass(frozen=True, slots=True)
class Ended:
    """The last piece: the run has ended, or is blocked."""

    status: str
    error: dict[str, Any]  # type and message; empty if it has completed
    usage: tuple[int, int, int]  # tokens: input, output, of the input from the cache
    output: Text | None = None  # of a completed run: the whole answer, without what its agent said before


Piece: TypeAlias = Text | Call | Result | Task | State | Asked | Ended


@dataclass(slots=True)
class _CallText:
    """The text of one call of a model, over all its attempts."""

    message: str
    sent: str = ""
    attempt: str = ""
    text: str = ""  # of this attempt
    restarts: int = 0

    def add(self, text: str, attempt: str) -> str:
        if attempt != self.attempt:
            self.attempt, self.text = attempt, ""
        return self.whole(self.text + text)

    def whole(self, text: str) -> str:
        """The part of the text that is not sent yet. Sent text cannot be taken back: another attempt with other
        text is another message."""
        self.text = text
        if self.sent.startswith(text):
            return ""
        if not text.startswith(self.sent):
            self.restarts += 1
            self.message, self.sent = f"{self.message.partition('#')[0]}#{self.restarts}", ""
        new = text[len(self.sent) :]
        self.sent = text
        return new


@dataclass(slots=True)
class _Reader:
    """Makes pieces of the frames of one tree."""

    tree: str
    texts: dict[str, _CallText] = field(default_factory=dict)  # by model call
    last: str = ""  # the text that was said last

    def of(self, frame: dict[str, Any]) -> Iterator[Piece]:
        match frame["type"]:
            case "stream.gap":
                for inner in frame["snapshot"]["frames"]:
                    yield from self.of(inner)
            case "board":
                yield Task(frame["task"])
            case _ if frame["run"] != self.tree:  # a child's words are not the answer
                return
            case "text.delta":
                yield from self._new_text(frame, frame["text"])
            case "reasoning.delta":
                yield Text(self._id(frame["call"]), frame["text"], is_reasoning=True)
            case "state":
                yield State(frame["state"])
            case "completion":
                yield from self._completed(frame)
            case "progress" if frame["step"] == "tool_result":
                result = frame["content"]
                yield Result(result["call_id"], result["text"] or "")

    def _id(self, call: str) -> str:
        return f"{self.tree}/{call}"

    def _new_text(self, frame: dict[str, Any], text: str) -> Iterator[Piece]:
        call_text = self.texts.setdefault(frame["call"], _CallText(self._id(frame["call"])))
        new = call_text.add(text, frame["attempt"]) if "attempt" in frame else call_text.whole(text)
        self.last = call_text.sent
        if new:
            yield Text(call_text.message, new)

    def _completed(self, frame: dict[str, Any]) -> Iterator[Piece]:
        """Says what the deltas have not: a recorded call that is read again has none."""
        content = frame["content"]
        if text := "".join(block["text"] for block in content if block["type"] == "text"):
            yield from self._new_text(frame, text)
        for block in content:
            if block["type"] == "tool_use":
                message = self.texts[frame["call"]].message if frame["call"] in self.texts else self._id(frame["call"])
                yield Call(block["call_id"], message, block["tool_name"], block["arguments"])


async def pieces(exchange: Exchange, every_s: float = POLL_S) -> AsyncGenerator[Piece]:
    """The pieces of the exchange as they come; the last one is Asked or Ended."""
    tree = exchange.run.tree_id
    reader = _Reader(str(tree))
    if exchange.after and (requests := await readers().call(asked, exchange)):
        yield Asked(requests)
        return
    async with (
        aclosing(follow(tree, exchange.after, whole=exchange.whole, every_s=every_s)) as followed,
        aclosing(with_pauses(followed, LOOK_S)) as frames,
    ):
        async for frame in frames:
            for piece in reader.of(frame) if frame else ():
                yield piece
            if (frame is None or waits(frame)) and (requests := await readers().call(asked, exchange)):
                yield Asked(requests)
                return
            if frame and _is_blocked(frame, str(tree)):
                break
    run = await readers().call(Run.objects.get, id=tree)
    output = Text(f"{tree}/output", run.output) if run.status == Status.COMPLETED and run.output else None
    if output and output.text.strip() != reader.last.strip():
        yield output
    yield Ended(run.status, run.error or {}, (run.input_tokens, run.output_tokens, run.cached_tokens), output)


def _is_blocked(frame: dict[str, Any], tree: str) -> bool:
    """Such a run has not ended: it waits for an operator."""
    if frame["type"] != "progress" or frame["run"] != tree or frame["step"] != "error":
        return False
    return bool(frame["content"]["status"] == "blocked")
