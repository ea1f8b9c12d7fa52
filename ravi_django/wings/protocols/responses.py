"""OpenAI's Responses API for agents. `conversation` is the session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic_core import to_json
from rest_framework.response import Response

from ravi_django.api.exchange import ExchangeView, Format, thread_of
from ravi_django.api.openapi import documented
from ravi_django.kernel import InvalidInputError
from ravi_django.services import exchanges
from ravi_django.services.exchanges import ClientMessage, Exchange
from ravi_django.services.fields import AgentField, FlagField, ObjectField, StrictSerializer, ValueField
from ravi_django.services.pieces import Asked, Ended, Piece, Text
from ravi_django.wings.protocols.openai import INSTEAD, OpenAIView, arguments_of, failure, timed_out


class ResponsesSerializer(StrictSerializer):
    model = AgentField(help_text="An agent: type/key")
    input = ValueField(help_text="A text, or a list of messages and function_call_output items")
    conversation = ValueField(required=False, allow_null=True, help_text="The conversation: its id or name, or {id}")
    stream = FlagField(required=False, allow_null=True)
    metadata = ObjectField(required=False, allow_null=True)


class ResponsesView(OpenAIView, ExchangeView):
    limit = "submit"
    names = {"agent": "model", "session": "conversation"}

    @documented("v1_responses", request=ResponsesSerializer, ok={200: dict}, errors=[404, 409, 504])
    def post(self, request: Any) -> Any:
        """OpenAI's responses. `conversation` of the answer continues the conversation; a call may also choose its name,
        of at most 200 characters.

        A request to the user is a function_call item, which a function_call_output item answers. 504 after
        WAIT_S; the run goes on.
        """
        body = self.validated(ResponsesSerializer)
        messages = exchanges.read(_sent_after(body.pop("input")), "input")
        conversation = body.get("conversation")
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        session = thread_of(conversation, "conversation")
        metadata = body.get("metadata")
        options = {"metadata": metadata, "idempotency_key": self.key}
        begin = partial(exchanges.begin, request.user, body["model"], session, messages, **options)
        form_of = partial(ResponseFormat, model=str(body["model"]), metadata=metadata or {})
        if body.get("stream"):
            return self.stream(begin, form_of, INSTEAD)
        exchange, form = self.wait(begin, form_of)
        return timed_out(exchange) if form is None else Response(form.body())


def _sent_after(body_input: Any) -> Iterator[tuple[int, ClientMessage]]:
    items = body_input if isinstance(body_input, list) else [{"role": "user", "content": body_input}]
    return ((index, _sent(item, index)) for index, item in exchanges.new(items, _is_assistants, "input"))


def _is_assistants(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _sent(item: Any, index: int) -> ClientMessage:
    match item:
        case {"type": "function_call_output", "call_id": str(call), "output": output}:
            return ClientMessage("tool", output, call)
        case {"role": str(role), "content": content, **more} if more.get("type", "message") == "message":
            return ClientMessage(role, content)
    text = "an item is a message, a function_call or a function_call_output"
    raise InvalidInputError(text, field=f"input.{index}")


class ResponseFormat(Format):
    """Events of a response, and the whole."""

    def __init__(self, exchange: Exchange, model: str, metadata: dict[str, Any]) -> None:
        run = exchange.run
        self._number = -1
        self._output: list[dict[str, Any]] = []
        self._message = ""  # the id of the message that is being written
        self._text = ""
        self._body = {
            "id": str(run.tree_id),
            "object": "response",
            "created_at": int(run.created_at.timestamp()),
            "status": "in_progress",
            "model": model,
            "output": self._output,
            "conversation": {"id": str(run.session_id)},
            "metadata": metadata,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._body)
        yield self._event("response.in_progress", response=self._body)

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Text(is_reasoning=False):
                yield from self._say(piece)
            case Asked():
                yield from self._close()
                for request in piece.requests:
                    yield from self._ask(request)
                yield from self._end("completed")
            case Ended():
                yield from self._close()
                inputs, outputs, cached = piece.usage
                self._body["usage"] = {
                    "input_tokens": inputs,
                    "input_tokens_details": {"cached_tokens": cached},
                    "output_tokens": outputs,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": inputs + outputs,
                }
                if (fault := failure(piece, self._body["id"])) is not None:
                    self._body["error"] = {name: fault["error"][name] for name in ("code", "message")}
                yield from self._end("completed" if fault is None else "failed")

    def _say(self, piece: Text) -> Iterator[bytes]:
        if piece.message != self._message:
            yield from self._close()
            self._message, self._text = piece.message, ""
            self._output.append(self._item("in_progress", []))
            yield self._event("response.output_item.added", item=self._output[-1], **self._at())
            yield self._event("response.content_part.added", part=_part(""), **self._in_item())
        self._text += piece.text
        yield self._event("response.output_text.delta", delta=piece.text, logprobs=[], **self._in_item())

    def _close(self) -> Iterator[bytes]:
        if not self._message:
            return
        part = _part(self._text)
        self._output[-1] = self._item("completed", [part])
        yield self._event("response.output_text.done", text=self._text, logprobs=[], **self._in_item())
        yield self._event("response.content_part.done", part=part, **self._in_item())
        yield self._event("response.output_item.done", item=self._output[-1], **self._at())
        self._message = ""

    def _ask(self, request: dict[str, Any]) -> Iterator[bytes]:
        arguments, name = arguments_of(request), request["kind"]
        item = {"id": f"fc_{request['id']}", "type": "function_call", "call_id": request["id"], "name": name}
        self._output.append({**item, "arguments": "", "status": "in_progress"})
        yield self._event("response.output_item.added", item=self._output[-1], **self._at())
        position = {"item_id": item["id"], **self._at()}
        yield self._event("response.function_call_arguments.delta", delta=arguments, **position)
        yield self._event("response.function_call_arguments.done", arguments=arguments, name=name, **position)
        self._output[-1] = {**item, "arguments": arguments, "status": "completed"}
        yield self._event("response.output_item.done", item=self._output[-1], **self._at())

    def _end(self, status: str) -> Iterator[bytes]:
        self._body["status"] = status
        yield self._event(f"response.{status}", response=self._body)

    def body(self) -> dict[str, Any]:
        return self._body

    def fault(self, code: str, message: str) -> bytes:
        return self._event("error", code=code, message=message, param=None, run=self._body["id"])

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": self._message, "type": "message", "role": "assistant", "status": status, "content": content}

    def _at(self) -> dict[str, int]:
        return {"output_index": len(self._output) - 1}

    def _in_item(self) -> dict[str, Any]:
        return {"item_id": self._message, "content_index": 0, **self._at()}

    def _event(self, type: str, **data: Any) -> bytes:
        self._number += 1
        body = {"type": type, "sequence_number": self._number, **data}
        return b"event: %s\ndata: %s\n\n" % (type.encode(), to_json(body))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
