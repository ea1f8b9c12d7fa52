"""The built-in offline model, for demos and for trying a site without a provider."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from ravi_django.capabilities.rehearsal.feeds import about_item
from ravi_django.capabilities.rehearsal.rules import LABEL, answer, choose_calls, read_situation
from ravi_django.kernel.chat import ChatMessage, Role, Usage
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolUseBlock
from ravi_django.kernel.llm import GenerationOptions, ModelEvent, ModelResponse
from ravi_django.kernel.stream import TextDelta
from ravi_django.kernel.supervision import RunMeta

REHEARSAL = "rehearsal"


class RehearsalModel:
    """A ChatModel that follows rules: the same conversation gets the same answer, nothing leaves the process.

    It calls `calculator` for arithmetic, `send_invoice` for "Send an invoice of 100 to ACME", `send_mail` for
    "Send a mail to ada@example.com: See you at noon.", `current_time` when asked for the time; with
    `handoff_*` tools it delegates, to up to two agents at once by their names and descriptions; of an item of news it
    gives the first sentence, or says whether it has the words of the reader's preferences; otherwise it repeats what it
    was told, and what before. It streams a word every `delay` seconds. Its tokens are words; they cost nothing.
    """

    name = REHEARSAL

    def __init__(self, *, delay: float = 0.015) -> None:
        self.delay = delay

    def __repr__(self) -> str:
        return f"RehearsalModel(delay={self.delay})"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield a TextDelta a word, then the ModelResponse. Raises CancellationError when the run was cancelled."""
        situation = read_situation(messages)
        turn = sum(message.role is Role.ASSISTANT for message in messages)
        content: list[ContentBlock] = [
            ToolUseBlock(tool_name=name, arguments=arguments, call_id=f"rehearsal_{turn}_{index}")
            for index, (name, arguments) in enumerate(choose_calls(situation, options))
        ]
        words: list[str] = []
        if not content:
            instructions = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
            text = about_item(instructions, situation.whole, LABEL) or LABEL + answer(situation)
            content = [TextBlock(text=text)]
            words = re.findall(r"\S+\s*", text)
        for word in words:
            meta.cancellation.check()
            if self.delay:
                await asyncio.sleep(self.delay)
            yield TextDelta(text=word)
        yield ModelResponse.of(
            content,
            usage=Usage(
                input_tokens=sum(len(message.text.split()) for message in messages),
                output_tokens=len(words) or len(content),
            ),
            cost=0.0,
            model=self.name,
            finish_reason="stop" if words else "tool_calls",
        )
