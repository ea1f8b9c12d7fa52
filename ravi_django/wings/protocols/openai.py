"""OpenAI's API for agents: an agent is a model. Errors have OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic_core import to_json
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django import access
from ravi_django.api.base import ApiView
from ravi_django.api.exchange import NO_RETRY, ExchangeView, Format, after_wait, thread_of
from ravi_django.api.openapi import documented
from ravi_django.models import Agent
from ravi_django.services import exchanges, problems
from ravi_django.services.exchanges import ClientMessage, Exchange
from ravi_django.services.fields import AgentField, FlagField, MessagesField, ObjectField, StrictSerializer
from ravi_django.services.pieces import Asked, Ended, Piece, Text

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
INSTEAD = "send stream: false"


def error(
    message: str, status: int, code: str | None = None, param: str | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}


def _shape(names: dict[str, str], problem: problems.Problem) -> dict[str, Any]:
    fault = problem.body()["error"]
    field = fault.get("field")
    return error(fault["message"], problem.status, fault["code"], names.get(field, field))


class OpenAIView(ApiView):
    names: dict[str, str] = {"agent": "model"}  # of fields of a run, as this endpoint calls them

    def get_exception_handler(self) -> Any:
        return partial(problems.respond, shape=partial(_shape, self.names))


class NoEndpointView(OpenAIView, ExchangeView):
    """404 in OpenAI's shape at every other address below `v1/`."""

    schema = None

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound(f"there is nothing at {request.path}")


class ModelsView(OpenAIView, ExchangeView):
    @documented("v1_models", ok={200: dict})
    def get(self, request: Any) -> Response:
        """OpenAI's list of models: the agents that the user may run."""
        rows = access.agents_seen(request.user)
        addresses = [name for name in rows if access.allows("may_run", request.user, rows[name] or Agent(address=name))]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "ravi"} for name in addresses]
        return Response({"object": "list", "data": data})


class OptionsSerializer(StrictSerializer):
    include_usage = FlagField(required=False)


class ChatSerializer(StrictSerializer):
    model = AgentField(help_text="An agent: type/key")
    messages = MessagesField(help_text="Only those after the last one of the assistant count")
    stream = FlagField(required=False, allow_null=True)
    stream_options = OptionsSerializer(required=False, allow_null=True)
    metadata = ObjectField(required=False, allow_null=True, help_text="`session`: the conversation, by id or name")


class ChatView(OpenAIView, ExchangeView):
    limit = "submit"
    names = {"agent": "model", "session": "metadata.session", "input": "messages"}

    @documented("v1_chat_completions", request=ChatSerializer, ok={200: dict}, errors=[404, 409, 504])
    def post(self, request: Any) -> Any:
        """OpenAI's chat completions. `metadata.session` of the answer continues the conversation; a call may
        also choose its name, of at most 200 characters.

        A request to the user is a tool call, which a tool message answers: `{"action": "approve"}`, or a text. 504
        after WAIT_S; the run goes on.
        """
        body = self.validated(ChatSerializer)
        messages = exchanges.read(_sent(body.pop("messages")))
        metadata = dict(body.get("metadata", {}))
        session = thread_of(metadata.pop("session", None), "metadata.session")
        options = {"metadata": metadata, "idempotency_key": self.key}
        begin = partial(exchanges.begin, request.user, body["model"], session, messages, **options)
        counts = body.get("stream_options", {}).get("include_usage", False)
        form_of = partial(ChatFormat, model=str(body["model"]), counts=counts)
        if body.get("stream"):
            return self.stream(begin, form_of, INSTEAD)
        exchange, form = self.wait(begin, form_of)
        if form is None:
            return timed_out(exchange)
        if (fault := form.failed) is not None:
            return Response(fault, status=500, headers=NO_RETRY)
        return Response(form.body())


def _sent(messages: list[Any]) -> Iterator[tuple[int, ClientMessage]]:
    for index, message in exchanges.new(messages, _is_assistants):
        role, answers = str(message.get("role")), str(message.get("tool_call_id", ""))
        yield index, ClientMessage(role, message.get("content"), answers)


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def timed_out(exchange: Exchange) -> Response:
    body = error(after_wait(exchange), 504, "timeout", run=str(exchange.run.tree_id))
    return Response(body, status=504, headers=NO_RETRY)


def failure(piece: Ended, run: Any) -> dict[str, Any] | None:
    """The error of a run that has not completed."""
    if piece.status == "completed":
        return None
    message = piece.error.get("message") or f"the run is {piece.status}"
    return error(message, 500, piece.error.get("type") or piece.status, run=str(run))


def arguments_of(request: dict[str, Any]) -> str:
    """A request to a person, as the arguments of a tool call."""
    names = ("text", "context", "tool", "arguments", "choices", "free_text", "questions", "risk", "actions")
    return to_json({name: request[name] for name in names if request[name] not in (None, "")}).decode()


class ChatFormat(Format):
    """Chunks of a chat completion, and the whole."""

    def __init__(self, exchange: Exchange, model: str, *, counts: bool) -> None:
        run = exchange.run
        self._head = {
            "id": str(run.tree_id),
            "created": int(run.created_at.timestamp()),
            "model": model,
            "metadata": {"session": str(run.session_id)},
        }
        self._counts = counts
        self._text = self._message = ""
        self._calls: list[dict[str, Any]] = []
        self._usage: dict[str, Any] = {}
        self.failed: dict[str, Any] | None = None

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Text(is_reasoning=False):
                text = f"\n\n{piece.text}" if self._text and piece.message != self._message else piece.text
                self._message, self._text = piece.message, self._text + text
                yield self._chunk({"content": text})
            case Asked():
                self._calls = [_call(request) for request in piece.requests]
                yield self._chunk({"tool_calls": [{"index": n, **one} for n, one in enumerate(self._calls)]})
                yield from self._end()
            case Ended():
                self.failed = failure(piece, self._head["id"])
                inputs, outputs, cached = piece.usage
                total = inputs + outputs
                self._usage = {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": total}
                self._usage["prompt_tokens_details"] = {"cached_tokens": cached}
                yield from self._end()

    def _end(self) -> Iterator[bytes]:
        if self.failed is not None:
            yield event(self.failed)
        else:
            yield self._chunk({}, self._reason)
            if self._counts:
                yield event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    @property
    def _reason(self) -> str:
        return "tool_calls" if self._calls else "stop"

    @property
    def usage(self) -> dict[str, Any]:
        return self._usage or {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

    def body(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self.usage}

    def fault(self, code: str, message: str) -> bytes:
        return event(error(message, 500, code, run=self._head["id"]))

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def _call(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": request["id"],
        "type": "function",
        "function": {"name": request["kind"], "arguments": arguments_of(request)},
    }


def event(body: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % to_json(body)
