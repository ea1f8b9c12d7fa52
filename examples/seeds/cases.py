"""Three results by which a tool pauses or ends its agent: for a child, for a person, for good.

    python -m examples.seeds.cases "Translate this: good morning"

1. `PauseForChildResult`: agent A waits for B, whose answer is the result of A's tool call.
2. `PauseForInputResult`: A waits for a person; the tool is called again with the answer, which is then its result.
3. `FinishAgentResult`: A ends without an answer, and B answers A's caller: with A's run, session and depth.

See `examples/running.py` for how to start it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from examples.running import play
from ravi_django.agents import ReActAgent, tool
from ravi_django.agents.flow import (
    BaseAgentProxy,
    ChatOutput,
    FinishAgentResult,
    PauseForChildResult,
    PauseForInputResult,
    Prompt,
    ResumeWithInput,
    TurnEnd,
)
from ravi_django.kernel import Agent, ChatModel, RunContext

B = "agent/translator"


class Translator(BaseAgentProxy):
    """Agent B, a custom agent: a generator that yields events."""

    async def next_turn(self, prompt: Prompt) -> AsyncGenerator[Any, Any]:
        yield ChatOutput(f"Translated at depth {prompt.depth}: ")
        response = await self.ctx.llm(await self.window())
        yield TurnEnd(f"{response.text} (depth {prompt.depth})")


@tool
async def ask_translator(text: str, ctx: RunContext) -> PauseForChildResult:
    """Have a text translated."""
    return PauseForChildResult(await ctx.spawn(B, text))


@tool
def ask_customer(question: str, answer: ResumeWithInput | None = None) -> PauseForInputResult | str:
    """Ask the customer."""
    return PauseForInputResult(question) if answer is None else f"The customer says: {answer.text}"


@tool
def give_to_translator(text: str) -> FinishAgentResult:
    """Let the translator take over."""
    return FinishAgentResult(B, text)


def cases(model: ChatModel, translation: ChatModel | None = None) -> list[Agent]:
    return [
        ReActAgent("office", model=model, tools=[ask_translator, ask_customer, give_to_translator]),
        Translator("translator", model=translation or model, instructions="Translate into French."),
    ]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(cases(model_from_env()), "Translate this: good morning")
