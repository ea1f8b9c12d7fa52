"""Parallel research with a synthesiser: the same question from several sides at once, then one text out of it.

    python -m examples.research "Should the office have a cat?"

Which sides there are is decided by code, so it is code that delegates: `ctx.ask` of an address starts a child and waits
for its reply, and `asyncio.gather` lets them work at the same time. A side that fails, or is too slow, is left out, and
the synthesiser is told so. Where a model is to decide whom to ask what, take an OrchestratorAgent. See `running` for
how to start it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from examples.running import play
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, AgentId, ChatModel, Message, RunContext

SIDES = ("what speaks for it", "what speaks against it", "what it costs")


class Research:
    id = AgentId("example", "research")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        question = inbox[0].text
        found = await asyncio.gather(*(self._look_into(ctx, question, side) for side in SIDES))
        notes = "\n".join(f"{side}: {words}" for side, words in zip(SIDES, found, strict=True))
        synthesis = await ctx.ask("react/synthesiser", f"{question}\n{notes}", timeout=120)
        return synthesis.text or f"Nobody has put it together:\n{notes}"

    async def _look_into(self, ctx: RunContext, question: str, side: str) -> str:
        outcome = await ctx.ask("react/looker", f"{question} Say {side}.", timeout=60)
        return outcome.text or f"(nothing: {outcome.kind})"


def research(model: ChatModel) -> list[Agent]:
    looker = ReActAgent("looker", model=model, system_instructions="Answer in two sentences, from one side alone.")
    synthesiser = ReActAgent("synthesiser", model=model, system_instructions="Weigh the notes. Answer the question.")
    return [Research(), looker, synthesiser]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(research(model_from_env()), "Should the office have a cat?")
