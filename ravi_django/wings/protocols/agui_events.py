"""The events of a run in AG-UI, with the official types.

Those types are imported by the first call: a process that has no such clients does not load them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json, to_json

from ravi_django.agents.tools.client_tool import NOT_ANSWERED, PREFIX
from ravi_django.api.exchange import Format
from ravi_django.people.answers import OUTCOMES
from ravi_django.runs.teams import board
from ravi_django.services.exchanges import Exchange
from ravi_django.services.pieces import (
    Arguments,
    Asked,
    Begun,
    Call,
    Child,
    Ended,
    Piece,
    Result,
    State,
    Task,
    Text,
    Usage,
)

OWN_STATE = ("run", "session", "board")  # names in the state of a client
VERSION = "1.0"  # of the protocol
OURS = "ravi-result-"  # begins the ids of tool messages that the client has from this server


class AguiFormat(Format):
    """Events of a run."""

    def __init__(
        self,
        exchange: Exchange,
        thread: str | None,
        sent: Any,
        *,
        reset: list[Any],
        tools: list[dict[str, Any]],
    ) -> None:
        self._session, self._run = str(exchange.run.session_id), str(exchange.run.tree_id)
        self._ids = {"threadId": thread or self._session, "runId": sent.run_id}
        self._tasks = {str(task.id): board.as_json(task) for task in exchange.run.session.board.all()}
        self._knows_children = sent.protocol_version is not None  # clients before 1.0 refuse events of sub-agents
        self._shared = exchange.run.session.shared_state or {}
        self._reset = reset if exchange.is_repeat and not exchange.after else []  # for a snapshot
        self._client_tools = {tool["name"] for tool in exchange.run.client_tools or ()}
        self._ignored = sorted({tool["name"] for tool in tools} - self._client_tools)
        self._open: dict[str, Text] = {}  # by child, "" for the root: of the message that is being written
        self._children: dict[str, None] = {}  # those that have not ended
        self._written: dict[str, str] = {}  # by call: the arguments that the client has got so far, without an end
        self._ids_of: dict[str, str] = {}  # by call: the id that the client has, where it is another one

    def begin(self) -> Iterator[bytes]:
        version = {"protocolVersion": VERSION} if self._knows_children else {}
        yield _event("RUN_STARTED", **self._ids, **version)
        if self._reset:
            yield b"data: %s\n\n" % to_json({"type": "MESSAGES_SNAPSHOT", "messages": self._reset})  # not validated
        yield self._state()
        if self._ignored:
            text = "the run has not these tools of the client: its agent takes none, or an earlier call began it"
            yield _event("CUSTOM", name="ravi.tools_ignored", value={"tools": self._ignored, "message": text})

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Task():
                self._tasks[piece.task["id"]] = piece.task
                yield self._state()
            case State():
                self._shared = piece.state
                yield self._state()
            case Child():
                if self._knows_children:
                    yield from self._of_child(piece)
            case Asked():
                yield from self._close()
                yield from self._asked(piece.requests)
            case Ended():
                yield from self._close()
                yield from self._drop_rest()
                yield from self._ended(piece)
            case _:
                yield from self._of_run(piece)

    def _of_run(self, piece: Any, run: str = "") -> Iterator[bytes]:
        """Text, a call or a result. `run`: of this child."""
        if isinstance(piece, Text):
            yield from self._say(piece, run)
            return
        yield from self._close(run)
        match piece:
            case Arguments():
                if piece.id not in self._written:
                    tool = piece.tool.removeprefix(PREFIX) if self._is_clients(piece.tool) else piece.tool
                    yield self._start(piece.id, tool, parentMessageId=piece.message)
                    self._written[piece.id] = ""
                self._written[piece.id] += piece.text
                yield _event("TOOL_CALL_ARGS", toolCallId=piece.id, delta=piece.text)
            case Call(tool=tool) if not run and self._is_clients(tool):  # the client runs it once the run waits for it
                return
            case Call():
                yield from self._call(piece.id, piece.tool, piece.arguments, run, parentMessageId=piece.message)
            case Result() if not run and piece.id in self._written:  # the client shall not run it: it is not valid
                yield from self._drop(piece.id, piece.text)
            case Result(tool=tool) if not run and self._is_clients(tool) and piece.text != NOT_ANSWERED:
                return
            case Result():
                yield self._result(piece.id, piece.text, run)

    def _of_child(self, child: Child) -> Iterator[bytes]:
        match child.piece:
            case Begun(agent, parent, call):
                above = {"parentSubagentRunId": parent} if parent else {}
                above |= {"parentToolCallId": call} if call else {}
                self._children[child.run] = None
                yield _event("SUBAGENT_STARTED", child.run, name=agent, **above)
            case Ended(status="completed"):
                yield from self._close(child.run)
                self._children.pop(child.run, None)
                yield _event("SUBAGENT_FINISHED", child.run)
            case Ended():
                yield from self._close(child.run)
                self._children.pop(child.run, None)
                yield _event("SUBAGENT_ERROR", child.run, **_error(child.piece))
            case _:
                yield from self._of_run(child.piece, child.run)

    def _ended(self, piece: Ended) -> Iterator[bytes]:
        if piece.status in ("completed", "cancelled"):
            kind = "success" if piece.status == "completed" else "cancelled"
            yield from self._finished({"type": kind}, piece.usage)
        else:
            yield _event("RUN_ERROR", **_error(piece))

    def _is_clients(self, tool: str) -> bool:
        return tool.startswith(PREFIX) and tool.removeprefix(PREFIX) in self._client_tools

    def _call(self, id: str, tool: str, arguments: Any, run: str = "", again: str = "", **more: Any) -> Iterator[bytes]:
        """`again`: the id of the call where the client has got other arguments, of a lost attempt."""
        text = None if run else self._written.get(id)
        if text is not None and _is_json_of(text, arguments):
            del self._written[id]
            yield _event("TOOL_CALL_END", toolCallId=id)
            return
        if text is not None:
            yield from self._drop(id, "the call was written again")
            again = self._ids_of[id] = again or f"{id}-again"
            id = again
        yield self._start(id, tool, run, **more)
        yield _event("TOOL_CALL_ARGS", run, toolCallId=id, delta=to_json(arguments or {}).decode())
        yield _event("TOOL_CALL_END", run, toolCallId=id)

    def _start(self, id: str, tool: str, run: str = "", **more: Any) -> bytes:
        return _event("TOOL_CALL_START", run, toolCallId=id, toolCallName=tool, **more)

    def _result(self, id: str, text: str, run: str = "") -> bytes:
        id = id if run else self._ids_of.get(id, id)
        return _event("TOOL_CALL_RESULT", run, messageId=f"{OURS}{id}", toolCallId=id, content=text, role="tool")

    def _drop(self, id: str, text: str) -> Iterator[bytes]:
        """End a call that the client has in part. With a result, so that no client runs it."""
        del self._written[id]
        yield _event("TOOL_CALL_END", toolCallId=id)
        yield self._result(id, text)

    def _drop_rest(self) -> Iterator[bytes]:
        """End the calls that an attempt of the model has begun, and that its answer has not."""
        for id in [*self._written]:
            yield from self._drop(id, "the call was not made")

    def _asked(self, requests: list[dict[str, Any]]) -> Iterator[bytes]:
        """The end of a stream whose run waits. The client answers a call of its tool by a tool message. Such an end has
        no outcome: assistant-ui sends no result after a success."""
        for request in requests:
            if "call_id" in request:
                tool, again = request["tool"].removeprefix(PREFIX), request["id"]
                yield from self._call(request["call_id"], tool, request["arguments"], again=again)
        yield from self._drop_rest()
        interrupts = [_interrupt(request) for request in requests if "call_id" not in request]
        yield from self._finished({"type": "interrupt", "interrupts": interrupts} if interrupts else None)

    def _say(self, piece: Text, run: str) -> Iterator[bytes]:
        last = self._open.get(run)
        if last is None or last.message != piece.message or last.is_reasoning != piece.is_reasoning:
            yield from self._close(run)
            self._open[run] = piece
            if piece.is_reasoning:
                yield _event("REASONING_START", run, messageId=_reasoning(piece))
                yield _event("REASONING_MESSAGE_START", run, messageId=_reasoning(piece), role="reasoning")
            else:
                yield _event("TEXT_MESSAGE_START", run, messageId=piece.message, role="assistant")
        if piece.is_reasoning:
            yield _event("REASONING_MESSAGE_CONTENT", run, messageId=_reasoning(piece), delta=piece.text)
        else:
            yield _event("TEXT_MESSAGE_CONTENT", run, messageId=piece.message, delta=piece.text)

    def _close(self, run: str = "") -> Iterator[bytes]:
        if (message := self._open.pop(run, None)) is None:
            return
        if message.is_reasoning:
            yield _event("REASONING_MESSAGE_END", run, messageId=_reasoning(message))
            yield _event("REASONING_END", run, messageId=_reasoning(message))
        else:
            yield _event("TEXT_MESSAGE_END", run, messageId=message.message)

    def _state(self) -> bytes:
        fields = {"run": self._run, "session": self._session, "board": [*self._tasks.values()]}
        return _event("STATE_SNAPSHOT", snapshot={**self._shared, **fields})

    def _finished(self, outcome: dict[str, Any] | None, usage: Usage | None = None) -> Iterator[bytes]:
        for child in self._children:
            yield from self._close(child)
            yield _event("SUBAGENT_FINISHED", child, outcome={"type": "suspended"})
        end: dict[str, Any] = {"outcome": outcome} if outcome else {}
        end |= {"usage": [{"inputTokens": usage[0], "outputTokens": usage[1]}]} if usage else {}
        yield _event("RUN_FINISHED", **self._ids, **end)

    def fault(self, code: str, message: str) -> bytes:
        return _event("RUN_ERROR", message=message, code=code, metadata={"run": self._run})


def _error(piece: Ended) -> dict[str, str]:
    message = piece.error.get("message") or f"the run is {piece.status}"
    return {"message": message, "code": piece.error.get("type") or piece.status}


def _is_json_of(text: str, arguments: Any) -> bool:
    try:
        return bool(from_json(text) == (arguments or {}))
    except ValueError:
        return False


def _reasoning(piece: Text) -> str:
    return f"{piece.message}/reasoning"


def _interrupt(request: dict[str, Any]) -> dict[str, Any]:
    """`resume` answers it with the body of `POST requests/{id}/answer/`, or a text."""
    actions, questions = request["actions"], request["questions"] or {}
    fields: dict[str, Any] = {"action": {"type": "string", "enum": actions}, "reason": {"type": "string"}}
    if "edit" in actions:
        fields["arguments"] = request["schema"] or {"type": "object"}
    if questions:
        texts = {key: {"type": "string", "title": text} for key, text in questions.items()}
        fields["values"] = {"type": "object", "properties": texts, "required": [*texts]}
    elif "answer" in actions:
        fields["text"] = {"type": "string", **({} if request["free_text"] else {"enum": request["choices"]})}
    if "resolve" in actions:
        fields |= {"outcome": {"type": "string", "enum": [*OUTCOMES]}, "result": {}}
    expires = {"expiresAt": request["expires_at"]} if request["expires_at"] else {}
    return {
        "id": request["id"],
        "reason": request["kind"],
        "message": request["text"] or request["kind"],
        "responseSchema": {"type": "object", "properties": fields, "required": ["action"]},
        "metadata": {"request": request},
        **expires,
    }


def _event(kind: str, run: str = "", **fields: Any) -> bytes:
    """The official type checks the event, and writes it. `run`: of this child."""
    from ag_ui.core import Event
    from pydantic import TypeAdapter

    global _adapter
    _adapter = _adapter or TypeAdapter(Event)
    event: Any = _adapter.validate_python({"type": kind, **({"subagentRunId": run} if run else {}), **fields})
    return b"data: %s\n\n" % event.model_dump_json(by_alias=True).encode()


_adapter: Any = None
