"""A run tree's frames as lines on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ravi_django.models import TERMINAL, Status

CLIP = 600  # characters of a tool's arguments or result; the journal has all of it

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text without control characters: escape sequences must not reach the terminal."""
    return _CONTROL.sub("", text)


class Transcript:
    """Takes each frame. Text is streamed; everything else gets a line of its own.

    `write` prints answers and tool calls, `note` prints errors, retries and gaps.
    """

    def __init__(self, write: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._write, self._note = write, note
        self._column_0 = True
        self._calls: dict[tuple[str, str], str] = {}  # (run, call) → the attempt whose text is shown
        self._answer = ""  # the text of the last call so far
        self._speaker: tuple[str, str] | None = None
        self._asked: set[str] = set()  # open requests that were shown

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
                self._line(self._note, "[a part of the stream was lost; the journal is complete]")

    def end(self, output: str | None) -> None:
        """Print the run's output, unless it was streamed last."""
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
        """Begin a new line for another call, with the name of a sub-agent."""
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
                arguments = json.dumps(about.get("arguments"), ensure_ascii=False)
                self._line(self._write, f"→ {about.get('tool')} {_clip(arguments)}")
            case "tool_result":
                mark = "✗" if about.get("is_error") else "←"
                self._line(self._write, f"{mark} {about.get('tool')}: {_clip(str(about.get('text', '')))}")
            case "error" if frame.get("depth") or about.get("status") not in (*TERMINAL, Status.BLOCKED):
                self._line(self._note, f"{about.get('status')}: {about.get('type')}: {about.get('message')}")
            case "handoff" | "paused":
                details = "" if content is None else json.dumps(content, ensure_ascii=False)
                self._line(self._note, f"[{frame['step']}] {details}")

    def _request(self, frame: dict[str, Any]) -> None:
        """The request, and the commands that answer it."""
        self._asked.add(str(frame["id"]))
        who = f"[{frame['agent']}] " if frame.get("depth") else ""
        self._line(self._note, f"? {who}{_clip(str(frame.get('text', '')))}")
        if frame.get("tool") and frame.get("kind") != "question":
            self._line(self._note, f"  {_call(frame)}")
        for detail in details_of(frame, _clip):
            self._line(self._note, f"  {detail}")
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
        printed = printable(text)
        if printed:
            self._write(printed)
            self._column_0 = printed.endswith("\n")

    def _break(self) -> None:
        if not self._column_0:
            self._write("\n")
            self._column_0 = True


def details_of(request: Mapping[str, Any], clip: Callable[[str], str] = str) -> list[str]:
    """Lines with the questions, the context and the choices of a request, as REST shows it."""
    lines = [f"{key}: {clip(str(question))}" for key, question in (request.get("questions") or {}).items()]
    if request.get("context"):
        lines.append(clip(request["context"]))
    if request.get("choices"):
        rule = "for example" if request.get("free_text", True) else "one of"
        lines.append(f"{rule}: {' | '.join(map(str, request['choices']))}")
    return lines


def _call(frame: dict[str, Any]) -> str:
    parts = [f"{frame['tool']}({json.dumps(frame.get('arguments'), ensure_ascii=False)})"]
    parts += [f"risk {frame['risk']}"] if frame.get("risk") else []
    parts += [f"asked: {frame['to']}"] if frame.get("to") else []
    return _clip(" · ".join(parts))


def _how(frame: dict[str, Any]) -> list[str]:
    """The arguments of `ravi_answer` for a request of this kind."""
    kind = frame.get("kind")
    if kind == "uncertain":
        return ["--happened RESULT | --run-again | --fail"]
    if kind == "approval":
        return ["approve", 'deny --reason "…"', "edit --arguments JSON"]
    return ["answer --value KEY=TEXT …" if frame.get("questions") else 'answer "…"']


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= CLIP else f"{line[:CLIP]}…"
