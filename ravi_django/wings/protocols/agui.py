"""AG-UI for agents: `threadId` names the session. Events have the official types of `ag-ui-protocol`.

Those types are imported by the first call: a process that has no such clients does not load them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from ravi_django.api.exchange import ExchangeView, Format, thread_of
from ravi_django.api.openapi import documented
from ravi_django.kernel import AgentId, InputTooLargeError, InvalidInputError
from ravi_django.kernel.identity import DEFAULT_NAMESPACE
from ravi_django.kernel.json_values import digest_of
from ravi_django.runs.teams import board
from ravi_django.services import exchanges
from ravi_django.services.exchanges import ClientMessage, Exchange, Input
from ravi_django.services.pieces import Asked, Call, Ended, Piece, Result, Task, Text, Usage

OURS = "ravi-result-"  # begins the ids of tool messages that the client has from this server
INSTEAD = "use POST v1/chat/completions"
MAX_HISTORY, HISTORY_BYTES = 1000, 1024 * 1024  # of the client's messages in a snapshot


class AguiView(ExchangeView):
    limit = "submit"

    @documented("agui_run", request=dict, ok={(200, "text/event-stream"): str}, errors=[404, 409])
    def post(self, request: Any, type: str, key: str, namespace: str = DEFAULT_NAMESPACE) -> Any:
        """Run an agent by AG-UI: the body is a RunAgentInput, the answer a stream of events.

        A new `threadId` begins a conversation of the user with this name, of at most 200 characters. Requests to the
        user are interrupts, which `resume` answers.
        A repeat with the same `threadId` and `runId` follows the first run from its start. It may have the part of the
        reply that the client received: MESSAGES_SNAPSHOT removes it.
        """
        agent, messages = AgentId(type, key, namespace), request.data.get("messages")
        sent = _input(request.data, [] if isinstance(messages, list) else messages)
        thread = thread_of(sent.thread_id, "threadId")
        once = digest_of([thread, sent.run_id]) if thread and sent.run_id else self.key
        first, reset = _without_reply(messages)
        if once and not sent.resume and exchanges.is_known(request.user, agent, once):
            messages = first
        message = _answers(sent) if sent.resume else _read(request.data, messages)

        def begin() -> Exchange:
            exchange = exchanges.begin(request.user, agent, thread, message, idempotency_key=once)
            if exchange.is_repeat and reset and not exchanges.asked(exchange):
                return replace(exchange, after=0)  # the snapshot removes the whole reply
            return exchange

        return self.stream(begin, partial(AguiFormat, thread=thread, run_id=sent.run_id, reset=reset), INSTEAD)


def _input(body: dict[str, Any], messages: Any, first: int = 0) -> Any:
    """The body with these messages, the first of which is `messages.<first>` of the client, in the official type."""
    from ag_ui.core import RunAgentInput

    for name in ("tools", "context"):
        if body.get(name):
            raise InvalidInputError(f"{name} of the client are not possible: an agent has its own", field=name)
    if isinstance(body.get("resume"), list) and len(body["resume"]) > exchanges.MAX_PARTS:
        raise InputTooLargeError(f"a call has at most {exchanges.MAX_PARTS} answers", field="resume")
    try:
        return RunAgentInput.model_validate({**body, "messages": messages})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location: list[Any] = [*fault["loc"]]
        if location[0] == "messages" and len(location) > 1:
            location[1] += first
        raise InvalidInputError(fault["msg"], field=".".join(map(str, location))) from None


def _answers(sent: Any) -> Input:
    """Answers by `resume`."""
    payloads = (one.payload if one.status == "resolved" else {"action": "cancel"} for one in sent.resume)
    pairs = zip(sent.resume, payloads, strict=True)
    answers = (ClientMessage("tool", payload, one.interrupt_id) for one, payload in pairs)
    return exchanges.read(enumerate(answers), "resume")


def _read(body: dict[str, Any], messages: list[Any]) -> Input:
    """The messages after the last one of the assistant. The others are not validated."""
    new = exchanges.new(messages, lambda one: _role(one) in ("assistant", "reasoning"))
    first = new[0][0] if new else 0
    typed = enumerate(_input(body, [message for _, message in new], first).messages, first)
    return exchanges.read((index, sent) for index, message in typed if (sent := _sent(message)) is not None)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _without_reply(messages: list[Any]) -> tuple[list[Any], list[Any]]:
    """The messages of the first call of a run, and the snapshot that removes the others from the client. A client keeps
    its reasoning messages, unless the snapshot has one."""
    end = exchanges.first_new(messages, lambda one: _role(one) == "user")
    first, reply = messages[:end], messages[end:]
    if not reply or not all(_is_reply(one) for one in reply):
        return messages, []
    thought = [{**one, "content": ""} for one in reply if _role(one) == "reasoning"][:1]
    return first, [*_newest(first), *thought]


def _is_reply(message: Any) -> bool:
    """Whether the message is a part of an agent's reply."""
    if _role(message) == "tool":
        return str(message.get("id")).startswith(OURS)
    return _role(message) in ("assistant", "reasoning", "activity")


def _newest(messages: list[Any]) -> list[Any]:
    """The newest messages, at most MAX_HISTORY and HISTORY_BYTES, as the client sent them."""
    newest, room = [], HISTORY_BYTES
    for message in reversed(messages[-MAX_HISTORY:]):
        room -= len(to_json(message))
        if room < 0:
            break
        newest.append(message)
    return newest[::-1]


def _sent(message: Any) -> ClientMessage | None:
    match message.role:
        case "activity":
            return None
        case "tool":
            is_ours = str(message.id).startswith(OURS)
            return None if is_ours else ClientMessage("tool", message.content, message.tool_call_id)
    content = message.content
    if isinstance(content, list):
        content = [part.model_dump(by_alias=True, mode="json") for part in content]
    return ClientMessage(message.role, content)


class AguiFormat(Format):
    """Events of a run."""

    def __init__(self, exchange: Exchange, thread: str | None, run_id: str, reset: list[Any]) -> None:
        self._session, self._run = str(exchange.run.session_id), str(exchange.run.tree_id)
        self._ids = {"threadId": thread or self._session, "runId": run_id}
        self._tasks = {str(task.id): board.as_json(task) for task in exchange.run.session.board.all()}
        self._reset = reset if exchange.is_repeat and not exchange.after else []  # for a snapshot
        self._open: Text | None = None  # of the message that is being written

    def begin(self) -> Iterator[bytes]:
        yield _event("RUN_STARTED", **self._ids)
        if self._reset:
            yield b"data: %s\n\n" % to_json({"type": "MESSAGES_SNAPSHOT", "messages": self._reset})  # not validated
        yield self._state()

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Text():
                yield from self._say(piece)
                return
            case Task():
                self._tasks[piece.task["id"]] = piece.task
                yield self._state()
                return
        yield from self._close()
        match piece:
            case Call():
                yield _event(
                    "TOOL_CALL_START", toolCallId=piece.id, toolCallName=piece.tool, parentMessageId=piece.message
                )
                yield _event("TOOL_CALL_ARGS", toolCallId=piece.id, delta=to_json(piece.arguments or {}).decode())
                yield _event("TOOL_CALL_END", toolCallId=piece.id)
            case Result():
                message = f"{OURS}{piece.id}"
                yield _event(
                    "TOOL_CALL_RESULT", messageId=message, toolCallId=piece.id, content=piece.text, role="tool"
                )
            case Asked():
                interrupts = [_interrupt(request) for request in piece.requests]
                yield self._finished({"type": "interrupt", "interrupts": interrupts})
            case Ended(status="completed" | "cancelled"):
                is_done = piece.status == "completed"
                yield self._finished({"type": "success" if is_done else "cancelled"}, piece.usage)
            case Ended():
                message = piece.error.get("message") or f"the run is {piece.status}"
                yield _event("RUN_ERROR", message=message, code=piece.error.get("type") or piece.status)

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
        snapshot = {"run": self._run, "session": self._session, "board": [*self._tasks.values()]}
        return _event("STATE_SNAPSHOT", snapshot=snapshot)

    def _finished(self, outcome: dict[str, Any], usage: Usage | None = None) -> bytes:
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
