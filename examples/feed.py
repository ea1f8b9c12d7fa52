"""A feed: a newsroom reads what is new and tells whoever follows its topic; a reader keeps what is for its user.

    python -m examples.feed "python, sailing, not football"

The two know nothing of each other, only the topic. Neither ends: each is rows between two items, and begins anew with
an empty journal now and then. Who signals the newsroom is up to the site: a source of `docs/howto/sources.md`, or its
own code as here. See `running` for how to start it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from asgiref.sync import sync_to_async

from examples.running import until
from ravi_django.agents import InformationAgent, PersonalFeedAgent
from ravi_django.kernel import Agent, ChatModel, TopicId

TOPIC = TopicId("news", "today")
ITEMS = [
    {"title": "Python 4 is not coming", "url": "https://news.example/1", "text": "The core developers say so again."},
    {"title": "Football: a draw", "url": "https://news.example/2", "text": "Nobody has won."},
    {"title": "Sailing around the world", "url": "https://news.example/3", "text": "In ninety days, alone."},
]


def feed(model: ChatModel) -> list[Agent]:
    return [
        InformationAgent("today", model=model, output_topic=TOPIC, instructions="Summarize in one sentence."),
        PersonalFeedAgent("today", follow_topics=[TOPIC]),  # without a model: the words of the preferences decide
    ]


async def show(team: list[Agent], preferences: str) -> None:
    from ravi_django import signal
    from ravi_django.agents import Runtime

    async with Runtime() as rt:
        for agent in team:
            await rt.register(agent)
        newsroom, reader = team
        mine = await rt.submit(reader, "Begin.", metadata={"preferences": preferences})
        await until(lambda: _waits(mine))  # it follows by now
        news = await rt.submit(newsroom, "The doors are open.")
        for number, item in enumerate(ITEMS):
            await sync_to_async(signal)(news, "new_source_item", item, key=f"item:{number}")
        for item in await until(lambda: _judged(mine)):
            print("keep" if item["keep"] else "drop", item["title"] or "(no title)", f"({item['reason']})", sep="  ")


def _waits(run_id: str) -> bool:
    from ravi_django.models import Run

    return Run.objects.filter(id=run_id, status="suspended").exists()


def _judged(run_id: str) -> list[Any]:
    from ravi_django.testing import journal_of

    found = [entry.result for entry in journal_of(run_id) if entry.name == "feed.curated"]
    return found if len(found) > len(ITEMS) else []


if __name__ == "__main__":
    import django

    django.setup()
    from ravi_django.integrations.llm import model_from_env

    asyncio.run(show(feed(model_from_env()), " ".join(sys.argv[1:]) or "python, sailing, not football"))
