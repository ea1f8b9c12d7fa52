"""The agent that follows a topic. Registered with the others; see `agents`."""

from __future__ import annotations

from ravi_django import register
from ravi_django.kernel import AgentId, Message, RunContext


class Follower:
    """Reads what it is given, and ends: told by a signal when it has begun without a message, else by the message."""

    id = AgentId("test", "bench-follower")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        if not inbox:
            await ctx.sleep_until_signal("new_feed_item")
        return "read"


follower = register(Follower(), access="authenticated")
