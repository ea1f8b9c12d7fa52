"""A model call that nobody watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from ravi_django.kernel import ChatMessage, ChatModel, GenerationOptions, ModelResponse, RunMeta
from ravi_django.kernel.llm import ModelEvent


class QuietModel:
    """The same model without its deltas: a summary is no answer to the user."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.name = model.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        async for event in self._model.stream(messages, options, meta):
            if isinstance(event, ModelResponse):
                yield event
