"""Router: one model decides who answers, and is out of the way from then on.

    python -m examples.router "My last invoice is wrong."

`handoff=True` ends the router's part: the chosen agent goes on as the same run, with the same caller, and answers in
its place. `initial_tool_choice` keeps the router from answering itself. See `running` for how to start it.
"""

from __future__ import annotations

from examples.running import play
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.kernel import Agent, ChatModel


def router(model: ChatModel) -> list[Agent]:
    billing = ReActAgent("billing", model=model, system_instructions="You answer questions about invoices.")
    technical = ReActAgent("technical", model=model, system_instructions="You help when something does not work.")
    desk = OrchestratorAgent(
        "desk",
        model=model,
        sub_agents=[
            SubAgentConfig(billing, "Invoices, payments, refunds.", handoff=True),
            SubAgentConfig(technical, "Faults, errors, how to use the product.", handoff=True),
        ],
        system_instructions="Hand the message over to the one who can answer it, in full.",
        initial_tool_choice="required",
    )
    return [desk]  # the others are registered with it


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(router(model_from_env()), "My last invoice is wrong.")
