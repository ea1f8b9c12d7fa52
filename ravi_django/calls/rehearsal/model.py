"""The built-in offline model, for demos and for trials without a provider."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence

from ravi_django.calls.rehearsal.rules import LABEL, MOST_READ, answer, choose_calls, read_situation
from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolUseBlock
from ravi_django.kernel.llm import GenerationOptions, ModelEvent, ModelResponse
from ravi_django.kernel.messages import TextDelta
from ravi_django.kernel.supervision import RunMeta
from ravi_django.wings.feeds.news.curation import match
from ravi_django.wings.feeds.news.items import OUTSIDE, Item

REHEARSAL = "rehearsal"
_WISHES, _AFTER = "The reader's preferences:\n", "\n\nAnswer with one JSON object"
_VERDICT = '{"keep": true or false'
_SENTENCE = re.compile(r".+?[.!?…](?=\s|$)", re.DOTALL)
_HEADLINE = 80  # characters


class RehearsalModel:
    """A ChatModel that follows rules: the same conversation gets the same answer, and nothing leaves the process.

    It calls `calculator` for arithmetic, `send_invoice` for "Send an invoice of 100 to ACME", `send_mail` for
    "Send a mail to ada@example.com: See you at noon.", and `current_time` for the time. Of other tools it calls the one
    whose name and arguments fit the message: `order_status(order_id=7)` for "Where is order 7?". With `handoff_*` tools
    it delegates to up to two agents by their names and descriptions. It summarizes a news item by its first sentence,
    and judges it by the words of the reader's preferences. Otherwise it repeats the last two messages of the user. It
    streams a word every `delay` seconds. Its tokens are words and cost nothing.
    """

    name = REHEARSAL
    prices = {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}

    def __init__(self, *, delay: float = 0.015) -> None:
        self.delay = delay

    def __repr__(self) -> str:
        return f"RehearsalModel(delay={self.delay})"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield a TextDelta per word, then the ModelResponse. Raises CancellationError if the run was cancelled."""
        situation = read_situation(messages)
        turn = sum(message.role is Role.ASSISTANT for message in messages)
        content: list[ContentBlock] = [
            ToolUseBlock(tool_name=name, arguments=arguments, call_id=f"rehearsal_{turn}_{index}")
            for index, (name, arguments) in enumerate(choose_calls(situation, options))
        ]
        pieces: list[str] = []
        if not content:
            instructions = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
            text = _about_item(instructions, situation.whole) or LABEL + answer(situation)
            content = [TextBlock(text=text)]
            pieces = re.findall(r"\S+\s*", text)
        for piece in pieces:
            meta.cancellation.check()
            if self.delay:
                await asyncio.sleep(self.delay)
            yield TextDelta(text=piece)
        yield ModelResponse.of(
            content,
            usage=Usage(
                input_tokens=sum(len(message.text.split()) for message in messages),
                output_tokens=len(pieces) or len(content),
            ),
            cost=0.0,
            model=self.name,
            finish_reason="stop" if pieces else "tool_calls",
        )


def _about_item(instructions: str, text: str) -> str | None:
    """The answer about the news item in `text`; None if the conversation is not about one. Every text for people begins
    with LABEL: in a JSON answer, the reason."""
    item = _item(text) if OUTSIDE in instructions else None
    if item is None:
        return None
    if _VERDICT not in instructions:
        return LABEL + _first_sentence(item.text or item.title)
    wishes = instructions.partition(_WISHES)[2].rpartition(_AFTER)[0]
    verdict = match(item, wishes[:MOST_READ])
    headline = item.title or _first_sentence(item.text.removeprefix(LABEL))[:_HEADLINE]
    return json.dumps({**verdict.model_dump(), "reason": LABEL + verdict.reason, "headline": headline})


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    sentence = _SENTENCE.match(text)
    return sentence[0] if sentence else text


def _item(text: str) -> Item | None:
    try:
        return Item.of_data(json.loads(text))
    except ValueError:
        return None
