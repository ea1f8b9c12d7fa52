"""The agents of the guided tour's last steps: a crash in mid-answer, a news item, a schedule."""

import os
from datetime import timedelta

from django.contrib.auth import get_user_model
from django.utils import timezone

from project.feed_server import publish
from ravi_django import ReActAgent, RunContext, register, schedule, tool
from ravi_django.errors import ToolRefused
from ravi_django.integrations.llm import RehearsalModel, model_from_env

STORY = (
    "The keeper of the lighthouse wrote down every ship that passed, the moment it passed. One night, in the middle of "
    "a line, she fell asleep. Her brother found the lamp dark, lit it, and opened the book. He did not row out to ask "
    "the ships again: all that she had seen was in the book. He read it to the last full line, took up the pen, and "
    "watched the sea. In the morning nobody on the water knew that the night had had two keepers."
)


@tool
def find_story() -> str:
    """Find the story to tell."""
    return STORY


@tool(effect="at_most_once")
def publish_news(text: str) -> str:
    """Publish a news item, for the readers at /feed/.

    Args:
        text: one or two sentences
    """
    server = os.environ.get("FEED_SERVER_URL")
    if not server:
        raise ToolRefused("this site was not started with make demo: it has no feed server")
    publish(server, "science", text.removeprefix("Publish: "), text)
    return "published at the feed server, and in the feeds at /feed/ within seconds"


@tool(effect="idempotent")
def remind_daily(text: str, ctx: RunContext) -> str:
    """Remind the person in this conversation: in five seconds, and then each day at this time.

    Args:
        text: what to be reminded of
    """
    schedule(
        "react/assistant",
        f"My reminder: {text}",
        name=f"daily {ctx.session_id}",
        every=timedelta(days=1),
        starts_at=timezone.now() + timedelta(seconds=5),
        session=ctx.session_id,
        user=get_user_model().objects.get(pk=ctx.user_id),
    )
    return "the first reminder comes within ten seconds, the next one tomorrow"


model = model_from_env()
slow = RehearsalModel(delay=0.15) if isinstance(model, RehearsalModel) else model  # time to press the button
for key, speaker, first, role in (
    ("storyteller", slow, find_story, "Tell the story."),
    ("reporter", model, publish_news, "Say in one sentence what you published."),
    ("reminder", model, remind_daily, "Say in one sentence when the reminders come."),
):
    register(
        ReActAgent(
            key,
            model=speaker,
            tools=[first],
            initial_tool_choice=first.name,
            system_instructions=f"Call {first.name} first. {role}",
        ),
        access="authenticated",
    )
