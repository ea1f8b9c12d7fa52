"""An agent that reads, from its AgentSpec."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.spec.spec import INFORMATION, AgentSpec
from ravi_django.kernel import AgentId, ChatModel
from ravi_django.wings.feeds.news.information import InformationAgent
from ravi_django.wings.feeds.news.personal_feed import PersonalFeedAgent


def of_spec(
    spec: AgentSpec, key: str, address: AgentId | str | None, model: ChatModel | None, options: dict[str, Any]
) -> InformationAgent | PersonalFeedAgent:
    """Empty instructions mean those of its class."""
    instructions = options.pop("system_instructions", None) or spec.system_instructions
    arguments: dict[str, Any] = {
        "model": model,
        "items_per_generation": spec.items_per_generation,
        "public_signals": spec.public_signals,
        "base_options": spec.options.generation,
        "name": spec.name,
        "description": spec.description,
        "id": address,
        **({"instructions": instructions} if instructions else {}),
    }
    if spec.kind == INFORMATION:
        arguments |= {"output_topic": spec.output_topic, "source_signal": spec.source_signal}
        return InformationAgent(key, **{**arguments, **options})
    arguments |= {"follow_topics": spec.follow_topics, "preferences": spec.preferences, "every_s": spec.every_s}
    return PersonalFeedAgent(key, **{**arguments, **options})
