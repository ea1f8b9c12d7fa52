"""Escalation: a model answers what it can; what it cannot, a person does, however long that takes.

    python -m examples.escalation "I want 5,000 back."

The run that waits is rows, and the person answers through `ravi_django.answer`, or with

    python manage.py ravi_requests
    python manage.py ravi_answer ID answer "Pay half of it."

Nobody answering is no consent: after a day the customer is told so. See `running` for how to start it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from examples.running import play
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, AgentId, ChatModel, Message, RunContext

UNSURE = "ask a person"


class Helpdesk:
    id = AgentId("example", "helpdesk")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        question = inbox[0].text
        first = (await ctx.ask("react/first-line", question, timeout=60)).text
        if first and UNSURE not in first.lower():
            return first
        said = await ctx.ask_human(question, context=first or "Nobody else has answered.", timeout=timedelta(days=1))
        if said.answered:
            return said.text
        return "We have not decided on it yet. You will hear from us."


def escalation(model: ChatModel) -> list[Agent]:
    first_line = ReActAgent(
        "first-line",
        model=model,
        system_instructions=f'Answer what is common knowledge; to anything about money say "{UNSURE}".',
    )
    return [Helpdesk(), first_line]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(escalation(model_from_env()), "I want 5,000 back.")
