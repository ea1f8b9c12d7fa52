"""Views of the newest messages, limited by their number or their tokens."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from ravi_django.agents.memory.compaction.strategy import READ, from_user_message, group_start, leading
from ravi_django.agents.memory.compaction.tokens import BYTES_A_TOKEN, TokenCounter
from ravi_django.agents.memory.transcript import POSITION, Transcript, is_users, makes_calls, user_before
from ravi_django.kernel import ChatMessage, ContentBlock, Role, TextBlock, ToolResultBlock
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.content import AudioBlock, DocumentBlock, ImageBlock, VideoBlock, text_of

_LEAST_READ = 8  # messages more than the longest window: a small one could miss the last call


class SlidingWindowCompaction:
    """The newest messages, between `max_messages` and 1.5 times as many, in a form that every provider accepts.

    - The start moves in steps of half a window, by the positions of the messages in the conversation. Between two steps
      each request only adds to the one before, in any run and after a restart, so the provider reads it from its cache.
    - System messages at the front stay and count.
    - It starts at a user message. In a long row of tool calls the last user message replaces the oldest one, so the
      model never loses its task.
    - A tool result always has its call. The last call, its results and the user message stay even if they alone are
      more than the window.

    The cost depends on the window; in a list that is no Transcript, also on the search for the last user message.
    """

    def __init__(self, max_messages: int = 100) -> None:
        self.max_messages = check_whole("max_messages", max_messages)

    @property
    def reach(self) -> int | None:
        """How many of the newest messages it reads."""
        return self.max_messages + self._step + _LEAST_READ

    @property
    def _step(self) -> int:
        return max(1, self.max_messages // 2)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The system messages at the front, and the newest messages."""
        lead = self._lead(messages)
        start = self._start(messages, lead)
        head = list(messages[:lead])
        if start == lead and not _is_tool(messages, start):
            return head + list(messages[start:])
        if start < len(messages) and is_users(messages[start]):
            return head + list(messages[start:])
        return head + self._tail(messages, lead, start)

    def _lead(self, messages: Sequence[ChatMessage]) -> int:
        """The number of system messages that stay at the front. They leave room for one other message."""
        lead = 0
        while lead < min(len(messages), self.max_messages - 1) and messages[lead].role is Role.SYSTEM:
            lead += 1
        return lead

    def _start(self, messages: Sequence[ChatMessage], lead: int) -> int:
        """The newest message that is the first of its step and has a whole window from it on. Never the second message:
        the one before it may be a user's message from long ago."""
        newest = len(messages) - max(1, self.max_messages - lead)
        oldest = newest - self._step
        for index in range(newest, max(lead + 1, oldest), -1):
            if _position(messages, index, lead) // self._step != _position(messages, index - 1, lead) // self._step:
                return index
        return lead if oldest < lead else newest

    def _tail(self, messages: Sequence[ChatMessage], lead: int, start: int) -> list[ChatMessage]:
        """A window that would start within a turn: put the user's last message before it."""
        pinned = user_before(messages, start, lead)
        if pinned is not None:
            after = _skip_results(messages, start + 1)
            if after == len(messages):  # no room for both: exceed the limit
                after = _last_call(messages, lead)
            pin = [] if is_users(messages[after]) else [messages[pinned]]
            return pin + list(messages[after:])
        user = next((i for i in range(start, len(messages)) if is_users(messages[i])), None)
        after = _skip_results(messages, start) if user is None else user
        if after == len(messages):  # only results, their call does not fit: exceed the limit
            after = _last_call(messages, lead)
        return list(messages[after:])


def _position(messages: Sequence[ChatMessage], index: int, lead: int) -> int:
    """In the conversation; in a list that was never in a Transcript, the index."""
    position = origin(messages[index])._wire.get(POSITION)
    return index - lead if position is None else int(position)


def _is_tool(messages: Sequence[ChatMessage], index: int) -> bool:
    return index < len(messages) and messages[index].role is Role.TOOL


def _skip_results(messages: Sequence[ChatMessage], start: int) -> int:
    while _is_tool(messages, start):
        start += 1
    return start


def _last_call(messages: Sequence[ChatMessage], lead: int) -> int:
    """The index of the last call with results; the end if the results have no call."""
    index = len(messages) - 1
    while index >= lead and messages[index].role is Role.TOOL:
        index -= 1
    return index if index >= lead else len(messages)


LEAST_CHARS = 200  # of a tool result; a shorter one is of no use


class TruncationCompaction:
    """The newest turns that fit into `max_tokens`, and fill about two thirds of it or more; a call and its results stay
    together. The start moves in steps, by positions in the conversation, as that of SlidingWindowCompaction.

    The system messages at the front, the user's last message and the last turn with its results stay. If these alone do
    not fit, the results of that turn are cut. If they still do not fit, the provider will refuse the request.

    model: its tokenizer is used; None is the run's own model. Cost: that of the returned messages, in a Transcript.
    """

    reach = READ

    def __init__(self, max_tokens: int, *, model: Any = None) -> None:
        self.max_tokens = check_whole("max_tokens", max_tokens)
        self.model = model

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The system messages at the front, and the newest messages that fit."""
        counter = TokenCounter(self.model)
        if not messages or await counter.total(messages) <= self.max_tokens:
            return list(messages)
        lead = leading(messages)
        head = list(messages[:lead])
        room = self.max_tokens - counter.known(head)
        if lead == len(messages):
            return head
        user = user_before(messages, len(messages), lead)
        start = self._start(messages, lead, user, room, counter)
        rest = from_user_message(messages, start, user, move=True)
        return head + await self._cut_results(rest, room, counter)

    def _start(
        self, messages: Sequence[ChatMessage], lead: int, user: int | None, room: int, counter: TokenCounter
    ) -> int:
        """Of the starts that fill two thirds of the room or more, the one whose position in the conversation has the
        largest power of two as a factor. It stays the best one until it no longer fits."""
        start = group_start(messages, len(messages), lead)
        used = counter.known(messages[start:])
        user_tokens = 0 if user is None or user >= start else counter.known([messages[user]])
        starts = [start]
        while start > lead:
            start = group_start(messages, start, lead)
            used += counter.known(messages[start : starts[-1]])
            if user is not None and start <= user < starts[-1]:
                user_tokens = 0  # the turns from here on include it
            if used + user_tokens > room:
                break
            starts = [start] if 3 * (used + user_tokens) <= 2 * room else [*starts, start]
        positions = {index: _position(messages, index, lead) for index in starts}
        return max(starts, key=lambda index: (positions[index] & -positions[index], -index))

    async def _cut_results(self, rest: list[ChatMessage], room: int, counter: TokenCounter) -> list[ChatMessage]:
        results = [index for index, message in enumerate(rest) if message.role is Role.TOOL]
        chars = max(room, 0) * BYTES_A_TOKEN // max(len(results), 1)
        view = rest
        while results and await counter.total(view) > room and chars > LEAST_CHARS:
            chars = max(chars // 2, LEAST_CHARS)
            view = [trimmed(m, chars, errors=True) if m.role is Role.TOOL else m for m in rest]
        return view


MARKER = "… [{cut} characters cut]"
_MEDIA = (ImageBlock, AudioBlock, VideoBlock, DocumentBlock)


class ToolResultCompaction:
    """Cuts tool results after `max_chars` characters and adds `marker`, in which `{cut}` is the number of characters
    cut.

    Errors, media, and the results of the newest `keep_newest` turns with results stay whole.
    """

    reach = None
    tail_safe = True
    one_to_one = True

    def __init__(self, max_chars: int = 500, *, keep_newest: int = 0, marker: str = MARKER) -> None:
        self.max_chars = check_whole("max_chars", max_chars)
        self.keep_newest = check_whole("keep_newest", keep_newest, least=0)
        self.marker = marker

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """All messages; old results are cut."""
        view = (
            messages.mapped(f"trimmed:{self.max_chars}:{self.marker}", self._trimmed)
            if isinstance(messages, Transcript)
            else [self._trimmed(message) for message in messages]
        )
        if not self.keep_newest:
            return view
        index = self._newest(messages)
        return view[:index] + list(messages[index:])

    def _trimmed(self, message: ChatMessage) -> ChatMessage:
        return trimmed(message, self.max_chars, self.marker) if message.role is Role.TOOL else message

    def _newest(self, messages: Sequence[ChatMessage]) -> int:
        """The index where the results that stay whole begin."""
        index = len(messages)
        for _ in range(self.keep_newest):
            while index and messages[index - 1].role is not Role.TOOL:
                index -= 1
            while index and messages[index - 1].role is Role.TOOL:
                index -= 1
        return index


def trimmed(message: ChatMessage, max_chars: int, marker: str = MARKER, *, errors: bool = False) -> ChatMessage:
    """The message with its long results cut, or the message itself if there is nothing to cut. Computed once. `errors`:
    cut errors too."""
    key = f"trimmed:{max_chars}:{errors}:{marker}"
    cut: ChatMessage | None = message._wire.get(key, message)
    if cut is message:
        content = [_cut(block, max_chars, marker, errors) for block in message.content]
        cut = None
        if any(new is not old for new, old in zip(content, message.content, strict=True)):
            cut = message.model_copy(update={"content": content})
            cut._wire[key] = None  # a cut message is not cut again
            cut._wire["origin"] = weakref.ref(origin(message))
        message._wire[key] = cut
    return cut or message


def origin(message: ChatMessage) -> ChatMessage:
    """The original of a cut message."""
    made_of = message._wire.get("origin")
    source: ChatMessage | None = made_of() if made_of is not None else None
    return source or message


def _cut(block: ContentBlock, max_chars: int, marker: str, errors: bool) -> ContentBlock:
    if not isinstance(block, ToolResultBlock) or (block.is_error and not errors):
        return block
    text = block.text
    if len(text) <= max_chars:
        return block
    plain = text_of([part for part in block.content if not isinstance(part, _MEDIA)])
    if len(plain) <= max_chars:  # only a transcript of media is long
        return block
    content: list[ContentBlock] = [
        TextBlock(text=plain[:max_chars] + marker.replace("{cut}", str(len(plain) - max_chars)))
    ]
    content += [part for part in block.content if isinstance(part, _MEDIA)]
    return block.model_copy(update={"content": content})


class SelectiveToolCallCompaction:
    """Drops all tool groups but the newest `keep_last`. A group is an assistant's turn with tool calls and their
    results. Other messages stay."""

    reach = None
    tail_safe = True

    def __init__(self, keep_last: int = 5) -> None:
        self.keep_last = check_whole("keep_last", keep_last, least=0)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """All messages; old calls and their results are left out."""
        index, groups = len(messages), 0
        while index and groups < self.keep_last:
            index -= 1
            groups += makes_calls(messages[index])
        return [messages[spoken] for spoken in _spoken(messages, index)] + list(messages[index:])


def _spoken(messages: Sequence[ChatMessage], end: int) -> Sequence[int]:
    """The indexes of the messages before `end` without tool calls and results."""
    if isinstance(messages, Transcript):
        return messages.spoken[: bisect_left(messages.spoken, end)]
    return [index for index in range(end) if messages[index].role is not Role.TOOL and not makes_calls(messages[index])]
