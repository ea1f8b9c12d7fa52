"""Writer and critic: a draft is sent back with what is wrong with it, until nothing is, three times at most.

    python -m examples.writer_critic "A note to the neighbours about Saturday's party"

The loop is code: how often it goes round is bounded whatever the models say, and each round is a child run of its own,
recorded, so that a crash in the third does not pay for the first two again. See `running` for how to start it.
"""

from __future__ import annotations

from typing import Any

from examples.running import play
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, AgentId, ChatModel, Message, RunContext

ROUNDS = 3
GOOD = "good as it is"


class Editor:
    id = AgentId("example", "editor")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        wanted = inbox[0].text
        task, draft = f"Write: {wanted}", ""
        for _ in range(ROUNDS):
            written = await ctx.ask("react/drafter", task, timeout=120)
            if written.kind != "replied":
                break
            draft = written.text
            verdict = await ctx.ask("react/critic", f"{wanted}\n\n{draft}", timeout=120)
            if verdict.kind != "replied" or GOOD in verdict.text.lower():
                break
            task = f"Write again: {wanted}\n\nYour draft:\n{draft}\n\nWhat is wrong with it:\n{verdict.text}"
        return draft or "No draft came of it."


def writer_critic(model: ChatModel) -> list[Agent]:
    drafter = ReActAgent("drafter", model=model, system_instructions="You write. Give the text alone.")
    critic = ReActAgent(
        "critic", model=model, system_instructions=f'Say what is wrong with the text, or "{GOOD}" when nothing is.'
    )
    return [Editor(), drafter, critic]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(writer_critic(model_from_env()), "A note to the neighbours about Saturday's party")
