"""OpenAI's API for agents: an agent is a model. Errors have OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic_core import to_json
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.tools.client_tool import PREFIX
from ravi_django.api.exchange import NO_RETRY, ExchangeView, Format, after_wait, thread_of
from ravi_django.api.openapi import documented
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, FinishReason, InvalidInputError
from ravi_django.kernel.identity import DEFAULT_NAMESPACE
from ravi_django.models import Agent
from ravi_django.services import exchanges, problems
from ravi_django.services.exchanges import ClientMessage, Exchange, Input
from ravi_django.services.fields import AgentField, FlagField, MessagesField, ObjectField
from ravi_django.services.pieces import Asked, Ended, Piece, Text, Usage
from ravi_django.services.repeats import Repeats
from ravi_django.wings.protocols import conversations, options
from ravi_django.wings.protocols.conversations import Past

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
INSTEAD = "send stream: false"
NO_HISTORY = "the history is no conversation of yours: send the id of the conversation, or the user's message alone"


def error(
    message: str, status: int, code: str | None = None, param: str | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}


def _shape(names: dict[str, str], problem: problems.Problem) -> dict[str, Any]:
    fault = problem.body()["error"]
    param, message = names.get(fault.get("field"), fault.get("field")), fault["message"]
    if param and param not in message:  # many clients show the message alone
        message = f"{param}: {message}"
    return error(message, problem.status, fault["code"], param)


class OpenAIView(ExchangeView):
    names: dict[str, str] = {"agent": "model"}  # of fields of a run, as this endpoint calls them
    notes: dict[str, str] = {}  # headers of the answer, also of an error
    tools: list[dict[str, Any]] = []  # the client's own functions

    def get_exception_handler(self) -> Any:
        return partial(problems.respond, shape=partial(_shape, self.names))

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        for name, value in self.notes.items():
            response[name] = value
        return response

    def read(self, serializer: Any) -> dict[str, Any]:
        """The fields that the endpoint reads."""
        data = dict(self.request.data)
        self.tools = options.client_tools(data)
        fields, ignored, typed_by = options.read(data, serializer().fields)
        body = self.validated(serializer, fields)
        options.check_takes_tools(self.request.user, body["model"], self.tools)
        if ignored:
            self.notes = {"x-ravi-ignored": ", ".join(sorted(ignored))}
        if typed_by:
            options.check_typed(self.request.user, body["model"], typed_by)
            self.is_typed = True
        return body

    def recognise(self, agent: AgentId, session: Any, messages: Any) -> None:
        """From here on a call that the client sends again is recognised, unless it has a key."""
        if self.key is None:
            self.repeats = Repeats.of(self.request.user, agent, session, messages)

    def begin(self, agent: AgentId, thread: Any, incoming: Input, past: list[Past], **more: Any) -> Exchange:
        """The exchange that the call repeats, or a new one in the conversation that the client goes on with. `past`:
        the client's history, if the call names no conversation."""
        user = self.request.user
        if self.repeats is not None and (first := self.repeats.exchange(user, agent)) is not None:
            return first
        if thread is None and incoming.answers:
            thread = conversations.of_request(user, incoming.answers[0].answers)
        elif thread is None and past and (known := exchanges.run_known(user, agent, self.key)) is not None:
            thread = conversations.continued_by(known)
        elif thread is None and past:
            thread = conversations.find(user, agent, past)
            if thread is None and conversations.has_answer(past):
                if conf.UNKNOWN_HISTORY == "refuse":
                    raise InvalidInputError(NO_HISTORY, field=incoming.field)
                self.notes = {**self.notes, "x-ravi-conversation": "new"}
        past.clear()  # it may be long, as the wait may
        more["client_tools"] = self.tools or None
        return exchanges.begin(user, agent, thread, incoming, idempotency_key=self.key, **more)

    @property
    def metadata(self) -> dict[str, str]:
        """What the metadata of the answer say beside the conversation's id."""
        return {"conversation": "new"} if "x-ravi-conversation" in self.notes else {}


class NoEndpointView(OpenAIView):
    """404 in OpenAI's shape at every other address below `v1/`."""

    schema = None

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound(f"there is nothing at {request.path}")


class ModelsView(OpenAIView):
    @documented("v1_models", ok={200: dict})
    def get(self, request: Any) -> Response:
        """OpenAI's list of models: the agents that the user may run."""
        rows = access.agents_seen(request.user)
        addresses = [name for name in rows if access.allows("may_run", request.user, rows[name] or Agent(address=name))]
        return Response({"object": "list", "data": [_model(name) for name in addresses]})


class ModelView(OpenAIView):
    @documented("v1_model", ok={200: dict}, errors=[400, 403, 404])
    def get(self, request: Any, type: str, key: str, namespace: str = DEFAULT_NAMESPACE) -> Response:
        """An agent that the user may run."""
        return Response(_model(str(access.find(request.user, AgentId(type, key, namespace)).address)))


def _model(address: str) -> dict[str, Any]:
    return {"id": address, "object": "model", "created": 0, "owned_by": "ravi"}


class OptionsSerializer(serializers.Serializer[Any]):
    include_usage = FlagField(required=False)


class ChatSerializer(serializers.Serializer[Any]):
    """The fields that are read; `options` has the others."""

    others = options.PROPERTIES

    model = AgentField(help_text="An agent: type/key")
    messages = MessagesField(help_text="Those after the last one of the assistant are the input")
    stream = FlagField(required=False, allow_null=True)
    stream_options = OptionsSerializer(required=False, allow_null=True)
    metadata = ObjectField(required=False, allow_null=True, help_text="`session`: the conversation, by id or name")


class ChatView(OpenAIView):
    limit = "submit"
    names = {"agent": "model", "session": "metadata.session", "input": "messages"}

    @documented("v1_chat_completions", request=ChatSerializer, ok={200: dict}, errors=[404, 409, 422])
    def post(self, request: Any) -> Any:
        """OpenAI's chat completions. `metadata.session` of the answer continues the conversation; a call may
        also choose its name, of at most 200 characters. Without it, the client's history finds the conversation.

        A request to the user is a tool call, which a tool message answers: `{"action": "approve"}`, or a text. 422
        `run_not_finished` after WAIT_S; the run goes on, and an equal call follows it. 422 `run_failed` for a run that
        has failed.
        """
        body = self.read(ChatSerializer)
        messages = body.pop("messages")
        metadata = dict(body.get("metadata", {}))
        thread = thread_of(metadata.pop("session", None), "metadata.session")
        incoming = exchanges.read(_sent(messages))
        past = [] if thread else conversations.past(messages, exchanges.first_new(messages, _is_assistants))
        self.recognise(body["model"], thread, messages)
        del messages
        begin = partial(self.begin, body["model"], thread, incoming, past, metadata=metadata)
        counts = body.get("stream_options", {}).get("include_usage", False)

        def form_of(exchange: Exchange) -> ChatFormat:
            return ChatFormat(exchange, str(body["model"]), self.metadata, counts=counts)

        if body.get("stream"):
            return self.stream(begin, form_of, INSTEAD)
        exchange, form = self.wait(begin, form_of)
        if form is None:
            return Response(_unfinished(exchange), status=422, headers=NO_RETRY)
        if (fault := form.failed) is not None:
            return Response(fault, status=422, headers=NO_RETRY)
        return Response(form.body())


def _sent(messages: list[Any]) -> Iterator[tuple[int, ClientMessage]]:
    for index, message in exchanges.new(messages, _is_assistants):
        role, answers = str(message.get("role")), str(message.get("tool_call_id", ""))
        yield index, ClientMessage(role, message.get("content"), answers)


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _unfinished(exchange: Exchange) -> dict[str, Any]:
    return error(after_wait(exchange), 422, "run_not_finished", run=str(exchange.run.tree_id))


def failure(piece: Ended, run: Any) -> dict[str, Any] | None:
    """The error of a run that has not completed: `run_failed`, `run_cancelled` or `run_blocked`."""
    if piece.status == "completed":
        return None
    message = piece.error.get("message") or f"the run is {piece.status}"
    return error(message, 422, f"run_{piece.status}", run=str(run), reason=piece.error.get("type"))


CUT: dict[str, str] = {
    FinishReason.LENGTH: "length",
    FinishReason.FILTER: "content_filter",
    FinishReason.REFUSAL: "content_filter",
}


def call_of(request: dict[str, Any]) -> tuple[str, str]:
    """The name and arguments of the tool call that a request is for a client: of its own tool, or of a person."""
    if "call_id" in request:
        return request["tool"].removeprefix(PREFIX), to_json(request["arguments"]).decode()
    names = ("text", "context", "tool", "arguments", "choices", "free_text", "questions", "risk", "actions")
    arguments = {name: request[name] for name in names if request[name] not in (None, "")}
    return request["kind"], to_json(arguments).decode()


class ChatFormat(Format):
    """Chunks of a chat completion, and the whole."""

    def __init__(self, exchange: Exchange, model: str, metadata: dict[str, str], *, counts: bool) -> None:
        run = exchange.run
        self._head = {
            "id": str(run.tree_id),
            "created": int(run.created_at.timestamp()),
            "model": model,
            "metadata": {"session": str(run.session_id), **metadata},
        }
        self._counts = counts
        self._reason = "stop"
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
                self._reason = "tool_calls"
                yield from self._end(piece.usage)
            case Ended():
                self.failed = failure(piece, self._head["id"])
                self._reason = CUT.get(piece.reason, "stop")
                yield from self._end(piece.usage)

    def _end(self, usage: Usage) -> Iterator[bytes]:
        inputs, outputs, cached, thoughts = usage
        self._usage = {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": inputs + outputs}
        self._usage["prompt_tokens_details"] = {"cached_tokens": cached}
        self._usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        if self.failed is not None:
            yield event(self.failed)
        else:
            yield self._chunk({}, self._reason)
            if self._counts:
                yield event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def body(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}

    def fault(self, code: str, message: str) -> bytes:
        return event(error(message, 500, code, run=self._head["id"]))

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def _call(request: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call_of(request)
    return {"id": request["id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def event(body: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % to_json(body)
