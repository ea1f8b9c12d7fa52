"""The events of a run in AG-UI, with the official types.

Those types are imported by the first call: a process that has no such clients does not load them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from ravi_django.agents.tools.client_tool import PREFIX
from ravi_django.api.exchange import Format
from ravi_django.runs.teams import board
from ravi_django.services.exchanges import Exchange
from ravi_django.services.pieces import Asked, Call, Ended, Piece, Result, State, Task, Text

OWN_STATE = ("run", "session", "board")  # names in the state of a client
OURS = "ravi-result-"  # begins the ids of tool messages that the client has from this server


class AguiFormat(Format):
    """Events of a run."""

    def __init__(
        self, exchange: Exchange, thread: str | None, run_id: str, reset: list[Any], tools: list[dict[str, Any]]
    ) -> None:
        self._session, self._run = str(exchange.run.session_id), str(exchange.run.tree_id)
        self._ids = {"threadId": thread or self._session, "runId": run_id}
        self._tasks = {str(task.id): board.as_json(task) for task in exchange.run.session.board.all()}
        self._shared = exchange.run.session.shared_state or {}
        self._reset = reset if exchange.is_repeat and not exchange.after else []  # for a snapshot
        self._client_tools = {tool["name"] for tool in exchange.run.client_tools or ()}
        self._ignored = sorted({tool["name"] for tool in tools} - self._client_tools)
        self._called: set[str] = set()  # ids of the calls that the client has
        self._open: Text | None = None  # of the message that is being written

    def begin(self) -> Iterator[bytes]:
        yield _event("RUN_STARTED", **self._ids)
        if self._reset:
            yield b"data: %s\n\n" % to_json({"type": "MESSAGES_SNAPSHOT", "messages": self._reset})  # not validated
        yield self._state()
        if self._ignored:
            text = "the run has not these tools of the client: its agent takes none, or an earlier call began it"
            yield _event("CUSTOM", name="ravi.tools_ignored", value={"tools": self._ignored, "message": text})

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Text():
                yield from self._say(piece)
                return
            case Task():
                self._tasks[piece.task["id"]] = piece.task
                yield self._state()
                return
            case State():
                self._shared = piece.state
                yield self._state()
                return
        yield from self._close()
        match piece:
            case Call():
                yield from self._call(piece.id, piece.tool, piece.arguments, parentMessageId=piece.message)
            case Result():
                message = f"{OURS}{piece.id}"
                yield _event(
                    "TOOL_CALL_RESULT", messageId=message, toolCallId=piece.id, content=piece.text, role="tool"
                )
            case Asked():
                yield from self._asked(piece.requests)
            case Ended(status="completed" | "cancelled"):
                is_done = piece.status == "completed"
                yield self._finished({"type": "success" if is_done else "cancelled"}, piece.usage)
            case Ended():
                message = piece.error.get("message") or f"the run is {piece.status}"
                yield _event("RUN_ERROR", message=message, code=piece.error.get("type") or piece.status)

    def _call(self, id: str, tool: str, arguments: Any, **more: Any) -> Iterator[bytes]:
        name = tool.removeprefix(PREFIX)
        self._called.add(id)
        yield _event(
            "TOOL_CALL_START", toolCallId=id, toolCallName=name if name in self._client_tools else tool, **more
        )
        yield _event("TOOL_CALL_ARGS", toolCallId=id, delta=to_json(arguments or {}).decode())
        yield _event("TOOL_CALL_END", toolCallId=id)

    def _asked(self, requests: list[dict[str, Any]]) -> Iterator[bytes]:
        """The end of a stream whose run waits. The client answers a call of its tool by a tool message."""
        for request in requests:
            if "call_id" in request and request["call_id"] not in self._called:
                yield from self._call(request["call_id"], request["tool"], request["arguments"])
        interrupts = [_interrupt(request) for request in requests if "call_id" not in request]
        yield self._finished({"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"})

    def _say(self, piece: Text) -> Iterator[bytes]:
        is_same = self._open is not None and self._open.message == piece.message
        if self._open is None or not is_same or self._open.is_reasoning != piece.is_reasoning:
            yield from self._close()
            self._open = piece
            if piece.is_reasoning:
                yield _event("REASONING_START", messageId=_reasoning(piece))
                yield _event("REASONING_MESSAGE_START", messageId=_reasoning(piece), role="reasoning")
            else:
                yield _event("TEXT_MESSAGE_START", messageId=piece.message, role="assistant")
        if piece.is_reasoning:
            yield _event("REASONING_MESSAGE_CONTENT", messageId=_reasoning(piece), delta=piece.text)
        else:
            yield _event("TEXT_MESSAGE_CONTENT", messageId=piece.message, delta=piece.text)

    def _close(self) -> Iterator[bytes]:
        message, self._open = self._open, None
        if message is None:
            return
        if message.is_reasoning:
            yield _event("REASONING_MESSAGE_END", messageId=_reasoning(message))
            yield _event("REASONING_END", messageId=_reasoning(message))
        else:
            yield _event("TEXT_MESSAGE_END", messageId=message.message)

    def _state(self) -> bytes:
        own = {"run": self._run, "session": self._session, "board": [*self._tasks.values()]}
        return _event("STATE_SNAPSHOT", snapshot={**self._shared, **own})

    def _finished(self, outcome: dict[str, Any], usage: tuple[int, int, int] | None = None) -> bytes:
        tokens = {"usage": [{"inputTokens": usage[0], "outputTokens": usage[1]}]} if usage else {}
        return _event("RUN_FINISHED", **self._ids, outcome=outcome, **tokens)

    def fault(self, code: str, message: str) -> bytes:
        return _event("RUN_ERROR", message=message, code=code, metadata={"run": self._run})


def _reasoning(piece: Text) -> str:
    return f"{piece.message}/reasoning"


def _interrupt(request: dict[str, Any]) -> dict[str, Any]:
    """`resume` answers it with the body of `POST requests/{id}/answer/`, or a text."""
    action = {"type": "string", "enum": request["actions"]}
    fields = {"action": action, "text": {"type": "string"}, "reason": {"type": "string"}}
    expires = {"expiresAt": request["expires_at"]} if request["expires_at"] else {}
    return {
        "id": request["id"],
        "reason": request["kind"],
        "message": request["text"] or request["kind"],
        "responseSchema": {"type": "object", "properties": fields, "required": ["action"]},
        "metadata": {"request": request},
        **expires,
    }


def _event(kind: str, **fields: Any) -> bytes:
    """The official type checks the event, and writes it."""
    from ag_ui.core import Event
    from pydantic import TypeAdapter

    global _adapter
    _adapter = _adapter or TypeAdapter(Event)
    event: Any = _adapter.validate_python({"type": kind, **fields})
    return b"data: %s\n\n" % event.model_dump_json(by_alias=True).encode()


_adapter: Any = None
