"""Collects a streamed answer: yields its deltas, and one ModelResponse at the end.

Servers differ in what they send: parts are kept in the order in which they came, with what the provider needs to see
again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any

from ravi_django.calls.llm import turns
from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock, UnknownBlock
from ravi_django.kernel.json_values import storable, written
from ravi_django.kernel.llm import FinishReason, ModelResponse
from ravi_django.kernel.messages import ReasoningDelta, StreamAlive, TextDelta, ToolCallDelta
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY, is_too_deep

Delta = TextDelta | ReasoningDelta | ToolCallDelta | StreamAlive

_PIECES = ("text", "summary", "data")  # of a detail of reasoning, which come in pieces
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")  # what every provider but Mistral accepts
_HALF = re.compile("[\ud800-\udbff]$")


@dataclass(slots=True)
class Text:
    text: str = ""


@dataclass(slots=True)
class Thought:
    text: str = ""
    signature: str | None = None
    origin: dict[str, Any] | None = None  # None: that of the answer


@dataclass(slots=True)
class Call:
    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0  # among the calls of the answer
    item: str = ""  # its other id, in OpenAI's Responses
    extra: dict[str, Any] = field(default_factory=dict)  # fields of its server, which it wants to see again
    is_again: bool = False  # it began with the name of the call before it, and nothing else

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said of it: an empty piece, or a name that the server repeats at the end of a call."""
        return not self.id and not self.arguments and (self.is_again or not self.name)

    @property
    def is_whole(self) -> bool:
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class ResponseCollector:
    """Collects the chunks of one answer: JSON of an OpenAI-like server, or objects of litellm. `family` is the model's:
    it sees again what it has signed; `server`: see Form."""

    def __init__(self, family: str = "", server: str = "") -> None:
        self.provider_usage: Any = None  # as reported by the provider; None before
        self.is_estimated = False  # `provider_usage` was counted here
        self.finish_reason: FinishReason | None = None
        self.is_done = False  # the server said so
        self.model = ""
        self.is_refused = False  # the provider has refused what it had signed before this answer
        self._origin = {"family": family} if family else None
        self._server = server
        self._parts: list[Text | Thought | Call | dict[str, Any]] = []
        self._is_refusal = self._is_paused = False
        self._half = ""  # of an emoji, whose other half is in the next piece
        self._call_at: dict[int, Call] = {}  # by the stream's index: the call of the next pieces
        self._call_of: dict[str, Call] = {}  # by the provider's id

    def add(self, chunk: Any) -> Iterator[Delta]:
        """The deltas of a chunk, or that the model is at work."""
        self.is_done = self.is_done or _get(chunk, "done") is True
        self.model = str(_get(chunk, "model") or self.model)
        deltas: list[Delta] = []
        choices = (_get(chunk, "choices") or ())[:1]
        for part in (*choices, _get(chunk, "x_groq"), chunk):  # of Moonshot, of Groq, of the others
            self.provider_usage = _counted(_get(part, "usage")) or self.provider_usage
        for choice in choices:
            if isinstance(reason := _get(choice, "finish_reason"), str) and reason not in ("", "null"):
                reason = FinishReason.of(reason)
                # A cut or refused answer stays one, if the server closes it by "stop".
                self.finish_reason = self.finish_reason if reason is FinishReason.STOP else reason
                self.finish_reason = self.finish_reason or reason
            delta = _get(choice, "delta")
            if not delta and not self._parts:  # a whole answer, in a stream or as a document
                delta = _get(choice, "message") or {"content": _get(choice, "text")}
            deltas += self._add_delta(delta)
        yield from deltas or [StreamAlive()]

    @property
    def usage(self) -> Usage:
        usage = self.provider_usage
        if usage is None:
            return Usage()
        return Usage(
            input_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            cached_tokens=_cached(usage),
            reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
            estimated=self.is_estimated,
        )

    @property
    def cache_writes(self) -> int:
        """Input tokens that went into the provider's cache."""
        usage = self.provider_usage
        written = _detail(usage, "prompt_tokens_details", "cache_creation_tokens")
        return written or _count(usage, "cache_creation_input_tokens")

    def response(self, *, cost: float | None, taken_ids: set[str]) -> ModelResponse:
        """The answer. `taken_ids` are the call ids of earlier turns, see `_id_of`."""
        taken = set(taken_ids)
        mark = [{"type": turns.REFUSED}] if self.is_refused else []
        content = [block for part in [*self._parts, *mark] if (block := self._block(part, taken)) is not None]
        return ModelResponse.of(content, usage=self.usage, cost=cost, model=self.model, finish_reason=self._reason())

    def _reason(self) -> FinishReason:
        if self._is_refusal:
            return FinishReason.REFUSAL
        if self._is_paused:
            return FinishReason.PAUSE
        return self.finish_reason or (FinishReason.CALLS if self.has_calls else FinishReason.STOP)

    def _block(self, part: Text | Thought | Call | dict[str, Any], taken: set[str]) -> ContentBlock | None:
        match part:
            case Text(text=text):
                return TextBlock(text=whole(text)) if text else None
            case Thought(text=text, signature=signature):
                origin = signature and (part.origin or self._origin)
                return (
                    ThinkingBlock(text=whole(text), signature=signature, origin=origin) if text or signature else None
                )
            case Call():
                return None if part.is_empty else self._call_block(part, taken)
        return UnknownBlock.model_validate({**part, "origin": self._origin})

    def _call_block(self, call: Call, taken: set[str]) -> ToolUseBlock:
        call_id, arguments = _id_of(call, taken), parse_arguments(whole(call.arguments))
        taken.add(call_id)
        original: dict[str, Any] = {"id": call.id} if call.id and not _ID.fullmatch(call.id) else {}
        if call.extra:
            original |= {"extra": call.extra, "server": self._server}
        if call.item:
            original["item"] = call.item
        # A broken text would be refused.
        if (
            INVALID_ARGUMENTS_KEY not in arguments
            and call.is_whole
            and call.arguments != turns.arguments_text(arguments)
        ):
            original["arguments"] = call.arguments
        origin = storable({**self._origin, **original}) if original and self._origin else None
        return ToolUseBlock(tool_name=storable(call.name).strip(), arguments=arguments, call_id=call_id, origin=origin)

    @property
    def has_calls(self) -> bool:
        return any(isinstance(part, Call) and not part.is_empty for part in self._parts)

    @property
    def output_text(self) -> str:
        """All output of the model, to count its tokens."""
        calls = (f"{part.name} {part.arguments}" for part in self._parts if isinstance(part, Call))
        return " ".join([*(part.text for part in self._parts if isinstance(part, Text | Thought)), *calls])

    def _add_delta(self, delta: Any) -> Iterator[Delta]:
        yield from self._add_thought(_get(delta, "reasoning_content") or _get(delta, "reasoning"))
        for block in _get(delta, "thinking_blocks") or ():
            self._add_signed(block)
        fields = _get(delta, "provider_specific_fields")
        if details := _get(delta, "reasoning_details") or _get(fields, "reasoning_details"):
            self._add_details(details if isinstance(details, list) else [details])
        if fields:
            self._add_server_work(fields)
        yield from self._add_content(_get(delta, "content"))
        if refusal := _get(delta, "refusal"):
            self._is_refusal = True
            yield from self._add_text(refusal)
        pieces = _get(delta, "tool_calls") or _get(delta, "function_call")
        for piece in pieces if isinstance(pieces, list) else [pieces]:
            if piece is not None:
                yield self._add_call(piece)

    def _add_content(self, content: Any) -> Iterator[Delta]:
        for part in content if isinstance(content, list) else [content]:
            if _get(part, "type") == "thinking":  # of Mistral's reasoning models
                yield from self._add_thought("".join(_texts(_get(part, "thinking"))))
            else:
                yield from self._add_text(_text(part))

    def _add_text(self, text: Any) -> Iterator[Delta]:
        if not isinstance(text, str) or not text:
            return
        text = whole(self._half + text)
        self._half = text[-1] if _HALF.search(text) else ""
        if text := text.removesuffix(self._half):
            self._last(Text).text += text
            yield TextDelta(text=text)

    def _add_thought(self, text: Any) -> Iterator[Delta]:
        if isinstance(text, str) and text:
            self._thought().text += text
            yield ReasoningDelta(text=text.encode(errors="replace").decode())

    def _add_signed(self, block: dict[str, Any]) -> None:
        # The text is in reasoning_content too. Only these blocks have the signature and redacted thinking.
        if block.get("type") == "redacted_thinking":
            self._parts.append(dict(block))
        elif signature := block.get("signature"):
            self._thought().signature = signature

    def _add_details(self, details: Iterable[Any]) -> None:
        """OpenRouter's form of reasoning, which it wants to see again."""
        part = next((part for part in self._reasoning() if isinstance(part, dict)), None)
        if part is None:
            self._parts.append(part := {"type": "reasoning_details", "details": []})
        stored = part["details"]
        for detail in details:
            if not isinstance(detail, dict):
                continue
            if stored and all(stored[-1].get(name) == detail.get(name) for name in ("type", "index", "id")):
                texts = {name: stored[-1].get(name, "") + detail[name] for name in _PIECES if detail.get(name)}
                stored[-1] |= {name: value for name, value in detail.items() if value is not None} | texts
            else:
                stored.append(dict(detail))

    def _reasoning(self) -> Iterator[Any]:
        """The parts at the end that hold one thought: OpenRouter sends its text in two forms, in each piece."""
        for part in reversed(self._parts[-2:]):
            if not (isinstance(part, Thought) or (isinstance(part, dict) and part["type"] == "reasoning_details")):
                return
            yield part

    def _add_server_work(self, fields: Any) -> None:
        """What Claude's server has searched or run, which litellm repeats from the beginning in each piece."""
        self._is_paused = self._is_paused or _get(fields, "stop_reason") == "pause_turn"  # "length" for litellm
        parts = [
            {"type": "server_tool_use", "id": call["id"], "name": call["function"]["name"]}
            | {"input": parse_arguments(call["function"]["arguments"])}
            for call in _get(fields, "server_tool_calls") or ()
        ]
        parts += [*(_get(fields, "web_search_results") or ()), *(_get(fields, "tool_results") or ())]
        self._parts += [dict(part) for part in parts if part not in self._parts]

    def _thought(self) -> Thought:
        # A signature ends a thought.
        thought = next((part for part in self._reasoning() if isinstance(part, Thought)), None)
        if thought is None or thought.signature is not None:
            self._parts.append(thought := Thought())
        return thought

    def _last(self, kind: Any) -> Any:
        """The last part if it is of this kind, else a new one."""
        if not self._parts or not isinstance(self._parts[-1], kind):
            self._parts.append(kind())
        return self._parts[-1]

    def _add_call(self, piece: Any) -> ToolCallDelta:
        function = _get(piece, "function") or piece
        name, arguments = _get(function, "name") or "", _get(function, "arguments") or ""
        if not isinstance(arguments, str):  # llama.cpp and others send an object
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = self._call_for(str(_get(piece, "id") or ""), _get(piece, "index"), name)
        if name and not call.name:
            call.name = name
        elif name != call.name and not call.arguments:
            call.name += name  # it comes in pieces
        call.arguments += arguments
        if isinstance(piece, dict):
            call.extra |= {name: piece[name] for name in turns.EXTRA if piece.get(name)}
        return ToolCallDelta(index=call.index, call_id=call.id, name=call.name, arguments=arguments)

    def _call_for(self, id: str, index: Any, name: str) -> Call:
        """The call that a piece belongs to: that of its id, else of its index, else the last one. A name begins a call
        once the call before it is whole, or has another id and no arguments yet."""
        is_again = False
        last = next((part for part in reversed(self._parts) if isinstance(part, Call)), None)
        call = self._call_of.get(id) or (last if index is None else self._call_at.get(index))
        if call is not None and name:
            is_other = id not in ("", call.id) and bool(call.id) and not call.arguments
            is_elsewhere = id != call.id or not id or self._call_at.get(index) is not call
            if is_other or (is_elsewhere and call.is_whole):
                is_again = not id and name == call.name
                call = None
        elif call is None and not name:
            call = last
        if call is None:
            call = Call(index=sum(isinstance(part, Call) for part in self._parts), is_again=is_again)
            self._parts.append(call)
        if index is not None:
            self._call_at[index] = call
        if id:
            call.id = call.id or id
            self._call_of[id] = call
        return call


def whole(text: str) -> str:
    """The text with the halves of emojis joined that came in two pieces."""
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def call_ids(messages: Iterable[ChatMessage]) -> set[str]:
    """The ids of earlier calls of a conversation."""
    return {call.call_id for message in messages if message.role is Role.ASSISTANT for call in message.tool_calls}


def is_plain(call_id: str) -> bool:
    """Whether a call can keep its provider's id."""
    return _ID.fullmatch(call_id) is not None


def _id_of(call: Call, taken: set[str]) -> str:
    """The call's id in the conversation: the provider's if it is short and of plain letters. A taken one gets a suffix
    `_2`, `_3`, …"""
    plain = call.id if is_plain(call.id) else f"call_{sha256(call.id.encode(errors='replace')).hexdigest()[:24]}"
    base = plain if call.id else f"call_{call.index}"
    return next(name for n in count(1) if (name := base if n == 1 else f"{base[:36]}_{n}") not in taken)


def parse_arguments(text: str) -> dict[str, Any]:
    """A tool call's arguments. Text that is not a JSON object, is nested too deep, has too many elements or a number
    that no row can hold is returned under INVALID_ARGUMENTS_KEY. Characters that no row can hold are replaced."""
    if not text.strip():
        return {}  # some models call a tool without parameters like this
    try:
        arguments = written(text)
    except (ValueError, RecursionError):
        return {INVALID_ARGUMENTS_KEY: storable(text)}
    if arguments is None:
        return {}
    if not isinstance(arguments, dict) or is_too_deep(arguments):
        return {INVALID_ARGUMENTS_KEY: text}
    return dict(storable(arguments))


def _counted(usage: Any) -> Any:
    """The usage under the names of OpenAI; None if it counts nothing."""
    if not isinstance(usage, dict):
        return usage
    total = _count(usage, "total_tokens")
    read = _count(usage, "prompt_tokens") or _count(usage, "input_tokens")
    wrote = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
    read, wrote = read or max(0, total - wrote), wrote or max(0, total - read)
    thought = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if thought and total == read + wrote + thought:  # xAI counts them beside the answer
        wrote += thought
    return {**usage, "prompt_tokens": read, "completion_tokens": wrote} if read or wrote else None


def _cached(usage: Any) -> int:
    """Input tokens from the provider's cache; each provider has its own name for them."""
    return (
        _detail(usage, "prompt_tokens_details", "cached_tokens")
        or _count(usage, "cache_read_input_tokens")
        or _count(usage, "prompt_cache_hit_tokens")
    )


def _detail(usage: Any, group: str, field: str) -> int:
    return _count(_get(usage, group), field)


def _count(usage: Any, field: str) -> int:
    with suppress(TypeError, ValueError):
        return max(0, int(float(_get(usage, field) or 0)))
    return 0


def _texts(parts: Any) -> Iterator[str]:
    for part in [parts] if isinstance(parts, str) else parts or ():
        if text := _text(part):
            yield text


def _text(part: Any) -> str:
    """The text of a part: bare, a number, or in its field."""
    for name in ("text", "value", "refusal"):
        if isinstance(part, dict):
            part = part.get(name, part)
    return str(part) if isinstance(part, str | int | float) and not isinstance(part, bool) else ""


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
