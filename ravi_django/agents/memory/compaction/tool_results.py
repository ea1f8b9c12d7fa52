"""Cut long tool results, and drop old tool calls with their results."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence

from ravi_django.agents.memory.transcript import Transcript, makes_calls
from ravi_django.kernel import ChatMessage, ContentBlock, Role, TextBlock, ToolResultBlock
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.content import AudioBlock, DocumentBlock, ImageBlock, VideoBlock, text_of

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
        shown = (
            messages.mapped(f"trimmed:{self.max_chars}:{self.marker}", self._trimmed)
            if isinstance(messages, Transcript)
            else [self._trimmed(message) for message in messages]
        )
        if not self.keep_newest:
            return shown
        place = self._newest(messages)
        return shown[:place] + list(messages[place:])

    def _trimmed(self, message: ChatMessage) -> ChatMessage:
        return trimmed(message, self.max_chars, self.marker) if message.role is Role.TOOL else message

    def _newest(self, messages: Sequence[ChatMessage]) -> int:
        """The index where the results that stay whole begin."""
        place = len(messages)
        for _ in range(self.keep_newest):
            while place and messages[place - 1].role is not Role.TOOL:
                place -= 1
            while place and messages[place - 1].role is Role.TOOL:
                place -= 1
        return place


def trimmed(message: ChatMessage, max_chars: int, marker: str = MARKER, *, errors: bool = False) -> ChatMessage:
    """The message with its long results cut, or the message itself if there is nothing to cut. Computed once. `errors`:
    cut errors too."""
    key = f"trimmed:{max_chars}:{errors}:{marker}"
    found: ChatMessage | None = message._wire.get(key, message)
    if found is message:
        content = [_cut(block, max_chars, marker, errors) for block in message.content]
        found = None
        if any(new is not old for new, old in zip(content, message.content, strict=True)):
            found = message.model_copy(update={"content": content})
            found._wire[key] = None  # a cut message is not cut again
            found._wire["origin"] = weakref.ref(origin(message))
        message._wire[key] = found
    return found or message


def origin(message: ChatMessage) -> ChatMessage:
    """The original of a cut message."""
    made_of = message._wire.get("origin")
    found: ChatMessage | None = made_of() if made_of is not None else None
    return found or message


def _cut(block: ContentBlock, max_chars: int, marker: str, errors: bool) -> ContentBlock:
    if not isinstance(block, ToolResultBlock) or (block.is_error and not errors):
        return block
    text = block.text
    if len(text) <= max_chars:
        return block
    said = text_of([part for part in block.content if not isinstance(part, _MEDIA)])
    if len(said) <= max_chars:  # only a transcript of media is long
        return block
    kept: list[ContentBlock] = [TextBlock(text=said[:max_chars] + marker.replace("{cut}", str(len(said) - max_chars)))]
    kept += [part for part in block.content if isinstance(part, _MEDIA)]
    return block.model_copy(update={"content": kept})


class SelectiveToolCallCompaction:
    """Drops all tool groups but the newest `keep_last`. A group is an assistant's turn with tool calls and their
    results. Other messages stay."""

    reach = None
    tail_safe = True

    def __init__(self, keep_last: int = 5) -> None:
        self.keep_last = check_whole("keep_last", keep_last, least=0)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        place, groups = len(messages), 0
        while place and groups < self.keep_last:
            place -= 1
            groups += makes_calls(messages[place])
        return [messages[spoken] for spoken in _spoken(messages, place)] + list(messages[place:])


def _spoken(messages: Sequence[ChatMessage], end: int) -> Sequence[int]:
    """The indexes of the messages before `end` without tool calls and results."""
    if isinstance(messages, Transcript):
        return messages.spoken[: bisect_left(messages.spoken, end)]
    return [place for place in range(end) if messages[place].role is not Role.TOOL and not makes_calls(messages[place])]
