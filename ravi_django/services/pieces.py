"""The parts of a run for a chat client: text, reasoning, tool calls and their results, then requests or the end.

Made from the frames of the run's tree. The formats of OpenAI and AG-UI are made from these.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ravi_django.engine.db.threads import readers
from ravi_django.live.streams import frames as framing
from ravi_django.live.streams.buffer import POLL_S
from ravi_django.live.streams.reading import follow, with_pauses
from ravi_django.models import Run, Status
from ravi_django.services.exchanges import Exchange, asked_by, waits

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
class Arguments:
    """A part of the JSON of a call's arguments, while the model writes them; the Call follows."""

    id: str  # of the call
    message: str
    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    id: str  # of the call
    text: str
    tool: str = ""  # empty: the call was no tool's, as a delegation


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the session's board has changed."""

    task: dict[str, Any]


Usage: TypeAlias = tuple[int, int, int, int]  # tokens: input, output, cached input, reasoning output


@dataclass(frozen=True, slots=True)
class State:
    """The agent has set the state that it shares with the page."""

    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The last piece: the run waits for answers of this user."""

    requests: list[dict[str, Any]]  # as REST shows them
    usage: Usage = (0, 0, 0, 0)  # so far


@dataclass(frozen=True, slots=True)
class Ended:
    """The last piece: the run has ended, or is blocked."""

    status: str
    error: dict[str, Any]  # type and message; empty if it has completed
    usage: Usage
    output: Text | None = None  # of a completed run: the whole answer, without what its agent said before
    reason: str = "stop"  # why the last answer of the model ended: a FinishReason


@dataclass(frozen=True, slots=True)
class Child:
    """A piece of a run below the root. Before its first one comes Begun, and last its Ended."""

    run: str
    piece: Text | Call | Result | Begun | Ended


@dataclass(frozen=True, slots=True)
class Begun:
    agent: str
    parent: str  # the child that has started it; empty: the root
    call: str  # the id of the call that has started it, if that is known


Piece: TypeAlias = Text | Arguments | Call | Result | Task | State | Child | Asked | Ended


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
    """Makes pieces of the frames of one run, and of those below it."""

    tree: str  # the run's id
    texts: dict[str, _CallText] = field(default_factory=dict)  # by model call
    arguments: dict[str, _CallText] = field(default_factory=dict)  # that the model writes, by call of a tool
    last: str = ""  # the text that was said last
    reason: str = "stop"  # why the model's last answer ended
    calls: dict[str, None] = field(default_factory=dict)  # ids of calls without a result
    children: dict[str, _Reader] = field(default_factory=dict)
    started_by: dict[str, tuple[str, bool]] = field(default_factory=dict)  # by child: the call, and if it is no tool's

    def of(self, frame: dict[str, Any]) -> Iterator[Piece]:
        match frame["type"]:
            case "stream.gap":
                for inner in frame["snapshot"]["frames"]:
                    yield from self.of(inner)
            case "board":
                yield Task(frame["task"])
            case _ if frame["run"] != self.tree:  # a child's words are not the answer
                yield from self._of_child(frame)
            case "text.delta" | "reasoning.delta" | framing.ARGUMENTS:
                yield from self._of_delta(frame)
            case "state":
                yield State(frame["state"])
            case "completion":
                yield from self._completed(frame)
            case "progress":
                yield from self._of_step(frame["step"], frame["content"])

    def _of_delta(self, frame: dict[str, Any]) -> Iterator[Piece]:
        if frame["type"] == "text.delta":
            yield from self._new_text(frame, frame["text"])
        elif frame["type"] == "reasoning.delta":
            yield Text(self._id(frame["call"]), frame["text"], is_reasoning=True)
        else:
            written = self.arguments.setdefault(frame["call_id"], _CallText(frame["call_id"]))
            new = written.add(frame["text"], frame["attempt"])
            if new and not written.restarts:  # what was sent cannot be taken back: the Call has the arguments
                yield Arguments(frame["call_id"], self._message(frame["call"]), frame["tool"], new)

    def _of_step(self, step: str, content: Any) -> Iterator[Piece]:
        if step == "tool_result":
            self.calls.pop(content["call_id"], None)
            yield Result(content["call_id"], content["text"] or "", content["tool"])
        elif step == "handoff":
            yield from self._handed(content)

    def _handed(self, content: dict[str, Any]) -> Iterator[Piece]:
        """A child has been started; or another agent continues the run, and no call of this one gets a result."""
        if "run" in content:
            self.started_by[content["run"]] = content.get("call_id", ""), content.get("is_call", False)
            return
        calls, self.calls = self.calls, {}
        for call in calls:
            yield Result(call, f"handed over to {content['agent']}")

    def _of_child(self, frame: dict[str, Any]) -> Iterator[Piece]:
        run, parent = frame["run"], frame["parent"] or ""
        above = self if parent == self.tree else self.children.get(parent, self)
        if (child := self.children.get(run)) is None:
            child = self.children[run] = _Reader(run)
            call, _ = above.started_by.get(run, ("", False))
            yield Child(run, Begun(frame["agent"], "" if parent == self.tree else parent, call))
        for piece in child.of(frame):
            if isinstance(piece, Text | Call | Result):
                yield Child(run, piece)
        if frame["type"] != "progress" or frame["step"] not in ("done", "error"):
            return
        error = frame["content"] or {}
        if error.get("status") == "retried":
            return
        yield Child(run, Ended(error.get("status", "completed"), error, (0, 0, 0, 0)))
        call, is_call = above.started_by.get(run, ("", False))
        if is_call and above.calls.pop(call, self) is None:
            result = Result(call, error.get("message", child.last))
            yield result if above is self else Child(parent, result)

    def _id(self, call: str) -> str:
        return f"{self.tree}/{call}"

    def _message(self, call: str) -> str:
        return self.texts[call].message if call in self.texts else self._id(call)

    def _new_text(self, frame: dict[str, Any], text: str) -> Iterator[Piece]:
        call_text = self.texts.setdefault(frame["call"], _CallText(self._id(frame["call"])))
        new = call_text.add(text, frame["attempt"]) if "attempt" in frame else call_text.whole(text)
        self.last = call_text.sent
        if new:
            yield Text(call_text.message, new)

    def _completed(self, frame: dict[str, Any]) -> Iterator[Piece]:
        """Says what the deltas have not: a recorded call that is read again has none."""
        content = frame["content"]
        self.reason = frame.get("finish_reason", "stop")
        if text := "".join(block["text"] for block in content if block["type"] == "text"):
            yield from self._new_text(frame, text)
        for block in content:
            if block["type"] == "tool_use":
                self.calls[block["call_id"]] = None
                yield Call(block["call_id"], self._message(frame["call"]), block["tool_name"], block["arguments"])


async def pieces(exchange: Exchange, every_s: float = POLL_S) -> AsyncGenerator[Piece]:
    """The pieces of the exchange as they come; the last one is Asked or Ended."""
    tree = exchange.run.tree_id
    reader = _Reader(str(tree))
    if exchange.after and (asked := await readers().call(_asked, exchange)):
        yield asked
        return
    async with (
        aclosing(follow(tree, exchange.after, whole=exchange.whole, every_s=every_s)) as followed,
        aclosing(with_pauses(followed, LOOK_S)) as frames,
    ):
        async for frame in frames:
            for piece in reader.of(frame) if frame else ():
                yield piece
            if (frame is None or waits(frame)) and (asked := await readers().call(_asked, exchange)):
                yield asked
                return
            if frame and _is_blocked(frame, str(tree)):
                break
    end = _ended(await readers().call(Run.objects.get, id=tree), reader.reason)
    if end.output and end.output.text.strip() != reader.last.strip():
        yield end.output
    yield end


def present(exchange: Exchange) -> Asked | Ended | None:
    """The last piece, if the exchange has one now."""
    run = Run.objects.get(id=exchange.run.tree_id)
    if not (run.is_terminal or run.status == Status.BLOCKED):
        return _asked(exchange)
    calls = run.journal.filter(kind="llm.call", phase="result", error__isnull=True).order_by("-seq")
    return _ended(run, calls.values_list("result__finish_reason", flat=True).first() or "stop")


def _asked(exchange: Exchange) -> Asked | None:
    requests, root = asked_by(exchange)
    return Asked(requests, _usage(root)) if requests else None


def _ended(run: Run, reason: str) -> Ended:
    output = Text(f"{run.id}/output", run.output) if run.status == Status.COMPLETED and run.output else None
    return Ended(run.status, run.error or {}, _usage(run), output, reason)


def _usage(run: Run) -> Usage:
    return run.input_tokens, run.output_tokens, run.cached_tokens, run.reasoning_tokens


def _is_blocked(frame: dict[str, Any], tree: str) -> bool:
    """Such a run has not ended: it waits for an operator."""
    if frame["type"] != "progress" or frame["run"] != tree or frame["step"] != "error":
        return False
    return bool(frame["content"]["status"] == "blocked")
