"""Metrics: the same newsroom, fed by the event bus. What happens to the site's runs is its news; it adds it up.

    python -m examples.metrics

What it remembers is its `state`, JSON, which it gives itself whenever it begins anew: so it goes on for ever. An event
may come twice, and counts once: the signal has the event's id as its key. `feed_agent` needs RAVI["EVENT_BUS"]; see
`docs/howto/events.md`. See `running` for how to start it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from examples.running import until
from ravi_django import tool
from ravi_django.agents import InformationAgent, Item, ReActAgent
from ravi_django.kernel import Agent, ChatModel, RunContext, TopicId

TOPIC = TopicId("metrics", "runs")
ENDS = "run.[cf]*"  # completed, failed and cancelled


@tool
def usage_of(run: str) -> dict[str, Any]:
    """What a run has used."""
    from ravi_django.models import Run

    used = Run.objects.filter(id=run).values("input_tokens", "output_tokens", "cost").first() or {}
    tokens = sum(used.get(name) or 0 for name in ("input_tokens", "output_tokens"))
    return {"tokens": tokens, "cost": float(used.get("cost") or 0)}


class Metrics(InformationAgent):
    tools = (usage_of,)

    async def process(self, ctx: RunContext, item: Item, state: dict[str, Any]) -> Any:
        """An event's run, added to the sums; whoever follows the topic is told them."""
        if "type" not in item.data:
            return None
        event = item.data
        used = json.loads((await ctx.tool("usage_of", run=event["data"]["run"])).text)
        by_agent = state.setdefault(event["data"]["agent"], {"tokens": 0, "cost": 0.0})
        by_agent[event["type"]] = by_agent.get(event["type"], 0) + 1
        by_agent["tokens"] += used["tokens"]
        by_agent["cost"] = round(by_agent["cost"] + used["cost"], 8)
        return state


def metrics(model: ChatModel) -> list[Agent]:
    return [Metrics("metrics", output_topic=TOPIC), ReActAgent("worker", model=model)]


async def show(team: list[Agent]) -> None:
    from ravi_django.agents import Runtime
    from ravi_django.sources import feed_agent

    async with Runtime() as rt:
        for agent in team:
            await rt.register(agent)
        counting = await rt.submit(team[0], "Begin.")
        await feed_agent(counting, types=ENDS)
        for question in ("What is 6 * 7?", "What is 6 * 9?"):
            await rt.result(await rt.submit(team[1], question))
        print(await until(lambda: _told(2)))


def _told(count: int) -> Any:
    from ravi_django.models import Publication

    bodies = Publication.objects.filter(topic=str(TOPIC)).order_by("id").values_list("body", flat=True)
    return bodies[count - 1]["payload"]["data"] if len(bodies) >= count else None


if __name__ == "__main__":
    import django
    from django.test.utils import override_settings

    django.setup()
    from django.conf import settings

    from ravi_django.integrations.llm import model_from_env

    with override_settings(RAVI={**settings.RAVI, "EVENT_BUS": "memory"}):
        asyncio.run(show(metrics(model_from_env())))
