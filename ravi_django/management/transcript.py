"""A run tree's frames as lines on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

CLIP = 600  # characters of a tool's arguments or result; the journal has all

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Escape sequences in anybody's words must not reach the terminal."""
    return _CONTROL.sub("", text)


class Transcript:
    """Give it each frame; it writes what a person wants to see. Text streams, everything else has its own line.

    `write` puts answers and tool calls out, `note` what is about the run: errors, retries, gaps.
    """

    def __init__(self, write: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._write, self._note = write, note
        self._column_0 = True
        self._calls: dict[tuple[str, str], str] = {}  # (run, call) → the attempt whose text is shown
        self._answer = ""  # what the call that spoke last has said so far
        self._speaker: tuple[str, str] | None = None
        self._asked: set[str] = set()  # requests that were shown, and are open

    def take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "text.delta":
                self._delta(frame)
            case "completion":
                self._completion(frame)
            case "progress":
                self._progress(frame)
            case "request":
                self._request(frame)
            case "request.closed":
                self._closed(frame)
            case "stream.gap":
                self._line(self._note, "[a part of the stream was lost; the journal has what was done]")

    def end(self, output: str | None) -> None:
        """The run's output, when it is not what was streamed last."""
        self._break()
        if output and output.strip() != self._answer.strip():
            self._say(output)
            self._break()

    def _delta(self, frame: dict[str, Any]) -> None:
        call, attempt = (frame["run"], frame.get("call", "")), frame.get("attempt", "")
        if self._calls.setdefault(call, attempt) != attempt:
            self._calls[call] = attempt
            self._line(self._note, "[the model call was started over]")
            self._speaker = None
        self._speak(call, frame)
        self._answer += frame["text"]
        self._say(frame["text"])

    def _completion(self, frame: dict[str, Any]) -> None:
        call = (frame["run"], frame.get("call", ""))
        if call not in self._calls:  # a model that does not stream
            text = "\n".join(block["text"] for block in frame["content"] if block.get("type") == "text")
            if text:
                self._speak(call, frame)
                self._answer = text
                self._say(text)
        self._break()

    def _speak(self, call: tuple[str, str], frame: dict[str, Any]) -> None:
        """Another call begins to speak: a line, and for a sub-agent a name, of its own."""
        if call == self._speaker:
            return
        self._break()
        self._speaker, self._answer = call, ""
        if frame.get("depth"):
            self._write(f"[{frame['agent']}] ")

    def _progress(self, frame: dict[str, Any]) -> None:
        content = frame.get("content")
        about = content if isinstance(content, dict) else {}
        match frame["step"]:
            case "tool_call":
                self._line(
                    self._write,
                    f"→ {about.get('tool')} {_clip(json.dumps(about.get('arguments'), ensure_ascii=False))}",
                )
            case "tool_result":
                mark = "✗" if about.get("is_error") else "←"
                self._line(self._write, f"{mark} {about.get('tool')}: {_clip(str(about.get('text', '')))}")
            case "error":
                self._line(self._note, f"{about.get('status')}: {about.get('type')}: {about.get('message')}")
            case "handoff" | "paused":
                self._line(
                    self._note,
                    f"[{frame['step']}] {'' if content is None else json.dumps(content, ensure_ascii=False)}",
                )

    def _request(self, frame: dict[str, Any]) -> None:
        """What a person is asked, by whom, and how to answer from a terminal."""
        self._asked.add(str(frame["id"]))
        who = f"[{frame['agent']}] " if frame.get("depth") else ""
        self._line(self._note, f"? {who}{_clip(str(frame.get('text', '')))}")
        if frame.get("tool") and frame.get("kind") != "question":
            self._line(self._note, f"  {_call(frame)}")
        for key, question in (frame.get("questions") or {}).items():
            self._line(self._note, f"  {key}: {_clip(str(question))}")
        if frame.get("context"):
            self._line(self._note, f"  {_clip(frame['context'])}")
        if frame.get("choices"):
            rule = "for example" if frame.get("free_text", True) else "one of"
            self._line(self._note, f"  {rule}: {' | '.join(map(str, frame['choices']))}")
        for how in _how(frame):
            self._line(self._note, f"  manage.py ravi_answer {frame['id']} {how}")

    def _closed(self, frame: dict[str, Any]) -> None:
        if str(frame.get("id")) in self._asked:
            self._asked.discard(str(frame["id"]))
            self._line(self._note, "[the question is closed]")

    def _line(self, write: Callable[[str], None], text: str) -> None:
        self._break()
        write(printable(text) + "\n")

    def _say(self, text: str) -> None:
        shown = printable(text)
        if shown:
            self._write(shown)
            self._column_0 = shown.endswith("\n")

    def _break(self) -> None:
        if not self._column_0:
            self._write("\n")
            self._column_0 = True


def _call(frame: dict[str, Any]) -> str:
    """What is decided on, and by whom."""
    parts = [f"{frame['tool']}({json.dumps(frame.get('arguments'), ensure_ascii=False)})"]
    parts += [f"risk {frame['risk']}"] if frame.get("risk") else []
    parts += [f"asked: {frame['to']}"] if frame.get("to") else []
    return _clip(" · ".join(parts))


def _how(frame: dict[str, Any]) -> list[str]:
    """The rest of the commands that answer a request of this kind."""
    kind = frame.get("kind")
    if kind == "uncertain":
        return ["--happened RESULT | --run-again | --fail"]
    if kind == "approval":
        return ["approve", 'deny --reason "…"', "edit --arguments JSON"]
    return ["answer --value KEY=TEXT …" if frame.get("questions") else 'answer "…"']


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= CLIP else f"{line[:CLIP]}…"
