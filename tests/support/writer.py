"""A model that writes the arguments of its calls in pieces, as providers do."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic_core import to_json

from ravi_django.kernel import ModelEvent, ModelResponse, Role, TextBlock, ToolCallDelta, ToolUseBlock
from tests.support.patience import BOUND_S


class Writer:
    """Makes these calls, one piece of their arguments for each word; then it is done. `hold` stops it before the last
    piece."""

    name = "writer"

    def __init__(self, *turns: Sequence[ToolUseBlock], hold: threading.Event | None = None) -> None:
        self.turns, self.hold = turns, hold

    async def stream(self, messages: Any, options: Any, meta: Any) -> AsyncIterator[ModelEvent]:
        turn = sum(message.role == Role.ASSISTANT for message in messages)
        if turn >= len(self.turns):
            yield ModelResponse.of([TextBlock(text="done")])
            return
        for index, block in enumerate(self.turns[turn]):
            *pieces, last = re.split("(?<= )", to_json(block.arguments).decode())
            for text in (*pieces, last):
                if self.hold is not None and text is last:
                    await asyncio.to_thread(self.hold.wait, BOUND_S)
                yield ToolCallDelta(index=index, call_id=block.call_id, name=block.tool_name, arguments=text)
        yield ModelResponse.of([*self.turns[turn]], finish_reason="tool_calls")
