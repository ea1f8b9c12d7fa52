"""The user proxy: a person with an agent's address. Another agent asks it, and both runs wait as rows.

    python -m examples.seeds.proxy "Invoice 7 over $10,000"

The question is in the admin's inbox. Or answer it in another terminal:

    python manage.py ravi_requests
    python manage.py ravi_answer ID answer "yes"

See `examples/running.py` for how to start it.
"""

from __future__ import annotations

from examples.running import play
from ravi_django.agents import UserProxyAgent
from ravi_django.kernel import Agent, AgentId, ChatModel, Message, RunContext


class Proxy:
    """A proxy by hand. It is in no inbox: code of the site reads `hitl.question` and sends the signal."""

    id = AgentId("seeds", "proxy")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        for msg in inbox:
            await ctx._log("hitl.question", {"correlation_id": msg.id, "text": msg.text})  # type: ignore[attr-defined]
            human_payload = await ctx.sleep_until_signal(f"human_reply:{msg.id}")
            await ctx.reply(msg, human_payload)


class Clerk:
    id = AgentId("seeds", "clerk")

    def __init__(self, boss: str = "user_proxy/boss") -> None:
        self._boss = boss

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        outcome = await ctx.ask(self._boss, f"{inbox[0].text}: should I really send it?")
        return "sent" if outcome.text == "yes" else f"not sent: {outcome.text}"


def proxy(model: ChatModel | None = None) -> list[Agent]:
    return [Clerk(), UserProxyAgent("boss", to="staff")]


if __name__ == "__main__":
    play(proxy(), "Invoice 7 over $10,000")
