"""OpenAI's Responses: a conversation as its input items, and its events as our blocks.

The model's reasoning comes as encrypted items. They are sent back in their order, each before the text or call that
followed it: then the model continues its reasoning instead of repeating it. Only the server and the key that made the
items can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ravi_django.calls.llm import turns
from ravi_django.calls.llm.collector import Call, Delta, ResponseCollector, Text, Thought
from ravi_django.calls.llm.wire import Form, fresh, media_of, other_ids, part_of, readable, result_text
from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import ContentBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.llm import FinishReason
from ravi_django.kernel.messages import StreamAlive, ToolCallDelta
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY

Item = dict[str, Any]

_MAX_ID = 64  # characters
_OF_CHAT = ("stream_options", "max_tokens", "max_completion_tokens", "response_format", "verbosity", "reasoning_effort")


def to_responses(
    request: Mapping[str, Any], messages: Sequence[ChatMessage], form: Form, *, reasons: bool, summary: bool
) -> dict[str, Any]:
    """The request of a chat as that of `litellm.aresponses`. `reasons`: the model thinks; `summary`: ask for a summary
    of its thoughts."""
    sent = {name: value for name, value in request.items() if name not in _OF_CHAT}
    sent["instructions"], sent["input"] = to_items(messages, form)
    sent["store"] = False  # the conversation is ours
    if (limit := request.get("max_tokens") or request.get("max_completion_tokens")) is not None:
        sent["max_output_tokens"] = limit
    if reasons:
        sent["include"] = list({*sent.get("include", ()), "reasoning.encrypted_content"})
        effort = request.get("reasoning_effort") or {}
        chosen = effort if isinstance(effort, Mapping) else {"effort": effort}
        sent["reasoning"] = ({"summary": "auto"} if summary else {}) | {**chosen, **sent.get("reasoning", {})}
    text = {"verbosity": request["verbosity"]} if "verbosity" in request else {}
    if schema := request.get("response_format"):
        text["format"] = {"type": schema["type"], **schema.get("json_schema", {})}
    if text:
        sent["text"] = {**text, **sent.get("text", {})}
    if "tools" in sent:
        # Without `strict` it would refuse a schema that allows other keys.
        sent["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in sent["tools"]]
    if isinstance(choice := sent.get("tool_choice"), dict):
        sent["tool_choice"] = {"type": "function", "name": choice["function"]["name"]}
    return sent


def to_items(messages: Sequence[ChatMessage], form: Form) -> tuple[str | None, list[Item]]:
    """The instructions, and the items as new dicts. Each message is converted once and keeps the result."""
    instructions: list[str] = []
    items: list[Item] = []
    ids: dict[str, str] = {}  # of calls whose id in this request is another one
    key = f"responses:{form!r}"
    for message in messages:
        if message.role is Role.SYSTEM and not items:
            instructions.append(message.text)
            continue
        if message.role is Role.ASSISTANT:
            ids.update(other_ids(message, form.family))
        if key not in message._wire:
            message._wire[key] = _convert(message, form)
        for item in fresh(message._wire[key]):
            if item["type"] == "function_call_output":
                item["call_id"] = ids.get(item["call_id"]) or turns.id_for(form.family, item["call_id"])
            items.append(item)
    return "\n\n".join(instructions) or None, items


def _convert(message: ChatMessage, form: Form) -> list[Item]:
    if message.role is Role.ASSISTANT:
        return _answer(message, form)
    if message.role is Role.SYSTEM:
        return [_message("developer", [{"type": "input_text", "text": message.text}])]
    items: list[Item] = []
    parts: list[Item] = []
    for block in message.content:
        if message.role is Role.TOOL and isinstance(block, ToolResultBlock):
            items.append({"type": "function_call_output", "call_id": block.call_id, "output": _output(block, form)})
        else:
            parts.append(_part(block, form))
    if parts or not items:
        items.append(_message("user", [part for part in parts if part.get("text") != ""] or parts))
    return items


def _answer(message: ChatMessage, form: Form) -> list[Item]:
    """The answer in its order. Reasoning that led to nothing is left out, or to a call whose broken arguments do not go
    back: the server refuses it."""
    items: list[Item] = []
    name = turns.speaker(message)
    for block in message.content:
        origin = getattr(block, "origin", None) or {}
        is_ours = (origin.get("family"), origin.get("endpoint")) == (form.family, form.endpoint)
        if isinstance(block, ToolUseBlock):
            call = {"call_id": turns.id_for(form.family, block.call_id, origin), **turns.function(block, form.family)}
            if INVALID_ARGUMENTS_KEY in block.arguments:
                _drop_last_reasoning(items)
            elif is_ours and 0 < len(origin.get("item", "")) <= _MAX_ID:
                call["id"] = origin["item"]
            items.append({"type": "function_call", **call})
        elif isinstance(block, ThinkingBlock):
            if is_ours and block.signature:
                original = {name: origin[name] for name in ("id", "summary") if origin[name] is not None}
                items.append({"type": "reasoning", **original, "encrypted_content": block.signature})
        elif text := readable(block):
            text, name = f"{name}:\n{text}" if name else text, ""  # items have no name of an agent
            items.append(_message("assistant", [{"type": "output_text", "text": text}]))
    _drop_last_reasoning(items)
    return items


def _drop_last_reasoning(items: list[Item]) -> None:
    while items and items[-1]["type"] == "reasoning":
        items.pop()


def _message(role: str, parts: Sequence[Item]) -> Item:
    return {"type": "message", "role": role, "content": list(parts)}


def _output(result: ToolResultBlock, form: Form) -> str | list[Item]:
    text = result_text(result)
    media = media_of(result.content, form) if form.tool_images else []
    return [{"type": "input_text", "text": text}, *map(_as_input, media)] if media else text


def _part(block: ContentBlock, form: Form) -> Item:
    chat = part_of(block, form)
    return _as_input(chat if chat["type"] != "input_audio" else {"type": "text", "text": readable(block)})


def _as_input(chat: Item) -> Item:
    if chat["type"] == "file":
        return {"type": "input_file", **chat["file"]}
    if chat["type"] == "image_url":
        image = {"detail": "auto", **chat["image_url"]}
        return {"type": "input_image", "image_url": image["url"], "detail": image["detail"]}
    return {"type": "input_text", "text": chat["text"]}


class ItemCollector(ResponseCollector):
    """Collects the events of one answer. `endpoint`: see Form."""

    def __init__(self, family: str, endpoint: str) -> None:
        super().__init__(family)
        self._origin = {"family": family, "endpoint": endpoint}
        self._items: dict[Any, Text | Thought | Call | None] = {}  # by the item's index in the answer

    def add(self, chunk: Any) -> Iterator[Delta]:
        """The deltas of an event, or that the model is at work."""
        yield from list(self._deltas(chunk, chunk.get("type"))) or [StreamAlive()]

    def _deltas(self, event: Item, kind: Any) -> Iterator[Delta]:
        index = event.get("output_index")
        match kind:
            case "response.output_item.added":
                yield from self._begin(index, event["item"])
            case "response.output_item.done":
                yield from self._end(index, event["item"])
            case "response.output_text.delta":
                yield from self._add_text(event.get("delta"))
            case "response.refusal.delta":
                self._is_refusal = True
                yield from self._add_text(event.get("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield from self._add_thought(event.get("delta"))
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                yield from self._add_thought("\n\n")
            case "response.function_call_arguments.delta":
                yield from self._add_arguments(self._items.get(index), event.get("delta") or "")
            case "response.completed" | "response.incomplete" | "response.failed":
                yield from self._finish(event.get("response") or {}, kind.removeprefix("response."))
            case _ if event.get("object") == "response":  # the whole answer as a document
                yield from self._finish(event, event.get("status"))

    def _begin(self, index: Any, item: Item) -> Iterator[Delta]:
        one: Text | Thought | Call | None = None
        match item.get("type"):
            case "reasoning":
                one = Thought()
            case "message":
                one = Text()
            case "function_call":
                id = item.get("id") or ""
                number = sum(isinstance(part, Call) for part in self._parts)
                one = Call(
                    item.get("call_id") or "", item.get("name") or "", "", number, id if len(id) <= _MAX_ID else ""
                )
                yield ToolCallDelta(index=number, call_id=one.id, name=one.name, arguments="")
            case _ if self._parts and isinstance(self._parts[-1], Thought):
                self._parts[-1].signature = None  # what it led to is not kept, so it cannot be sent back
        self._items[index] = one
        self._parts += [one] if one is not None else []

    def _end(self, index: Any, item: Item) -> Iterator[Delta]:
        if index not in self._items:
            yield from self._begin(index, item)
        match self._items[index]:
            case Thought() as thought:
                summary = item.get("summary") or []
                text = "\n\n".join(part.get("text") or "" for part in summary)
                if not thought.text:
                    yield from self._add_thought(text)
                thought.signature = item.get("encrypted_content") or None
                thought.origin = {**(self._origin or {}), "id": item.get("id"), "summary": summary}
            case Text(text=""):
                for part in item.get("content") or ():
                    self._is_refusal = self._is_refusal or "refusal" in part
                    yield from self._add_text(part.get("text") or part.get("refusal"))
            case Call() as call:
                if not call.arguments:
                    yield from self._add_arguments(call, item.get("arguments") or "")
                call.arguments = item.get("arguments") or call.arguments

    def _add_arguments(self, call: Any, text: str) -> Iterator[Delta]:
        if isinstance(call, Call) and text:
            call.arguments += text
            yield ToolCallDelta(index=call.index, call_id=call.id, name=call.name, arguments=text)

    def _finish(self, response: Item, status: Any) -> Iterator[Delta]:
        if not self._parts:
            for index, item in enumerate(response.get("output") or ()):
                yield from self._end(index, item)
        self.model = response.get("model") or self.model
        self.provider_usage = _usage(response.get("usage")) or self.provider_usage
        self.is_done = status == "completed"
        if status == "incomplete":
            why = (response.get("incomplete_details") or {}).get("reason")
            self.finish_reason = FinishReason.FILTER if why == "content_filter" else FinishReason.LENGTH
        elif not self.is_done:
            self.finish_reason = FinishReason.ERROR


def _usage(usage: Any) -> dict[str, Any] | None:
    """The tokens under the names of a chat."""
    if not usage:
        return None
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
