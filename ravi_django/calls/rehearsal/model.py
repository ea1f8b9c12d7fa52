"""The built-in offline model, for demos and for trials without a provider."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from ravi_django import wing
from ravi_django.calls.rehearsal.rules import LABEL, answer, choose_calls, read_situation
from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolUseBlock
from ravi_django.kernel.llm import GenerationOptions, ModelEvent, ModelResponse
from ravi_django.kernel.messages import TextDelta
from ravi_django.kernel.supervision import RunMeta

REHEARSAL = "rehearsal"


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
            answers = (answer_of(instructions, situation.whole) for _, answer_of in wing.each("rehearsal"))
            text = next(filter(None, answers), None) or LABEL + answer(situation)
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
