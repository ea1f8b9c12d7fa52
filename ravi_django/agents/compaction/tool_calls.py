"""Old tool calls, dropped together with their results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ravi_django.agents.transcript import Transcript, makes_calls
from ravi_django.kernel import ChatMessage, Role
from ravi_django.kernel.checks import check_whole


class SelectiveToolCallCompaction:
    """The newest `keep_last` tool groups stay, older ones go. A group is an assistant's turn with its calls and the
    results of them; it goes as a whole. What was said besides stays."""

    reach = None
    tail_safe = True

    def __init__(self, keep_last: int = 5) -> None:
        self.keep_last = check_whole("keep_last", keep_last, least=0)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        place = self._oldest_kept(messages)
        return [messages[spoken] for spoken in _spoken(messages, place)] + list(messages[place:])

    def _oldest_kept(self, messages: Sequence[ChatMessage]) -> int:
        place, groups = len(messages), 0
        while place and groups < self.keep_last:
            place -= 1
            groups += makes_calls(messages[place])
        return place


def _spoken(messages: Sequence[ChatMessage], end: int) -> Sequence[int]:
    """What has nothing to do with tools, of `messages[:end]`."""
    if isinstance(messages, Transcript):
        return messages.spoken[: bisect_left(messages.spoken, end)]
    return [place for place in range(end) if messages[place].role is not Role.TOOL and not makes_calls(messages[place])]
