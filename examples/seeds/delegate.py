"""Spawn and ask: a manager starts a child run, waits for its reply, and continues whatever the outcome is.

    python -m examples.seeds.delegate "Which tides are there?"

OrchestratorAgent does the same when its model calls `handoff_researcher`. See `examples/running.py` for how to start
it.
"""

from __future__ import annotations

from datetime import timedelta

from examples.running import play
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, AgentId, ChatMessage, ChatModel, ChatPayload, Message, Priority, Role, RunContext

RESEARCHER = AgentId("react", "researcher")


class Manager:
    id = AgentId("seeds", "manager")

    def __init__(self, ask_timeout: timedelta = timedelta(minutes=2)) -> None:
        self.ask_timeout = ask_timeout

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        for msg in inbox:
            ctx.check()
            boot_msg = Message(
                target=RESEARCHER,
                sender=self.id,
                payload=ChatPayload(message=ChatMessage.of(Role.USER, msg.text)),
                correlation_id=msg.correlation_id,
                metadata={"parent_agent_id": str(self.id)},
            )
            # The tree's SpawnBudget has the slots: a full tree raises SpawnDeniedError, and a run's end frees its slot.
            handle = await ctx.spawn(RESEARCHER, boot=boot_msg, priority=Priority.NORMAL)
            outcome = await ctx.ask(handle, boot_msg, timeout=self.ask_timeout)
            match outcome.kind:
                case "replied":
                    answer = f"The researcher says: {outcome.text}"
                case "timed_out":  # no failure: the child may still be working
                    answer = "The researcher has not answered in time."
                case "target_failed":
                    answer = "The researcher has failed."
                case "target_cancelled":
                    answer = "The researcher was cancelled."
            await ctx.reply(msg, answer)


def delegate(model: ChatModel) -> list[Agent]:
    return [Manager(), ReActAgent("researcher", model=model, system_instructions="Answer in one sentence.")]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(delegate(model_from_env()), "Which tides are there?")
