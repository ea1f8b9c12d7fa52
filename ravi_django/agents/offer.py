"""What a model is offered with each call: tools, a response format, the tool it has to begin with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ravi_django.agents.result import TOOL_NAME, ResultType, free_name
from ravi_django.kernel import AgentId, ChatModel, GenerationOptions, InvalidInputError, ToolRegistry
from ravi_django.kernel.tools import specs_of


@dataclass(frozen=True, slots=True)
class Offer:
    """The options of a message's model calls. Built once for an agent: their digests are computed once."""

    first: GenerationOptions  # of a message's first call
    later: GenerationOptions


@dataclass(frozen=True, slots=True)
class Offers:
    """An agent's: without a result type `plain` is all there is."""

    plain: GenerationOptions  # what the agent was made with, and its tools
    by_tool: Offer  # the result is given by calling a tool
    by_schema: Offer  # the provider holds the answer to the schema
    result_tool: str  # the name of that tool

    @classmethod
    def of(
        cls,
        agent_id: AgentId,
        base: GenerationOptions | None,
        tools: ToolRegistry,
        first_choice: str | None,
        result: ResultType | None,
    ) -> Offers:
        """Raises InvalidInputError when the tool to begin with is none of the agent's."""
        base = base or GenerationOptions()
        plain = _built(base, tools=specs_of(base.tools or tools.all()))
        names = [spec.name for spec in plain.tools]
        _check_choice(agent_id, first_choice, names)
        if result is None:
            offer = _offer(plain, first_choice)
            return cls(plain, offer, offer, TOOL_NAME)
        name = free_name([*names, *tools.names()])
        by_tool = _built(plain, tools=[*plain.tools, result.tool_spec(name)])
        by_schema = _built(plain, response_format=result.response_format)
        return cls(plain, _offer(by_tool, first_choice), _offer(by_schema, first_choice), name)

    async def choose(self, model: ChatModel) -> Offer:
        """By what the model's provider can do."""
        if self.by_tool is self.by_schema:
            return self.by_tool
        supports: Any = getattr(model, "supports_schema", None)
        return self.by_schema if supports is not None and await supports() else self.by_tool


def _offer(options: GenerationOptions, first_choice: str | None) -> Offer:
    return Offer(options if first_choice is None else _built(options, tool_choice=first_choice), options)


def _built(base: GenerationOptions, **changes: Any) -> GenerationOptions:
    # Built anew, not copied: a copy would carry the digests that were cached for the original.
    values = {name: getattr(base, name) for name in GenerationOptions.model_fields}
    return GenerationOptions(**{**values, **changes})


def _check_choice(agent_id: AgentId, choice: str | None, names: Iterable[str]) -> None:
    names = list(names)
    if choice is None or choice in ("auto", "none", *(names and ["required"]), *names):
        return
    raise InvalidInputError(
        f"initial_tool_choice {choice!r} is no tool of {agent_id}; it has {', '.join(names) or 'none'}",
        field="initial_tool_choice",
    )
