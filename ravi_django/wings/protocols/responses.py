"""OpenAI's Responses API for agents. `conversation` is the session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic_core import to_json
from rest_framework import serializers
from rest_framework.response import Response

from ravi_django.api.exchange import Format, thread_of
from ravi_django.api.openapi import documented
from ravi_django.kernel import InvalidInputError, NotFoundError
from ravi_django.live.streams import hidden
from ravi_django.models import Run
from ravi_django.services import exchanges
from ravi_django.services.exchanges import ClientMessage, Exchange
from ravi_django.services.fields import AgentField, FlagField, ObjectField, TextField, ValueField
from ravi_django.services.pieces import Asked, Ended, Piece, Text, Usage, present
from ravi_django.wings.protocols import conversations, options
from ravi_django.wings.protocols.openai import CUT, INSTEAD, OpenAIView, call_of, failure


class ResponsesSerializer(serializers.Serializer[Any]):
    """The fields that are read; `options` has the others."""

    others = options.PROPERTIES

    model = AgentField(help_text="An agent: type/key")
    input = ValueField(help_text="A text, or a list of messages and function_call_output items")
    instructions = TextField(required=False, allow_null=True, allow_blank=True, help_text="Refused, unless quoted")
    conversation = ValueField(required=False, allow_null=True, help_text="The conversation: its id or name, or {id}")
    previous_response_id = TextField(required=False, allow_null=True, help_text="A response of the conversation")
    stream = FlagField(required=False, allow_null=True)
    metadata = ObjectField(required=False, allow_null=True)


class ResponsesView(OpenAIView):
    limit = "submit"
    answers_late = True
    names = {"agent": "model", "session": "conversation"}

    @documented("v1_responses", request=ResponsesSerializer, ok={200: dict}, errors=[404, 409])
    def post(self, request: Any) -> Any:
        """OpenAI's responses. `conversation` of the answer continues the conversation; a call may also choose its name,
        of at most 200 characters. So does `previous_response_id`, or the client's history.

        A request to the user is a function_call item, which a function_call_output item answers. After WAIT_S the
        status is `in_progress`: the run goes on, read it at `v1/responses/{id}`.
        """
        body = self.read(ResponsesSerializer)
        items = body.pop("input")
        items = items if isinstance(items, list) else [{"role": "user", "content": items}]
        end = exchanges.first_new(items, _is_assistants)
        instructions = ClientMessage("system", body.pop("instructions", ""))
        new = [(index, _sent(item, index)) for index, item in exchanges.new(items, _is_assistants, "input")]
        incoming = exchanges.read([(end, instructions), *new] if instructions.content else new, "input")
        conversation, previous = body.get("conversation"), body.get("previous_response_id")
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        thread: Any = thread_of(conversation, "conversation")
        past = [] if thread or previous else conversations.past(items, end)
        self.recognise(body["model"], [thread, previous, instructions.content], items)
        del items, new
        if previous:
            thread = self._conversation_of(previous, thread)
        metadata = body.get("metadata")
        begin = partial(self.begin, body["model"], thread, incoming, past, metadata=metadata)

        def form_of(exchange: Exchange) -> ResponseFormat:
            more = {**(metadata or {}), **self.metadata}
            return ResponseFormat(exchange, str(body["model"]), more)

        if body.get("stream"):
            return self.stream(begin, form_of, INSTEAD)
        exchange, form = self.wait(begin, form_of)
        return Response((form or form_of(exchange)).body())

    def _conversation_of(self, previous: str, thread: Any) -> Any:
        if thread is not None:
            text = "conversation and previous_response_id name the same thing: send one of them"
            raise InvalidInputError(text, field="previous_response_id")
        session = conversations.of_run(self.request.user, conversations.run_of(previous))
        if session is None:
            error = NotFoundError(f"there is no response {previous!r:.100} of yours")
            error.field = "previous_response_id"
            raise error
        return session


class ResponseView(OpenAIView):
    @documented("v1_response", ok={200: dict}, errors=[404])
    def get(self, request: Any, id: str) -> Response:
        """A response of the user as it is now, `in_progress` while its run goes on."""
        rows = Run.objects.for_user(request.user).filter(owner=request.user, parent=None)
        run = rows.filter(id=conversations.run_of(id)).first()
        if run is None:
            raise NotFoundError(f"there is no response {id!r:.100} of yours")
        exchange = Exchange(request.user, run, whole=hidden.sees(request.user))
        form = ResponseFormat(exchange, run.agent, run.metadata)
        last = present(exchange)
        for piece in (getattr(last, "output", None), last):
            for _ in form.add(piece) if piece else ():
                pass
        return Response(form.body())


def _is_assistants(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("type") in ("function_call", "reasoning", "item_reference") or item.get("role") == "assistant"


def _sent(item: Any, index: int) -> ClientMessage:
    match item:
        case {"type": "function_call_output", "call_id": str(call), "output": output}:
            return ClientMessage("tool", output, call)
        case {"role": str(role), "content": content, **more} if more.get("type", "message") == "message":
            return ClientMessage(role, content)
    text = "an item is a message, a function_call, a function_call_output or an item_reference"
    raise InvalidInputError(text, field=f"input.{index}")


class ResponseFormat(Format):
    """Events of a response, and the whole."""

    def __init__(self, exchange: Exchange, model: str, metadata: dict[str, Any]) -> None:
        run = exchange.run
        self._run = str(run.tree_id)
        self._number = -1
        self._output: list[dict[str, Any]] = []
        self._message = ""  # the id of the message that is being written
        self._text = ""
        self._body = {
            "id": f"resp_{run.tree_id}",
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
                yield from self._end("completed", piece.usage)
            case Ended():
                yield from self._close()
                status = "completed"
                if (fault := failure(piece, self._run)) is not None:
                    status, self._body["error"] = "failed", fault["error"]
                elif (cut := CUT.get(piece.reason)) is not None:
                    why = "max_output_tokens" if cut == "length" else cut
                    status, self._body["incomplete_details"] = "incomplete", {"reason": why}
                yield from self._end(status, piece.usage)

    def _say(self, piece: Text) -> Iterator[bytes]:
        if (message := f"msg_{piece.message}") != self._message:
            yield from self._close()
            self._message, self._text = message, ""
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
        name, arguments = call_of(request)
        item = {"id": f"fc_{request['id']}", "type": "function_call", "call_id": request["id"], "name": name}
        self._output.append({**item, "arguments": "", "status": "in_progress"})
        yield self._event("response.output_item.added", item=self._output[-1], **self._at())
        position = {"item_id": item["id"], **self._at()}
        yield self._event("response.function_call_arguments.delta", delta=arguments, **position)
        yield self._event("response.function_call_arguments.done", arguments=arguments, name=name, **position)
        self._output[-1] = {**item, "arguments": arguments, "status": "completed"}
        yield self._event("response.output_item.done", item=self._output[-1], **self._at())

    def _end(self, status: str, usage: Usage) -> Iterator[bytes]:
        inputs, outputs, cached, thoughts = usage
        self._body["usage"] = {
            "input_tokens": inputs,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": outputs,
            "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": inputs + outputs,
        }
        self._body["status"] = status
        yield self._event(f"response.{status}", response=self._body)

    def body(self) -> dict[str, Any]:
        return self._body

    def fault(self, code: str, message: str) -> bytes:
        return self._event("error", code=code, message=message, param=None, run=self._run)

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
