"""The oldest turns go until the rest fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ravi_django.agents.compaction.groups import from_the_users_words, group_start, leading
from ravi_django.agents.compaction.strategy import READ
from ravi_django.agents.compaction.tokens import BYTES_A_TOKEN, TokenCounter
from ravi_django.agents.compaction.tool_results import trimmed
from ravi_django.agents.transcript import user_before
from ravi_django.kernel import ChatMessage, Role
from ravi_django.kernel.checks import check_whole

LEAST_CHARS = 200  # of a tool result: less says nothing


class TruncationCompaction:
    """The newest turns that fit into `max_tokens`, whatever they are; a call and its results go together.

    The system messages at the front, the user's last words and the last turn with its results stay. Where these alone
    are too many, the results of that turn are cut; what is too long even then, the provider refuses.

    model: whose tokens are counted; the run's own when None. Cost: that of what stays, in a Transcript.
    """

    reach = READ

    def __init__(self, max_tokens: int, *, model: Any = None) -> None:
        self.max_tokens = check_whole("max_tokens", max_tokens)
        self.model = model

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        counter = TokenCounter(self.model)
        if not messages or await counter.total(messages) <= self.max_tokens:
            return list(messages)
        lead = leading(messages)
        head = list(messages[:lead])
        room = self.max_tokens - counter.known(head)
        if lead == len(messages):
            return head
        user = user_before(messages, len(messages), lead)
        start = self._oldest_that_fits(messages, lead, user, room, counter)
        rest = from_the_users_words(messages, start, user, move=True)
        return head + await self._cut_results(rest, room, counter)

    def _oldest_that_fits(
        self, messages: Sequence[ChatMessage], lead: int, user: int | None, room: int, counter: TokenCounter
    ) -> int:
        start = group_start(messages, len(messages), lead)
        used = counter.known(messages[start:])
        words = 0 if user is None or user >= start else counter.known([messages[user]])
        while start > lead:
            before = group_start(messages, start, lead)
            used += counter.known(messages[before:start])
            if user is not None and before <= user < start:
                words = 0  # they are part of it from here on
            if used + words > room:
                break
            start = before
        return start

    async def _cut_results(self, rest: list[ChatMessage], room: int, counter: TokenCounter) -> list[ChatMessage]:
        results = [place for place, message in enumerate(rest) if message.role is Role.TOOL]
        chars = max(room, 0) * BYTES_A_TOKEN // max(len(results), 1)
        shown = rest
        while results and await counter.total(shown) > room and chars > LEAST_CHARS:
            chars = max(chars // 2, LEAST_CHARS)
            shown = [trimmed(m, chars, errors=True) if m.role is Role.TOOL else m for m in rest]
        return shown
