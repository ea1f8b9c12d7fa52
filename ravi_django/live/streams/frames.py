"""The frames that websocket, SSE and polling clients see: plain JSON, numbered over the whole run tree by the buffer.

Durable frames derive from journal rows, so they can be made again after a crash. Their key, (run, journal seq, index),
lets the buffer drop the second copy. Deltas, and the starts of calls, are in the buffer alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json, to_json

from ravi_django import wing
from ravi_django.agents.memory.compaction.summarization import SCOPE as SUMMARY_SCOPE
from ravi_django.engine.journal.entries import encode
from ravi_django.kernel import AgentStep
from ravi_django.live.streams import hidden
from ravi_django.models import HumanRequest, Run

ASKED = ("request", "request.closed")  # frames about a request


def request_as_json(request: HumanRequest) -> dict[str, Any]:
    """The fields that are the same for every reader; the surfaces add run, root and agent."""
    about = request.about
    is_answered = request.status == HumanRequest.Status.ANSWERED
    return {
        "id": str(request.id),
        "kind": str(request.kind),
        "status": str(request.status),
        "text": request.text,
        "choices": request.choices,
        "tool": request.tool,
        "arguments": None if request.kind == HumanRequest.Kind.QUESTION else request.arguments,
        "risk": str(request.risk),
        "context": str(about.get("context", "")),
        "free_text": bool(about.get("free_text", True)),
        "questions": about.get("questions"),
        "to": request.to,
        "created_at": in_utc(request.created_at),
        "expires_at": in_utc(request.expires_at),
        "answered_by": name_of(request),
        "answered_at": in_utc(request.answered_at) if is_answered else None,
        "version": request.version,
        **({"hidden": True} if about.get("hidden") is True else {}),
        **({"call_id": about["call_id"]} if request.kind == HumanRequest.Kind.CLIENT_TOOL else {}),
    }


def name_of(request: HumanRequest) -> str | None:
    """The name of the person who answered. It stays when the user is deleted. None: nobody, or the site's operator."""
    if request.answered_by is not None:
        return str(request.answered_by.get_username())
    return (request.answer or {}).get("by") or None if isinstance(request.answer, dict) else None


def nameless(request: dict[str, Any]) -> dict[str, Any]:
    """As frames store it: readers take the approvers and the answerer from the request's row, where a name can be
    erased."""
    return {name: value for name, value in request.items() if name not in ("to", "answered_by")}


def named(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Frames of a stream with the present approvers and the answerer of each request."""
    ids = {frame["id"] for frame in frames if frame["type"] in ASKED}
    rows = HumanRequest.objects.select_related("answered_by").filter(id__in=ids) if ids else ()
    requests = {str(row.id): row for row in rows}
    return [_named(frame, requests.get(frame["id"])) if frame["type"] in ASKED else frame for frame in frames]


def _named(frame: dict[str, Any], request: HumanRequest | None) -> dict[str, Any]:
    if frame["type"] == "request":
        return {**frame, "to": request.to if request else "", "answered_by": None}
    return {**frame, "answered_by": name_of(request) if request and frame["status"] == "answered" else None}


def in_utc(moment: datetime | None) -> str | None:
    """ISO 8601 with a Z."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


STREAM = "agent.stream"  # TopicId(STREAM, agent key): one agent's tokens
TEXTS = ("text.delta", "reasoning.delta", "completion")  # its frames
ARGUMENTS = "arguments.delta"  # a piece of a tool's arguments while the model writes them
_OF_CALL = ("call", "attempt", "call_id")  # pieces with the same are parts of one text
CLIP = 4000  # characters of a tool's arguments or result in a frame; the journal has the whole


@dataclass(frozen=True, slots=True)
class Source:
    """The run that a frame is from; the same for all frames of one lease."""

    tree: str  # id of the root, which numbers the frames
    run: str
    agent: str
    parent: str | None
    depth: int
    epoch: int
    parent_agent: str | None = None  # address of the parent

    @classmethod
    def of(cls, run: Run, epoch: int | None = None) -> Source:
        return cls(
            tree=str(run.tree_id),
            run=str(run.id),
            agent=run.agent,
            parent=str(run.parent_id) if run.parent_id else None,
            depth=run.depth,
            epoch=run.lease_epoch if epoch is None else epoch,
            parent_agent=run.parent.agent if run.parent else None,
        )


@dataclass(slots=True)
class Frame:
    """A frame on its way to the buffer, which numbers it."""

    source: Source
    type: str
    data: dict[str, Any]
    key: str = ""  # set for durable frames

    def encoded(self) -> bytes:
        """The body as JSON; values of an agent that are not JSON become text."""
        return encode(self.body())

    def body(self) -> dict[str, Any]:
        source = self.source
        return {
            "type": self.type,
            "run": source.run,
            "agent": source.agent,
            "parent": source.parent,
            "parent_agent": source.parent_agent,
            "depth": source.depth,
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            **self.data,
        }

    def absorb(self, later: Frame) -> bool:
        """Append a later delta of the same call, so that many tokens cost one frame."""
        data, later_data = self.data, later.data
        if (
            self.type != later.type
            or "text" not in data
            or "call" not in data
            or self.source != later.source
            or any(data.get(name) != later_data.get(name) for name in _OF_CALL)
        ):
            return False
        data["text"] += later_data["text"]
        return True


def delta(source: Source, type: str, text: str, *, call: str, attempt: str, **more: str) -> Frame:
    """A piece of a model's text. A new `attempt` of the same `call` replaces the text of the earlier attempt. With
    `tool` and `call_id` it is a piece of a tool's arguments."""
    return Frame(source, type, {"text": text, "call": call, "attempt": attempt, **more})


def progress(source: Source, step: AgentStep, content: Any = None) -> Frame:
    return Frame(source, "progress", {"step": step.value, "content": content})


def stream_done(source: Source, reason: str) -> Frame:
    """The end of a tree's stream. A retry leads to another end, of a later `attempt`; only the newest one counts."""
    data = {"reason": reason, "attempt": str(source.epoch)}
    return Frame(source, "stream.done", data, key=f"{source.run}:done:{source.epoch}")


def durable(source: Source, entry: Any, seq: int) -> list[Frame]:
    """The frames that follow from a journal row: an Entry that was just appended, or a JournalEntry."""
    bodies = [*_closed_by(entry), *_of_entry(entry)]
    is_hidden = hidden.is_marked(entry.kind, entry.request, entry.result, entry.name)
    for type, data in bodies:
        if type == "request":
            data["root"] = source.tree
        elif is_hidden and type not in ("request.closed", "board"):
            data[hidden.MARK] = True
    return [Frame(source, type, data, key=f"{source.run}:{seq}:{index}") for index, (type, data) in enumerate(bodies)]


def _closed_by(entry: Any) -> list[tuple[str, dict[str, Any]]]:
    """The requests that were open when the run or its generation ended: no code waits for their answers any more."""
    if not entry.kind.startswith("run.") or not isinstance(entry.result, dict):
        return []
    return [_closed({"id": request_id, "status": "cancelled"}) for request_id in entry.result.get("closed", ())]


def authors(rows: Sequence[Any], sources: dict[Any, Source]) -> list[Source]:
    """The source of each of these journal rows, oldest first. `sources`, by run, are those after the last row; the call
    changes them to those before the first. The rows before a handoff have the former agent."""
    newest_first = []
    for row in reversed(rows):
        if row.kind == "run.handoff" and row.error is None:
            sources[row.run_id] = replace(sources[row.run_id], agent=row.result["from"])
        newest_first.append(sources[row.run_id])
    return newest_first[::-1]


def _of_entry(entry: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    if entry.phase != "result":
        return [_step(AgentStep.PAUSED, _paused(entry))] if entry.phase == "paused" else []
    match entry.kind:
        case "run.started":
            return [_step(AgentStep.STARTED, None)]
        case "llm.call" if SUMMARY_SCOPE in entry.path:  # a summary is not an answer to the user
            return []
        case "llm.call" if entry.error is None:
            return [("completion", _completion(entry))]
        case "chat.output":
            block = {"type": "text", "text": (entry.result or {}).get("text", "")}
            return [("completion", {"content": [block], "usage": {}, "cost": None, "call": entry.path})]
        case "tool.call":
            task = (entry.result or {}).get("board")
            return [_step(AgentStep.TOOL_RESULT, _tool_result(entry)), *([("board", {"task": task})] if task else [])]
        case "run.completed":
            return [_step(AgentStep.DONE, None)]
        case "run.retried" if entry.error is None:  # by a person: a new start, no error
            asked = (entry.result or {}).get("opened", ())  # opened again: the failure had closed them
            return [_step(AgentStep.STARTED, {"status": "retried"}), *(("request", nameless(one)) for one in asked)]
        case "run.failed" | "run.blocked" | "run.cancelled" | "run.retried":
            error = entry.error or {}
            code, message = error.get("type", "Error"), error.get("message", "")
            return [
                _step(AgentStep.ERROR, {"status": entry.kind.removeprefix("run."), "type": code, "message": message}),
                ("error", {"code": code, "message": message}),
            ]
        case _:
            return _of_waiting(entry)


def _of_waiting(entry: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    result = entry.result or {}
    match entry.kind:
        case "run.suspended":
            return [_step(AgentStep.PAUSED, result)]
        case "child.spawned" if entry.error is None:
            return [_step(AgentStep.HANDOFF, {"agent": entry.name, **result})]
        case "run.handoff" if entry.error is None:  # the callee's `started` is next
            return [_step(AgentStep.HANDOFF, {"agent": entry.name, "from": result.get("from")})]
        case "state.set":
            return [("state", result)]
        case "request.opened":
            return [("request", nameless(result))]
        case "request.closed" | "ask_human":
            return [_closed(result)]
        case "log" | "msg.sent":
            return _reported(entry)
        case "approval" if "id" in result:  # else no person was asked
            return [_closed(result)]
        case _:
            return []


def _reported(entry: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """The progress that an agent's code reports."""
    if entry.kind == "log":
        frame = wing.find("frames", entry.name)
        return [] if frame is None else [_step(*frame(entry))]
    report = (entry.result or {}).get("progress")
    return [] if report is None else [_step(AgentStep(report["step"]), report["content"])]


_UNANSWERED = {"expired": "expired", "signal": "cancelled"}  # by the recorded action of the answer


def _closed(result: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """How a request ended; its readers look up the answerer."""
    answer = result.get("answer") or result
    status = answer.get("status") or _UNANSWERED.get(answer.get("action", ""), "answered")
    return "request.closed", {"id": result.get("id"), "status": status}


def _step(step: AgentStep, content: Any) -> tuple[str, dict[str, Any]]:
    return "progress", {"step": step.value, "content": content}


def _completion(entry: Any) -> dict[str, Any]:
    usage = entry.usage
    result = entry.result or {}
    return {
        "content": result.get("content", []),
        "usage": usage.model_dump() if usage else {},
        "cost": None if entry.cost is None else float(entry.cost),
        "call": entry.path,
        **{key: result[key] for key in ("finish_reason",) if key in result},  # where it is not "stop"
    }


def _tool_result(entry: Any) -> dict[str, Any]:
    if entry.error is not None:
        text, is_error = str(entry.error.get("message", "")), True
    else:
        result = entry.result or {}
        text = "\n".join(block.get("text", "") for block in result.get("content", []) if block.get("type") == "text")
        is_error = bool(result.get("is_error"))
    call_id = (entry.request or {}).get("call_id", "")
    return {"tool": entry.name, "call_id": call_id, "is_error": is_error, "text": text[:CLIP], "path": entry.path}


def _paused(entry: Any) -> dict[str, Any]:
    result = entry.result or {}
    waited = {"request": result["id"]} if result.get("pause") == "input" else {"child": result.get("run")}
    call_id = (entry.request or {}).get("call_id", "")
    return {"tool": entry.name, "call_id": call_id, "path": entry.path, "attempt": result.get("attempt"), **waited}


def collapse(frames: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sequence as it is archived: neighbouring deltas of a call become one with the range of their
    numbers, `from_seq` to `seq`, and the `sizes` of their texts, by which `rest` cuts it. Of arguments only the numbers
    are stored."""
    collapsed: list[dict[str, Any]] = []
    for frame in frames:
        if frame["type"] == ARGUMENTS:
            frame = {**frame, "text": ""}
        last = collapsed[-1] if collapsed else None
        if last is not None and _same_call(last, frame):
            last.setdefault("from_seq", last["seq"])
            last.setdefault("sizes", [len(last["text"])]).append(len(frame["text"]))
            last["seq"] = frame["seq"]
            last["text"] += frame["text"]
        else:
            collapsed.append(dict(frame))
    return collapsed


# What frames have in common, the most frequent last. Never change it: stored archives can be read with it alone.
_COMMON = (
    b'"step":"tool_result","content":{"tool":"","call_id":"call_0","is_error":false,"text":"","path":"turn1.call0.1"}},'
    b'"content":[{"type":"tool_use","tool_name":"","arguments":{},"call_id":"call_0"}],"finish_reason":"tool_calls"},'
    b'"step":"done","content":null},"type":"stream.done","reason":"completed","attempt":"1"}]"step":"started",'
    b'"step":"thinking","content":{"model":"","call":"turn1.1"}},"type":"text.delta","text":"","call":"","attempt":"1"},'
    b'"type":"completion","content":[{"type":"text","text":""}],"usage":{"input_tokens":100,"cached_tokens":0,'
    b'"output_tokens":10,"reasoning_tokens":0,"estimated":false},"cost":0.00,"call":"turn1.1"},[{"seq":1,'
    b'"type":"progress","run":"01","agent":"react/","parent":null,"parent_agent":null,"depth":0,"ts":"2026-'
)


def packed(frames: Iterable[dict[str, Any]]) -> bytes:
    """The frames as an archive stores them."""
    packer = zlib.compressobj(zdict=_COMMON)
    return packer.compress(to_json(collapse(frames))) + packer.flush()


def unpacked(body: bytes) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = from_json(zlib.decompressobj(zdict=_COMMON).decompress(body))
    return frames


def rest(frame: dict[str, Any], after: int) -> dict[str, Any]:
    """A frame of the archive for a client that has all numbers up to `after`."""
    if "sizes" not in frame:
        return frame
    first, sizes = frame["from_seq"], frame["sizes"]
    known = max(0, after + 1 - first)
    whole = {key: value for key, value in frame.items() if key != "sizes"}
    return {**whole, "from_seq": first + known, "text": frame["text"][sum(sizes[:known]) :]}


def _same_call(a: dict[str, Any], b: dict[str, Any]) -> bool:
    same = all(a.get(key) == b.get(key) for key in ("type", "run", *_OF_CALL))
    return same and a["seq"] + 1 == b["seq"] and a["type"] in ("text.delta", "reasoning.delta", ARGUMENTS)
