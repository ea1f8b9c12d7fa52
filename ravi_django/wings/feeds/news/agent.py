"""Shared by InformationAgent and PersonalFeedAgent: the constructor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.agents.messages import Instructions, checked_model, instructions_text, model_name, names_of, spec_text
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline
from ravi_django.agents.spec.spec import PER_GENERATION
from ravi_django.kernel import AgentId, ChatModel, GenerationOptions, InvalidInputError
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.contracts import RunContext
from ravi_django.wings.feeds.news.items import address_of


class NewsAgent:
    """Constructor arguments that InformationAgent and PersonalFeedAgent share.

    id: another address than `<kind>/<key>`.
    items_per_generation: after the message with this many items the run continues as new with an empty journal, which
    bounds a replay.
    base_options: GenerationOptions, or a dict of them, of the model's calls.
    middleware, hooks: see AgentMiddleware, ChatMiddleware and Hooks.
    public_signals: names of signals that the owner of a run may send over REST, in addition to those of the class.
    """

    public_signals: frozenset[str] = frozenset()

    def __init__(
        self,
        kind: str,
        key: str,
        instructions: Instructions,
        about: str,
        *,
        model: ChatModel | str | None = None,
        items_per_generation: int = PER_GENERATION,
        base_options: GenerationOptions | dict[str, Any] | None = None,
        id: AgentId | str | None = None,
        name: str = "",
        description: str = "",
        middleware: Any = None,
        hooks: Any = None,
        public_signals: Iterable[str] | None = None,
    ) -> None:
        self.id = address_of(kind, key, id)
        try:
            self.model = None if model is None else checked_model(model)
        except TypeError as error:
            raise InvalidInputError(str(error), field="model") from None
        self.instructions = instructions
        self.items_per_generation = check_whole("items_per_generation", items_per_generation, 1)
        self.inbox_limit = self.items_per_generation  # later messages belong to the next generation
        self.base_options = GenerationOptions.of(base_options)
        self.name = name or self.id.key
        self.description = description or about
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.public_signals = names_of(self, public_signals)

    async def _instructions_text(self, ctx: RunContext) -> str:
        return await instructions_text(ctx, self.instructions, self.id)

    def spec(self) -> dict[str, Any]:
        """JSON for the admin, and to see that the agent has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "description": self.description,
            "model": model_name(self.model),
            "instructions": spec_text(self.instructions),
            "items_per_generation": self.items_per_generation,
        }
