"""PIIRedaction: the model's provider gets placeholders instead of personal data."""

from __future__ import annotations

import base64
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ravi_django.kernel import ChatContext, ChatMessage, ChatMiddleware, ModelResponse
from ravi_django.kernel.content import (
    AudioBlock,
    CodeBlock,
    ContentBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UIResourceBlock,
    UnknownBlock,
    VideoBlock,
)
from ravi_django.kernel.middleware import CallNext
from ravi_django.wings.guards.patterns import chosen, custom, spans_in

MAX_KNOWN = 65_536  # messages whose findings are cached
MAX_KNOWN_CHARS = 16_000_000  # characters of the cached messages with personal data


@dataclass(slots=True)
class _Known:
    """The findings in one message."""

    values: tuple[tuple[str, str], ...]  # (label, value), unique, in the order of the text
    literals: frozenset[str]  # placeholder-like text that was in the message
    size: int
    redacted: ChatMessage | None = None  # the redacted message that was sent last
    names: tuple[str, ...] = ()  # its placeholders


@dataclass(slots=True)
class _Names:
    """The placeholders of one request."""

    taken: frozenset[str]  # placeholder-like texts of the messages
    by_value: dict[tuple[str, str], str] = field(default_factory=dict)
    real: dict[str, str] = field(default_factory=dict)  # placeholder, in lower case → value
    last: dict[str, int] = field(default_factory=dict)

    def of(self, label: str, value: str) -> str:
        name = self.by_value.get((label, value))
        while name is None:
            self.last[label] = self.last.get(label, 0) + 1
            name = f"[{label} {self.last[label]}]"
            if name in self.taken:
                name = None
            else:
                self.by_value[label, value] = name
                self.real[name] = value
        return name


class PIIRedaction(ChatMiddleware):
    """Hide personal data from the model. Numbered placeholders such as `[email 1]`, the same for equal values of a
    request, replace e-mail addresses, phone numbers, credit cards, IBANs, US social security numbers and IP addresses.

    kinds: some of `email`, `phone`, `credit card`, `iban`, `ssn`, `ip address`; all by default.
    patterns: further ones, `{"order no": r"ORD-\\d{6}"}`.
    restore: replace placeholders in the model's answer and in its tool calls by the values, so tools, the journal and
    the history get real data. A placeholder could be split between deltas, so an answer to a redacted request is not
    streamed. False keeps the placeholders.

    Redacted: all text of all messages: names, tool results, arguments of earlier tool calls, data, and documents of
    plain text. Not redacted: images, audio, other documents, URLs of media, signed thinking, and descriptions of tools.
    Cards and IBANs must have valid checksums. A phone number needs a country code or separators: ten digits in a row
    may be an order number.

    Raises InvalidInputError, with the field, for an invalid kind or pattern.
    """

    def __init__(
        self,
        *,
        kinds: Iterable[str] | None = None,
        patterns: Mapping[str, str | re.Pattern[str]] | None = None,
        restore: bool = True,
    ) -> None:
        self._patterns = (*custom(patterns or {}), *chosen(kinds))
        self.restore = restore
        labels = "|".join(re.escape(pattern.label) for pattern in self._patterns)
        self._placeholder = re.compile(rf"\[(?:{labels}) \d{{1,9}}\]", re.IGNORECASE)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._chars = 0

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        names = self._redact(context)
        if not (names.real and self.restore):
            await call_next()
            return
        context.stream = False
        await call_next()
        if context.response is not None:
            context.response = self._restored(context.response, names)

    def _redact(self, context: ChatContext) -> _Names:
        known = [self._look(message) for message in context.messages]
        names = _Names(frozenset().union(*(one.literals for one in known)))
        if any(one.values for one in known):
            pairs = zip(context.messages, known, strict=True)
            context.messages = [self._redacted(message, one, names) for message, one in pairs]
        return names

    def _look(self, message: ChatMessage) -> _Known:
        """The findings in a message, cached: every call sends the conversation again."""
        known = self._known.get(message.digest)
        if known is not None:
            self._known.move_to_end(message.digest)
            return known
        values: dict[tuple[str, str], None] = {}
        literals: set[str] = set()
        size = 0

        def look(text: str) -> str:
            nonlocal size
            size += len(text)
            values.update(((label, text[start:end]), None) for start, end, label in spans_in(text, self._patterns))
            if "[" in text:
                literals.update(match.group().lower() for match in self._placeholder.finditer(text))
            return text

        change_blocks(message.content, look)
        if message.name:
            look(message.name)
        known = self._known[message.digest] = _Known(tuple(values), frozenset(literals), size if values else 0)
        self._chars += known.size
        while len(self._known) > 1 and (len(self._known) > MAX_KNOWN or self._chars > MAX_KNOWN_CHARS):
            _, oldest = self._known.popitem(last=False)
            self._chars -= oldest.size
        return known

    def _redacted(self, message: ChatMessage, known: _Known, names: _Names) -> ChatMessage:
        if not known.values:
            return message
        placeholders = tuple(names.of(label, value) for label, value in known.values)
        if known.redacted is None or known.names != placeholders:
            known.redacted, known.names = self._replaced(message, names), placeholders
        return known.redacted

    def _replaced(self, message: ChatMessage, names: _Names) -> ChatMessage:
        def replace(text: str) -> str:
            spans = spans_in(text, self._patterns)
            if not spans:
                return text
            parts, at = [], 0
            for start, end, label in spans:
                parts += [text[at:start], names.of(label, text[start:end])]
                at = end
            return "".join([*parts, text[at:]])

        changes: dict[str, Any] = {"content": change_blocks(message.content, replace), "metadata": {}}
        if message.name and spans_in(message.name, self._patterns):
            changes["name"] = None  # providers allow no brackets in names
        return message.model_copy(update=changes)

    def _restored(self, response: ModelResponse, names: _Names) -> ModelResponse:
        def put_back(match: re.Match[str]) -> str:
            return names.real.get(match.group().lower(), match.group())

        def restore(text: str) -> str:
            return self._placeholder.sub(put_back, text) if "[" in text else text

        content: Sequence[Any] = change_blocks(response.content, restore, answer=True)
        if all(new is old or new == old for new, old in zip(content, response.content, strict=True)):
            return response
        return response.model_copy(update={"message": response.message.model_copy(update={"content": list(content)})})


Change = Callable[[str], Any]  # changes a text; returns the same object for no change

_FIELDS: dict[type[Any], tuple[str, ...]] = {
    TextBlock: ("text",),
    CodeBlock: ("code",),
    DataBlock: ("data",),
    ErrorBlock: ("message", "details"),
    ImageBlock: ("alt",),
    AudioBlock: ("transcript",),
    VideoBlock: (),
    DocumentBlock: ("name",),
    ToolUseBlock: ("arguments",),
    UIResourceBlock: ("uri", "text"),
}
_MIN_NUMBER = 10**8  # shorter numbers are no personal data


def change_blocks(blocks: Sequence[ContentBlock], change: Change, *, answer: bool = False) -> list[ContentBlock]:
    """The blocks with every text changed. A block without changes is returned itself.

    `answer`: these are blocks of an answer, whose thinking stays unchanged. Signed thinking always stays unchanged: the
    provider checks the signature.
    """
    return [_block(block, change, answer) for block in blocks]


def _block(block: Any, change: Change, answer: bool) -> Any:
    if isinstance(block, ThinkingBlock):
        return block if answer or block.signature else _with(block, text=_text(block.text, change))
    if isinstance(block, ToolResultBlock):
        content = change_blocks(block.content, change, answer=answer)
        return _with(block, content=content) if _differs(content, block.content) else block
    if isinstance(block, UnknownBlock):
        if block.type == "redacted_thinking":
            return block
        extra = dict(block.model_extra or {})
        changed = change_json(extra, change)
        return block if changed is extra else UnknownBlock.model_validate({"type": block.type, **changed})
    changes = {name: change_json(getattr(block, name), change) for name in _FIELDS.get(type(block), ())}
    if isinstance(block, DocumentBlock):
        changes["data"] = _document(block, change)
    return _with(block, **changes)


def _with(block: BaseModel, **changes: Any) -> BaseModel:
    changes = {name: value for name, value in changes.items() if value is not getattr(block, name)}
    return block.model_copy(update=changes) if changes else block


def _differs(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(a is not b for a, b in zip(one, other, strict=True))


def _document(block: DocumentBlock, change: Change) -> str | None:
    """The changed data of a plain-text document; other documents stay unchanged."""
    kind = block.mime_type or ""
    if block.data is None or not (kind.startswith("text/") or kind == "application/json"):
        return block.data
    try:
        text = base64.b64decode(block.data).decode()
    except ValueError:
        return block.data
    changed = _text(text, change)
    return block.data if changed is text else base64.b64encode(changed.encode()).decode()


def change_json(value: Any, change: Change) -> Any:
    """The JSON value with changed texts, keys and long numbers; the same object if nothing changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _MIN_NUMBER:
        text = str(value)
        changed = change(text)
        return value if changed is text else changed
    if isinstance(value, dict):
        pairs = [(_text(key, change), change_json(item, change)) for key, item in value.items()]
        same = all(key is old and item is value[old] for (key, item), old in zip(pairs, value, strict=True))
        return value if same else dict(pairs)
    if isinstance(value, list):
        items = [change_json(item, change) for item in value]
        return items if _differs(items, value) else value
    return value


def _text(text: str, change: Change) -> str:
    changed = change(text)
    return changed if isinstance(changed, str) else str(changed)
