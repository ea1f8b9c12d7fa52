"""A stand-in of Gemini: its event stream, and what it refuses. Source: "Gemini API", "Function calling" and "Thought
signatures" (ai.google.dev), and the words of its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tests.support.providers import Body, Checker, Line, data

PLACEHOLDER = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="  # Google's own, for a history of another model
USAGE = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}

_CONTENT = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")


def gemini(*parts: Body, reason: str = "STOP") -> list[Line]:
    """An answer, a piece of the stream for each part. The last piece is empty, as Gemini sends it."""
    ends = {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": reason, "index": 0}
    pieces = [{"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}]} for part in parts]
    return [data(piece) for piece in [*pieces, {"candidates": [ends], "usageMetadata": USAGE}]]


def call(name: str, signature: str | None = None, id: str | None = None, **args: object) -> Body:
    """A part that calls a function."""
    function = {"name": name, "args": args} | ({"id": id} if id else {})
    return {"functionCall": function} | ({"thoughtSignature": signature} if signature else {})


def check_gemini(answers: Sequence[Body] = (), *, model: int = 3) -> Checker:
    """Refuses what Gemini refuses. `answers`: the calls of its own answers, whose signatures have to come back;
    `model`: its generation."""

    def check(request: Body) -> str | None:
        contents = [
            (turn.get("role"), [_camel(part) for part in turn.get("parts") or ()]) for turn in request["contents"]
        ]
        why = (
            _of_parts(contents, model)
            or _of_order(contents)
            or _of_calls(contents)
            or _of_signatures(contents, answers, model)
        )
        return why or _of_options(request)

    return check


Contents = list[tuple[str | None, list[Body]]]


def _camel(part: Body) -> Body:
    """Both spellings of a field are accepted."""
    return {re.sub(r"_(\w)", lambda match: match[1].upper(), name): value for name, value in part.items()}


def _of_parts(contents: Contents, model: int) -> str | None:
    for role, parts in contents:
        if role not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not parts:
            return "contents.parts must not be empty."
        for part in parts:
            fields = [name for name in _CONTENT if name in part]
            if len(fields) != 1 or part[fields[0]] in ("", {}):
                return "contents.parts.data: required oneof field 'data' must have one initialized field"
            function = part.get("functionCall") or part.get("functionResponse") or {"name": "none"}
            if not _NAME.fullmatch(function["name"]):
                return "Invalid function name. Must start with a letter or an underscore."
            if "id" in function and model < 3:
                return 'Unknown name "id" at function_call: Cannot find field.'
    return None


def _of_order(contents: Contents) -> str | None:
    if not contents or contents[0][0] != "user":
        return "Please ensure that function call turn comes immediately after a user turn"
    if contents[-1][0] != "user":
        return "Requests ending with a model turn are not supported."
    for (before, parts), (after, _) in pairwise(contents):
        if before == after and not any("functionResponse" in part for part in parts):
            return "Please ensure that multiturn requests alternate between user and model."
    return None


def _of_calls(contents: Contents) -> str | None:
    """The responses to the calls of a turn are the next turn, and nothing else is in it."""
    for (_, parts), (_, after) in pairwise([("model", []), *contents, ("user", [])]):
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in after if "functionResponse" in part]
        if len(calls) != len(results):
            return (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        for asked, result in zip(calls, results, strict=True):
            if (asked["name"], asked.get("id")) != (result["name"], result.get("id")):
                return "Please ensure that the function response names match the function call names."
        if results and len(results) != len(after):
            return "A function response turn has function responses only."
    return None


def _of_signatures(contents: Contents, answers: Sequence[Body], model: int) -> str | None:
    """A signature comes back byte by byte at its call. Gemini 3 wants one at the first call of each step of the turn
    that goes on; a step of another model has the placeholder."""
    starts = [at for at, (role, parts) in enumerate(contents) if role == "user" and "functionResponse" not in parts[0]]
    for at, (role, parts) in enumerate(contents):
        calls = [part for part in parts if "functionCall" in part] if role == "model" else []
        for number, part in enumerate(calls):
            signature = part.get("thoughtSignature")
            own = [one for one in answers if _function(one) == _function(part)]
            wanted = [one.get("thoughtSignature") for one in own] or [None, PLACEHOLDER]
            if signature not in wanted:
                return f"Corrupted thought signature. {signature} at {part['functionCall']['name']}"
            if model >= 3 and number == 0 and at > starts[-1] and not signature:
                return "Function call is missing a thought_signature in functionCall parts."
        if any("thoughtSignature" in part for part in parts if part not in calls and part not in answers):
            return "Corrupted thought signature."
    return None


def _function(part: Body) -> tuple[str, Body]:
    return part["functionCall"]["name"], part["functionCall"].get("args") or {}


def _of_options(request: Body) -> str | None:
    system = request.get("system_instruction") or request.get("systemInstruction")
    if system and not all(part.get("text") for part in system["parts"]):
        return "system_instruction.parts.text must not be empty."
    config = _camel(request.get("generationConfig") or {})
    if request.get("tools") and config.get("responseMimeType") == "application/json":
        return "Function calling with a response mime type: 'application/json' is unsupported"
    return None
